"""A plan applied through the step: the split of every value, the readers that need another split, the collectives.

`predict` counts what this yields and `apply` emits it, so that the two cannot disagree."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from cloud.parallel.graph import Graph, Split, remembered
from cloud.parallel.plan import Plan
from cloud.parallel.searching.options import made, partial_axes, wanted
from cloud.parallel.tracing.bodies import CLOSE, SLICE, STACK

__all__ = ["Copy", "Sum", "behind", "copies", "early", "late", "loose", "lying", "parameters", "reading_times",
           "sums"]  # fmt: skip

FAR = 16
"""Readers that are more than one FAR-th of all operators apart have different reading times (`Plan.regather`)."""


@dataclass(frozen=True, slots=True)
class Copy:
    """Value `value` is needed with `split` at reading time `time`; `readers`: (operator, operand) of all readers that
    share it; the operator is -1 for a result of the step."""

    value: int
    split: Split
    time: int
    readers: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Sum:
    """Partial results of operator `op`, its result number `result`, over `axes`; `value` then has the split `split`."""

    op: int
    result: int
    value: int
    axes: tuple[int, ...]
    split: Split


def lying(graph: Graph, plan: Plan) -> list[Split]:
    """The split of each value when it is made; constants are whole."""
    lies: list[Split] = [((),) * len(value.shape) for value in graph.values]
    for value, split in zip(graph.entering, plan.entering, strict=True):
        lies[value] = split
    for op, assignment in zip(graph.ops, plan.ops, strict=True):
        for value, split in zip(op.outputs, assignment.results, strict=True):
            lies[value] = split
    return lies


def copies(graph: Graph, plan: Plan, times: Mapping[tuple[int, int], int]) -> Iterator[Copy]:
    """Every other split in which a value is needed, once. Carried values are needed with the split of their input."""
    lies = lying(graph, plan)
    found: dict[tuple[int, Split, int], list[tuple[int, int]]] = {}
    for k, (op, assignment) in enumerate(zip(graph.ops, plan.ops, strict=True)):
        for i, value in enumerate(op.inputs):
            if value >= 0:
                split = wanted(op, i, assignment.loops)
                if split != lies[value]:
                    found.setdefault((value, split, times.get((k, i), 0)), []).append((k, i))
    for j, (value, argument) in enumerate(zip(graph.leaving, graph.carried, strict=True)):
        if argument is not None and plan.entering[argument] != lies[value]:
            found.setdefault((value, plan.entering[argument], 0), []).append((-1, j))
    for (value, split, time), readers in found.items():
        yield Copy(value, split, time, tuple(readers))


def sums(graph: Graph, plan: Plan) -> Iterator[Sum]:
    """Every result that is partial on the devices."""
    for k, (op, assignment) in enumerate(zip(graph.ops, plan.ops, strict=True)):
        for j, (value, split) in enumerate(zip(op.outputs, assignment.results, strict=True)):
            axes = partial_axes(op, j, assignment.loops)
            if axes or split != made(op, j, assignment.loops):
                yield Sum(k, j, value, axes, split)


@remembered
def early(graph: Graph) -> frozenset[int]:
    """Values that are state or computed from state alone by operators without cost: they can be gathered ahead, before
    the step or, if they are slices of one trip, before the trip."""
    known = {value for value in graph.entering if graph.values[value].kind == "state"}
    for op in graph.ops:
        if (
            (op.follows or op.primitive == SLICE)
            and all(v < 0 or v in known for v in op.inputs)
            and any(v >= 0 for v in op.inputs)
        ):
            known.update(op.outputs)
    return frozenset(known)


@remembered
def late(graph: Graph) -> tuple[bool, ...]:
    """For each operator, whether it and all its readers only lead to outputs of the step: the optimiser's operators."""
    feeds = np.zeros(len(graph.values), dtype=np.bool_)
    found = [False] * len(graph.ops)
    for k in range(len(graph.ops) - 1, -1, -1):
        op = graph.ops[k]
        found[k] = op.follows and not feeds[list(op.outputs)].any()
        if not found[k]:
            feeds[[value for value in op.inputs if value >= 0]] = True
    return tuple(found)


@remembered
def loose(graph: Graph) -> frozenset[int]:
    """Values that no kernel of the step or trip waits for: those of `early`, and those that only lead to outputs."""
    leading = zip(graph.ops, behind(graph), strict=True)
    return early(graph).union(v for op, last in leading if last for v in op.outputs)


@remembered
def behind(graph: Graph) -> tuple[bool, ...]:
    """For each operator, whether it and all its readers only lead to outputs of the step or of a trip: the optimiser's
    operators, and those that add to a carry or stack results of trips for these."""
    needed = set[int]()
    while True:
        feeds = np.zeros(len(graph.values), dtype=np.bool_)
        found = [False] * len(graph.ops)
        for k in range(len(graph.ops) - 1, -1, -1):
            op = graph.ops[k]
            ends = op.follows or op.primitive == STACK or (op.primitive == CLOSE and k not in needed)
            found[k] = ends and not feeds[list(op.outputs)].any()
            if not found[k]:
                feeds[[value for value in op.inputs if value >= 0]] = True
        # A carry that the next trip computes with leads to more than outputs.
        fresh = {k for k, op in enumerate(graph.ops) if op.primitive == CLOSE and found[k] and feeds[op.inputs[1]]}
        if not fresh:
            return tuple(found)
        needed |= fresh


@remembered
def reading_times(graph: Graph) -> Mapping[tuple[int, int], int]:
    """For every operand that is state: the number of its reading time, if these are far apart."""
    state, last, times = early(graph), dict[int, tuple[int, int]](), dict[tuple[int, int], int]()
    for k, op in enumerate(graph.ops):
        for i, value in enumerate(op.inputs):
            if value in state:
                before, time = last.get(value, (k, 0))
                time += (k - before) * FAR > len(graph.ops)
                last[value], times[k, i] = (k, time), time
    return times


@remembered
def parameters(graph: Graph) -> frozenset[int]:
    """Input state that the step uses outside the update: parameters, but not moments."""
    ahead, last = early(graph), late(graph)
    origin = {v: {v} for v in graph.entering if graph.values[v].kind == "state"}
    used: set[int] = set()
    for k, op in enumerate(graph.ops):
        sources = set[int]().union(*(origin.get(v, set()) for v in op.inputs))
        if last[k]:
            continue
        if op.outputs and all(v in ahead for v in op.outputs):
            origin.update(dict.fromkeys(op.outputs, sources))
        else:
            used |= sources
    return frozenset(v for v in used if np.issubdtype(graph.values[v].dtype, np.inexact) or _narrow(graph, v))


def _narrow(graph: Graph, v: int) -> bool:
    return graph.values[v].dtype.name in ("bfloat16", "float8_e4m3fn", "float8_e5m2")
