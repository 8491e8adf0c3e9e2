"""Inputs of the step that only one group uses, decided together with that group.

An optimiser's moments are read and replaced by one update, and are best split in the same way as it. Such a node is
removed from the problem, and its best option for each option of its neighbour is stored: this removes two of three
nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from cloud.parallel.searching.question import Question
from cloud.parallel.solving.problem import Floats, Problem, Row, Transfer

__all__ = ["Merged", "merged"]

Choice = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Merged:
    """`problem` has the nodes of the whole problem; removed ones have a single option. `best[e]`: the neighbour of node
    e, and the best option of e for each of the neighbour's. `held[t]`: the neighbour that determines transfer t, and
    the bytes of a copy for each of its options."""

    problem: Problem
    best: Mapping[int, tuple[int, Choice]]
    held: Mapping[int, tuple[int, Floats]]
    left: Mapping[int, int]

    def options(self, chosen: Sequence[int]) -> tuple[int, ...]:
        """The options of the whole problem."""
        whole = list(chosen)
        for e, (g, best) in self.best.items():
            whole[e] = int(best[chosen[g]])
        return tuple(whole)

    def row(self, row: Row) -> Row:
        """A row of the whole problem."""
        nodes: dict[int, Floats] = {}
        for e, sizes in row.nodes.items():
            g, best = self.best.get(e, (e, None))
            nodes[g] = nodes.get(g, 0.0) + (sizes if best is None else sizes[best])
        for t, alive in row.copies.items():
            if t in self.held:
                g, sizes = self.held[t]
                nodes[g] = nodes.get(g, 0.0) + alive * sizes
        return replace(row, nodes=nodes, copies={self.left[t]: n for t, n in row.copies.items() if t in self.left})


def merged(question: Question) -> Merged:
    """The problem without its satellites."""
    problem, nodes = question.problem, list(question.problem.nodes)
    touching: dict[int, list[int]] = {}
    for t, transfer in enumerate(problem.transfers):
        for end in _ends(transfer):
            touching.setdefault(end, []).append(t)
    best: dict[int, tuple[int, Choice]] = {}
    held: dict[int, tuple[int, Floats]] = {}
    for e, node in enumerate(question.nodes):
        around = {n for t in touching.get(e, ()) for n in _ends(problem.transfers[t])} - {e}
        if node.group.leader >= 0 or len(around) != 1 or around & best.keys():
            continue
        g = around.pop()
        if question.nodes[g].group.leader < 0:
            continue
        size = np.array([question.bytes(node.group.value, node.made((0, -1, 0), o)) for o in range(len(node.leads))])
        pairs = [_pairs(problem.transfers[t], g, len(nodes[g]), len(nodes[e])) for t in touching[e]]
        cost = nodes[e][None, :] + sum(cost for cost, _ in pairs)
        choice = np.lexsort((np.broadcast_to(size, cost.shape), cost))[:, 0]
        every = np.arange(len(choice))
        nodes[g] = nodes[g] + cost[every, choice]
        nodes[e] = np.zeros(1)
        best[e] = g, choice
        held.update({t: (g, sizes[every, choice]) for t, (_, sizes) in zip(touching[e], pairs, strict=True)})
    kept = [t for t in range(len(problem.transfers)) if t not in held]
    smaller = Problem(tuple(nodes), tuple(problem.transfers[t] for t in kept))
    return Merged(smaller, best, held, {t: n for n, t in enumerate(kept)})


def _ends(transfer: Transfer) -> set[int]:
    return {transfer.source, *(reader for reader, _ in transfer.readers)}


def _pairs(transfer: Transfer, g: int, options_g: int, options_e: int) -> tuple[Floats, Floats]:
    """Seconds and bytes for every (option of g, option of e)."""

    def spread(node: int, forms: Sequence[int]) -> Choice:
        each = np.asarray(forms, np.int64)
        return np.broadcast_to(each[:, None] if node == g else each[None, :], (options_g, options_e))

    lies = spread(transfer.source, transfer.maker)
    cost, held = np.zeros((options_g, options_e)), np.zeros((options_g, options_e))
    before: list[Choice] = []
    for node, forms in transfer.readers:
        want = spread(node, forms)
        fresh = np.logical_not(np.any([want == other for other in before], axis=0)) if before else True
        cost += np.where(fresh, transfer.weight * transfer.cost[lies, want], 0.0)
        held += np.where(fresh, transfer.bytes[lies, want], 0.0)
        before.append(want)
    return cost, held
