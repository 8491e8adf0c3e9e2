"""Memory and communication of a planned step, by kind of tensor and by tensor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from cloud.parallel.explaining.words import alike, place
from cloud.parallel.graph import Graph
from cloud.parallel.plan import Plan
from cloud.parallel.searching.holding.memory import Lives, held, lives
from cloud.parallel.searching.holding.schedule import hides
from cloud.parallel.searching.predict import Moved, moved
from cloud.parallel.searching.walk import late, parameters
from cloud.parallel.topology import Topology

__all__ = ["KINDS", "Ledger", "gradients"]

KINDS = ("parameters", "other state", "batch", "activations", "gradients", "copies")
"""What memory is used for. "copies": values resharded for their readers, and partial results."""


@dataclass(frozen=True)
class Ledger:
    """One plan of one step. `reduce_scatter`: as for `predict`."""

    graph: Graph
    plan: Plan
    topology: Topology
    reduce_scatter: bool = True

    @cached_property
    def parameters(self) -> frozenset[int]:
        """Entering values that are parameters."""
        return parameters(self.graph)

    @cached_property
    def gradients(self) -> Mapping[int, int]:
        """Computed value to the parameter whose gradient it is."""
        return gradients(self.graph, self.parameters)

    @cached_property
    def lives(self) -> Lives:
        """When values are alive."""
        return lives(self.graph, hides(self.topology))

    @cached_property
    def moved(self) -> tuple[Moved, ...]:
        """Every collective."""
        return tuple(moved(self.graph, self.plan, self.topology, reduce_scatter=self.reduce_scatter))

    def exposed(self, one: Moved) -> float:
        """The seconds of it that computing does not hide."""
        return one.seconds * (1 - self.topology.overlap * one.hides)

    def kind(self, value: int, copy: bool = False) -> str:
        """Of `KINDS`."""
        if copy:
            return "copies"
        about = self.graph.values[value]
        if about.kind == "state":
            return "parameters" if value in self.parameters else "other state"
        if about.kind == "batch":
            return "batch"
        return "gradients" if value in self.gradients or value in self._updated else "activations"

    def name(self, value: int) -> str:
        """The name of a value, without the numbers of repeated blocks: `params.block*.w`, `gradient of
        params.block*.w`, or where it was computed."""
        about = self.graph.values[value]
        if about.name:
            return alike(about.name)
        if value in self.gradients:
            return f"gradient of {alike(self.graph.values[self.gradients[value]].name)}"
        if value in self._next:
            return f"next {alike(self.graph.values[self._next[value]].name)}"
        if value in self._makers:
            op = self.graph.ops[self._makers[value]]
            return f"{op.primitive} at {place(op.where)}"
        return "a constant"

    @cached_property
    def memory(self) -> Mapping[str, npt.NDArray[np.float64]]:
        """Bytes that a device holds at each moment, by kind."""
        change = {kind: np.zeros(self.lives.steps + 1) for kind in KINDS}
        for one in held(self.graph, self.plan, self.topology, self.lives):
            kind = self.kind(one.value, one.copy)
            change[kind][one.first] += one.bytes
            change[kind][one.last + 1] -= one.bytes
        return {kind: np.cumsum(deltas)[:-1] for kind, deltas in change.items()}

    @cached_property
    def peak(self) -> int:
        """The fullest moment."""
        return int(np.argmax(sum(self.memory.values())))

    @cached_property
    def _next(self) -> Mapping[int, int]:
        """Carried result to the argument that it replaces."""
        pairs = zip(self.graph.leaving, self.graph.carried, strict=True)
        return {v: self.graph.entering[argument] for v, argument in pairs if argument is not None}

    @cached_property
    def _makers(self) -> Mapping[int, int]:
        return {v: k for k, op in enumerate(self.graph.ops) for v in op.outputs}

    @cached_property
    def _updated(self) -> frozenset[int]:
        """Values that the optimiser computes."""
        return _updates(self.graph)


def gradients(graph: Graph, params: frozenset[int]) -> Mapping[int, int]:
    """From a parameter's next value back through the optimiser, along values with the same number of elements, to the
    end of the backward pass; and further back through operators with one operand, which only change its layout."""
    sizes = [int(np.prod(value.shape, dtype=np.int64)) for value in graph.values]
    towards: dict[int, int] = {}
    for value, argument in zip(graph.leaving, graph.carried, strict=True):
        if argument is not None and graph.entering[argument] in params:
            towards[value] = graph.entering[argument]
    for op, last in zip(reversed(graph.ops), reversed(late(graph)), strict=True):
        goal = next((towards[v] for v in op.outputs if v in towards), None)
        if goal is None:
            continue
        for v in _computed(graph, op.inputs):
            if sizes[v] == sizes[goal] and (last or len(op.inputs) == 1):
                towards.setdefault(v, goal)
    after = _updates(graph)
    return {v: goal for v, goal in towards.items() if v not in after and graph.values[v].kind == "computed"}


def _updates(graph: Graph) -> frozenset[int]:
    return frozenset(v for op, last in zip(graph.ops, late(graph), strict=True) if last for v in op.outputs)


def _computed(graph: Graph, values: tuple[int, ...]) -> Iterator[int]:
    return (v for v in values if v >= 0 and graph.values[v].kind == "computed")
