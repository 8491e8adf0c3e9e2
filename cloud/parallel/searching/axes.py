"""Decisions about one mesh axis with the rest fixed: small integer programs inside a large one."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace

import numpy as np

from cloud.errors import PlanError
from cloud.parallel.graph import Split
from cloud.parallel.plan import Assignment, Plan
from cloud.parallel.searching.grouping.satellites import Merged
from cloud.parallel.searching.question import Lead, Question
from cloud.parallel.solving.problem import Problem
from cloud.parallel.solving.solve import Family, solve

__all__ = ["axis_family", "lifted", "together"]


def axis_family(question: Question, small: Merged, axis: int) -> Family:
    """Labels: options of one label are equal on every axis except `axis`."""
    labels = []
    for node, costs in zip(question.nodes, small.problem.nodes, strict=True):
        number: dict[Hashable, int] = {}
        leads = node.leads if len(costs) == len(node.leads) else node.leads[:1]
        labels.append(np.array([number.setdefault(_without(lead, axis), len(number)) for lead in leads]))
    return labels


def together(problem: Problem, question: Question, seconds: float) -> list[tuple[int, ...]]:
    """The best choice in which all axes are used together, as if they were one; none if there is only one axis or no
    such choice fits."""
    axes = tuple(range(len(question.mesh.sizes)))
    if len(axes) == 1:
        return []
    nodes = []
    for node, costs in zip(question.nodes, problem.nodes, strict=True):
        apart = [any(part and part != axes for split in _splits(lead) for part in split) for lead in node.leads]
        nodes.append(np.where(apart, np.inf, costs) if len(costs) == len(apart) else costs)
    try:
        return [solve(replace(problem, nodes=tuple(nodes)), seconds, 1e-3).options]
    except PlanError:
        return []


def lifted(question: Question, small: Merged, plan: Plan) -> tuple[int, ...]:
    """The options equal to `plan`, made for the same graph and mesh; the first option of a group that has no such
    one."""
    graph, taken = question.shape.graph, []
    for node, costs in zip(question.nodes, small.problem.nodes, strict=True):
        group = node.group
        lead = plan.ops[group.leader] if group.leader >= 0 else plan.entering[graph.entering.index(group.value)]
        taken.append(node.leads.index(lead) if lead in node.leads and len(costs) == len(node.leads) else 0)
    return tuple(taken)


def _splits(lead: Lead) -> tuple[Split, ...]:
    return (lead.loops, *lead.results) if isinstance(lead, Assignment) else (lead,)


def _without(lead: Lead, axis: int) -> Hashable:
    return tuple(tuple(tuple(a for a in part if a != axis) for part in split) for split in _splits(lead))
