"""Recomputing activations in the backward part of a step, for a smaller arena (Chen et al., 2016, "Training Deep
Nets with Sublinear Memory Cost").

The forward part of a graph is what its loss depends on. It is cut into segments. Values that are live across a cut are
kept; other forward values that the rest of the graph reads are computed a second time from the kept ones, just before
they are first needed there. So a run needs memory for the kept values and those of one segment, at the cost of a second
forward pass of these segments. The same operators compute the same numbers: gradients do not change.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

from converter.training.memory import sizes, working_memory
from lite_runtime.bundle import write
from lite_runtime.graph import Array, Graph, Node, Spec, StateUse
from lite_runtime.operators import having
from lite_runtime.planning.stage import fold, next_stage

__all__ = ["Fitted", "fit", "peak", "recomputed"]

_SEGMENTS = (2, 3, 4, 5, 6, 8, 10, 12, 16, 24)
_TRIED = 6
"""The number of candidates whose arena is planned completely."""
_SETTLED = 1 << 34
"""The largest value, in bytes, whose contents are used to infer types."""


class Fitted(NamedTuple):
    """The result of `fit`."""

    graph: Graph
    before: int
    """Bytes of working memory without recomputing."""
    after: int
    nodes: int
    """The number of nodes computed twice."""


class _Way(NamedTuple):
    graph: Graph
    peak: int
    again: int
    """Bytes of the values computed twice, a rough measure of the cost."""


def fit(graph: Graph, loss: str, state: Mapping[str, Array], use: StateUse, budget: int, batch: int) -> Fitted:
    """The graph, with activations recomputed as needed until its working memory is at most `budget` bytes for open
    dimensions of `batch`: the candidate that recomputes least, or if none fits, the one that needs the least memory."""
    specs = _specs(graph, batch)
    before = _arena(graph, state, use, batch)
    if before <= budget:
        return Fitted(graph, before, before, 0)
    scale = before / max(peak(graph, specs), 1)
    ways = sorted(_ways(graph, loss, use.reads, specs), key=lambda way: (way.peak * scale > budget, way.again))
    best = Fitted(graph, before, before, 0)
    for way in [w for w in ways if w.peak * scale <= budget][:_TRIED] or sorted(ways, key=lambda w: w.peak)[:_TRIED]:
        arena = _arena(way.graph, state, use, batch)
        if arena < best.after:
            best = Fitted(way.graph, before, arena, len(way.graph.nodes) - len(graph.nodes))
        if arena <= budget:
            break
    return best


def _specs(graph: Graph, batch: int) -> dict[str, Spec]:
    """The type of every value, open dimensions being `batch`."""
    given = {v.name: Spec(v.dtype, sizes(v, batch)) for v in graph.inputs}
    return dict(next_stage(fold(graph, _SETTLED), given, _SETTLED).specs)


def _arena(graph: Graph, state: Mapping[str, Array], use: StateUse, batch: int) -> int:
    """Bytes of working memory; `peak` if there are no kernels."""
    data = write(None, {"train_step": graph}, state=state, uses={"train_step": use})
    found = working_memory(data, "train_step", batch)
    return peak(graph, _specs(graph, batch)) if found is None else found


def peak(graph: Graph, specs: Mapping[str, Spec]) -> int:
    """The most bytes of results live at a time, each from its producer to its last reader."""
    last = {name: i for i, node in enumerate(graph.nodes) for name in node.inputs}
    last.update((v.name, len(graph.nodes)) for v in graph.outputs)
    change = [0] * (len(graph.nodes) + 2)
    for i, node in enumerate(graph.nodes):
        for name in node.outputs:
            if name in specs:
                change[i] += specs[name].nbytes
                change[last.get(name, i) + 1] -= specs[name].nbytes
    return max(accumulate(change))


def _ways(graph: Graph, loss: str, still: Iterable[str], specs: Mapping[str, Spec]) -> Iterator[_Way]:
    types = {_again(name): spec for name, spec in specs.items()} | dict(specs)
    for kept in dict.fromkeys(_choices(_forward(graph, loss), specs)):
        made = recomputed(graph, loss, kept, still)
        copies = [name for node in made.nodes if node.name.endswith(_AGAIN) for name in node.outputs]
        if copies:
            yield _Way(made, peak(made, types), sum(types[name].nbytes for name in copies if name in types))


def _forward(graph: Graph, loss: str) -> list[Node]:
    """The nodes that the loss depends on, in order."""
    needed, found = {loss}, []
    for node in reversed(graph.nodes):
        if any(name in needed for name in node.outputs):
            found.append(node)
            needed.update(node.inputs)
    return found[::-1]


def _choices(forward: Sequence[Node], specs: Mapping[str, Spec]) -> Iterator[frozenset[str]]:
    """The kept values: by number of segments, and by how many of them, from the first, are recomputed."""
    last = {name: i for i, node in enumerate(forward) for name in node.inputs}
    made = {name: i for i, node in enumerate(forward) for name in node.outputs if name in specs}
    sums = list(accumulate(sum(specs[name].nbytes for name in node.outputs if name in specs) for node in forward))
    for segments in _SEGMENTS:
        if segments >= len(forward):
            break
        cuts = sorted({_cut(sums, made, last, specs, segments, i) for i in range(1, segments)})
        across = [frozenset(name for name, i in made.items() if i <= cut < last.get(name, i)) for cut in cuts]
        for count in range(1, len(cuts) + 1):
            rest = frozenset(name for name, i in made.items() if i > cuts[count - 1])
            yield frozenset().union(*across[:count], rest)


def _cut(
    sums: Sequence[int],
    made: Mapping[str, int],
    last: Mapping[str, int],
    specs: Mapping[str, Spec],
    segments: int,
    i: int,
) -> int:
    """The position with the fewest live bytes near the `i`th of equal shares of all bytes."""
    total, width = sums[-1], sums[-1] / segments / 2
    near = [p for p, s in enumerate(sums) if abs(s - total * i / segments) <= width / 2] or [
        min(range(len(sums)), key=lambda p: abs(sums[p] - total * i / segments))
    ]

    def alive(position: int) -> int:
        return sum(specs[name].nbytes for name, at in made.items() if at <= position < last.get(name, at))

    return min(near, key=alive)


_AGAIN = "~again"


def _again(name: str) -> str:
    return f"{name}{_AGAIN}"


def recomputed(graph: Graph, loss: str, kept: Iterable[str], still: Iterable[str]) -> Graph:
    """The graph in which nodes after the forward part read second copies of forward values that are not `kept`, each
    computed from kept values just before it is first read. Values that depend only on the inputs `still`, constants
    and shapes are kept."""
    forward = {id(node) for node in _forward(graph, loss)}
    makers = {name: node for node in graph.nodes if id(node) in forward for name in node.outputs if name}
    varying = {v.name for v in graph.inputs} - set(still)
    for node in graph.nodes:
        if node.op not in having("shape_only") and any(name in varying for name in (*node.inputs, *node.captures)):
            varying.update(node.outputs)
    held = {*kept, *(v.name for v in graph.outputs), *(name for name in makers if name not in varying)}
    nodes: list[Node] = []
    copied: set[str] = set()

    def read(name: str) -> str:
        if name not in makers or name in held:
            return name
        node = makers[name]
        if name not in copied:
            inputs = tuple(map(read, node.inputs))
            outputs = tuple(_again(n) if n else "" for n in node.outputs)
            copied.update(n for n in node.outputs if n)
            nodes.append(node.replace(inputs=inputs, outputs=outputs, name=f"{node.name}{_AGAIN}"))
        return _again(name)

    for node in graph.nodes:
        known = id(node) in forward or node.captures
        nodes.append(node if known else node.replace(inputs=tuple(map(read, node.inputs))))
    return graph.replace(nodes=tuple(nodes))

