"""Loops whose number of turns is known only when they have ended, and that stack a row for each: natively, a number of
turns at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from lite_runtime.graph import Array, Graph, Node, Value
from lite_runtime.planning.program import Plan
from lite_runtime.reference.support import optional_scalar

__all__ = ["Runs", "Turns"]

_FIRST, _TRIPS, _CONDITION = "first turn", "trips", "condition"
_NO_END = (1 << 63) - 1


class Runs(Protocol):
    """What runs a graph: an executor."""

    def planned(self, inputs: Mapping[str, Any]) -> Plan:
        """The plan for inputs of these types."""

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """The graph's outputs."""


class Turns:
    """A Loop as a graph of one SomeTurns node, which is run until the loop has ended."""

    def __init__(self, node: Node, make: Callable[[Graph], Runs], count: Callable[[Node, int], None]) -> None:
        """make: an executor of a graph. count: is told the node and how many turns it took."""
        from lite_runtime.planning.control import MOST_TURNS, SOME_TURNS

        self._node, self._most = node, MOST_TURNS
        body = node.attrs["body"]
        assert isinstance(body, Graph)
        self._carried = [f"carried {i}" for i in range(len(node.inputs) - 2)]
        made = ["turn", "holds", *(f"result {i}" for i in range(len(body.outputs) - 1))]
        given = (_FIRST, _TRIPS, _CONDITION, *self._carried)
        some = Node(SOME_TURNS, given, tuple(made), node.attrs, node.name)
        wide = tuple(Value(name, "", None, "any") for name in (*given, *node.captures))
        graph = Graph(wide, tuple(Value(name, "", None, "any") for name in made), (some,), {})
        self._inner, self._count, self._made = make(graph), count, made
        self.native = False
        """Whether the latest run was native."""

    def run(self, values: Mapping[str, Any]) -> list[Any] | None:
        """The Loop's results; None if its body cannot run as part of a program."""
        node, self.native = self._node, False
        trips, condition, *carried = (values[name] if name else None for name in node.inputs)
        if any(value is not None and np.size(value) > 1 for value in (trips, condition)):
            return None  # the reference says what is wrong
        most, holds = optional_scalar(trips, None, "M"), bool(optional_scalar(condition, True, "cond"))
        last = _NO_END if most is None else int(most)
        state = [np.asarray(value) for value in carried]
        if any(value.dtype.kind not in "biuf" for value in state):
            return None
        given: dict[str, Any] = {name: values[name] for name in node.captures}
        given[_CONDITION] = np.array(holds)
        rows: list[list[Array]] = [[] for _ in self._made[2 + len(state) :]]
        first = 0
        while True:
            given |= {_FIRST: np.array(first, np.int64), _TRIPS: np.array(min(last, first + self._most), np.int64)}
            given.update(zip(self._carried, state, strict=True))
            plan = self._inner.planned(given)
            if plan.rest is not None or not all(step.end for step in plan.steps):
                return None
            results = self._inner.run(given)
            turn = int(results["turn"])
            state = [results[name] for name in self._made[2 : 2 + len(state)]]
            for some, name in zip(rows, self._made[2 + len(state) :], strict=True):
                some.append(results[name][: turn - first])
            self._count(node, turn - first)
            given[_CONDITION] = results["holds"]
            if not results["holds"] or turn >= last or turn == first:
                self.native = True
                return [*state, *map(_joined, rows)]
            first = turn


def _joined(parts: Sequence[Array]) -> Array:
    return np.ascontiguousarray(parts[0]) if len(parts) == 1 else np.concatenate(parts)
