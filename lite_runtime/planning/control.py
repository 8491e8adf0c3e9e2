"""Result types of If, Loop and Scan, where the nested graphs' types do not change between turns or branches.

Otherwise the result types are known only at run time: tensors that grow from turn to turn, outputs stacked over a
number of turns that a value decides, branches of different shapes. Such nodes run by reference, and their nested graphs
by plans of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from lite_runtime.errors import MsedgeError
from lite_runtime.graph import Array, Graph, Node, Spec
from lite_runtime.ops.registry import DataDependent
from lite_runtime.planning.inline import first_output, inlined
from lite_runtime.planning.parts import Block, Stage

__all__ = ["CONTROL", "MOST_TURNS", "SOME_TURNS", "Scanned", "blocks_of", "branch_of"]

SOME_TURNS = "SomeTurns"
"""At most `MOST_TURNS` turns of a Loop, from turn `first` on, a multiple of `MOST_TURNS`:

    turn, condition, carried…, rows… = SomeTurns(first, trips, condition, carried…)

`rows` have the rows of that many turns, of which those from `first` to `turn` are set. In no graph of a file: a Loop
whose number of turns is not known before it has run is a number of these (`running/turns.py`)."""
MOST_TURNS = 64
Specs = Mapping[str, Spec]
Known = Mapping[str, Array]
StageOf = Callable[[Graph, Specs], Stage]
"""The first stage of a graph for inputs of these types."""
_Found = tuple[tuple[Block, ...], list[Spec]]
"""Nested graphs, and the types of the node's results."""


def branch_of(node: Node, known: Known) -> str:
    """The attribute that holds the branch which an If takes, if its condition is known, otherwise ""."""
    condition = known.get(node.inputs[0]) if node.op == "If" else None
    if condition is None or condition.size != 1:
        return ""
    return "then_branch" if condition.reshape(-1)[0] else "else_branch"


def blocks_of(node: Node, specs: Specs, known: Known, stage_of: StageOf) -> _Found:
    """The nested graphs of an If, Loop or Scan, and the types of its results. Raises DataDependent."""
    try:
        return CONTROL[node.op](_Outer(node, specs, known, stage_of))
    except MsedgeError:  # reported when the graph that contains the mistake runs
        raise DataDependent(node.where) from None


class _Outer:
    """A node with nested graphs, and what is known around it."""

    def __init__(self, node: Node, specs: Specs, known: Known, stage_of: StageOf) -> None:
        self.node, self.specs, self.known, self._stage_of = node, specs, known, stage_of

    def spec(self, name: str) -> Spec:
        """The type of one of the node's operands."""
        return self.specs[name]

    def graph(self, key: str) -> Graph:
        """A nested graph."""
        found = self.node.attrs[key]
        assert isinstance(found, Graph)
        return found

    def block(self, key: str, given: Sequence[Spec], values: Mapping[int, Array]) -> Block:
        """A nested graph for inputs of these types; `values` are the inputs that are known, by number."""
        graph = inlined(self.graph(key), f"{first_output(self.node)}/{key}/")
        if len(given) != len(graph.inputs):
            raise DataDependent(self.node.where)
        captured = [name for name in graph.free_names if name]
        fixed = {name: self.known[name] for name in captured if name in self.known}
        fixed |= {graph.inputs[i].name: array for i, array in values.items()}
        types = {value.name: spec for value, spec in zip(graph.inputs, given, strict=True)}
        types |= {name: self.specs[name] for name in captured}
        whole = Graph(graph.inputs, graph.outputs, graph.nodes, {**graph.constants, **fixed}, graph.name)
        stage = self._stage_of(whole, types)
        names = tuple(value.name for value in graph.outputs)
        if stage.frontier or any(name not in stage.specs for name in names):
            raise DataDependent(self.node.where)
        return Block(tuple(value.name for value in graph.inputs), names, stage)


def _results(block: Block, start: int, end: int | None = None) -> list[Spec]:
    return [block.stage.specs[name] for name in block.outputs[start:end]]


def _if(outer: _Outer) -> _Found:
    blocks = _branch(outer, "then_branch"), _branch(outer, "else_branch")
    results = [_results(block, 0) for block in blocks if not block.refusal]
    if not results or results[0] != results[-1] or outer.spec(outer.node.inputs[0]).size != 1:
        raise DataDependent(outer.node.where)
    return blocks, results[0]


def _branch(outer: _Outer, key: str) -> Block:
    """A branch; one of a model for several input sizes is often invalid for all but one of them."""
    try:
        return outer.block(key, (), {})
    except MsedgeError as error:
        return Block((), (), Stage((), (), None, {}, {}, frozenset(), (), {}), str(error))


def _loop(outer: _Outer) -> _Found:
    node = outer.node
    trips, condition, *carried = node.inputs
    body, start, rows = _body(outer, (trips, condition), carried)
    if not rows:
        return (body,), start
    most, first, again = outer.known.get(trips), outer.known.get(condition), body.stage.known.get(body.outputs[0])
    if most is None or (condition and first is None) or again is None or not again.all():
        raise DataDependent(node.where)
    turns = 0 if first is not None and not first.all() else max(int(most.reshape(-1)[0]), 0)
    return (body,), [*start, *(Spec(row.dtype, (turns, *row.shape)) for row in rows)]


def _some_turns(outer: _Outer) -> _Found:
    first, trips, condition, *carried = outer.node.inputs
    body, start, rows = _body(outer, (first, trips, condition), carried)
    ends = [Spec("int64", ()), Spec("bool", ()), *start]
    return (body,), [*ends, *(Spec(row.dtype, (MOST_TURNS, *row.shape)) for row in rows)]


def _body(outer: _Outer, scalars: Sequence[str], carried: Sequence[str]) -> tuple[Block, list[Spec], list[Spec]]:
    """A loop's body, the types of the carried values, and of the rows that each turn gives."""
    where = outer.node.where
    if any(name and outer.spec(name).size != 1 for name in scalars) or not all(carried):
        raise DataDependent(where)
    start = [outer.spec(name) for name in carried]
    going = np.array(True)  # a turn begins only while the condition holds
    body = outer.block("body", [Spec("int64", ()), Spec("bool", ()), *start], {1: going})
    if _results(body, 1, 1 + len(start)) != start or _results(body, 0, 1)[0].size != 1:
        raise DataDependent(where)
    return body, start, _results(body, 1 + len(start))


def _scan(outer: _Outer) -> _Found:
    node = outer.node
    if not all(node.inputs):
        raise DataDependent(node.where)
    plan = Scanned(node)
    start = [outer.spec(name) for name in node.inputs[: plan.states]]
    sequences = [outer.spec(name) for name in node.inputs[plan.states :]]
    if any(len(spec.shape) == 0 for spec in sequences):
        raise DataDependent(node.where)
    axes = plan.input_axes([len(spec.shape) for spec in sequences])
    lengths = {spec.shape[axis] for spec, axis in zip(sequences, axes, strict=True)}
    slices = [Spec(s.dtype, s.shape[:axis] + s.shape[axis + 1 :]) for s, axis in zip(sequences, axes, strict=True)]
    body = outer.block("body", [*start, *slices], {})
    if len(lengths) != 1 or _results(body, 0, plan.states) != start:
        raise DataDependent(node.where)
    turns, rows = lengths.pop(), _results(body, plan.states)
    places = plan.output_axes([len(row.shape) + 1 for row in rows])
    stacked = [Spec(r.dtype, (*r.shape[:axis], turns, *r.shape[axis:])) for r, axis in zip(rows, places, strict=True)]
    return (body,), [*start, *stacked]


class Scanned:
    """The attributes of a Scan."""

    def __init__(self, node: Node) -> None:
        self._node = node
        body = node.attrs["body"]
        assert isinstance(body, Graph)
        self.sequences = self._int("num_scan_inputs")
        self.states = len(node.inputs) - self.sequences
        self.stacks = len(body.outputs) - self.states

    def input_axes(self, ranks: Sequence[int]) -> list[int]:
        """The axis of each sequence, for sequences of these ranks."""
        return self._axes("scan_input_axes", ranks)

    def output_axes(self, ranks: Sequence[int]) -> list[int]:
        """The axis of each stacked output, for outputs of these ranks."""
        return self._axes("scan_output_axes", ranks)

    @property
    def input_directions(self) -> list[int]:
        """1 for each sequence that is read backwards."""
        return self._list("scan_input_directions", self.sequences)

    @property
    def output_directions(self) -> list[int]:
        """1 for each stacked output whose first row is the last turn's."""
        return self._list("scan_output_directions", self.stacks)

    def _axes(self, key: str, ranks: Sequence[int]) -> list[int]:
        given = self._list(key, len(ranks))
        if len(given) != len(ranks) or any(not -rank <= axis < rank for axis, rank in zip(given, ranks, strict=True)):
            raise DataDependent(self._node.where)
        return [axis % rank for axis, rank in zip(given, ranks, strict=True)]

    def _list(self, key: str, count: int) -> list[int]:
        found = self._node.attrs.get(key) or (0,) * count
        assert isinstance(found, tuple)
        return [int(value) for value in found]

    def _int(self, key: str) -> int:
        found = self._node.attrs[key]
        assert isinstance(found, int)
        return found


CONTROL: Mapping[str, Callable[[_Outer], _Found]] = {
    "If": _if,
    "Loop": _loop,
    "Scan": _scan,
    SOME_TURNS: _some_turns,
}
"""How each operator's nested graphs are typed."""
