"""What a device holds while a step runs.

At rest: the state, and the batch until its last reader. State that is replaced is replaced in place. A computed value
needs memory only where compilers put it there: a cheap elementwise operator is computed again inside each kernel that
reads it, so it is kept only if some reader is a kernel of another kind (a product, a lookup, a collective), and its
operands live as long as whoever computes it again. Operators that only lead to what leaves the step (the optimiser's)
run as soon as what they need is there, not after the whole backward pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from cloud.parallel.cost import local_bytes, reshard
from cloud.parallel.graph import Graph, Op, Split
from cloud.parallel.plan import Plan
from cloud.parallel.searching.options import made
from cloud.parallel.searching.walk import copies, late, lying, reading_times, sums
from cloud.parallel.topology import Topology

__all__ = ["Held", "Lives", "curve", "held", "is_fused", "lives", "moments"]

_DEAR = frozenset({"tanh", "log", "log1p", "expm1", "pow", "erf", "erf_inv", "erfc", "sin", "cos", "tan", "atan2"})
"""Elementwise operators that compilers do not compute twice."""


@dataclass(frozen=True)
class Lives:
    """`at[k]`: the moment operator k runs; `until[k]`: the last moment its operands are read by it, or by those that
    compute it again. `spans[v]`: first and last moment of each value that needs memory of its own, entering ones
    included. `readers[v]`: operators that read it. `steps`: the number of moments."""

    at: tuple[int, ...]
    until: tuple[int, ...]
    readers: dict[int, list[int]]
    spans: dict[int, tuple[int, int]]
    steps: int

    def copy_span(self, readers: Sequence[int]) -> tuple[int, int]:
        """From when to when a copy is there that these operators read; -1 is the end of the step."""
        at = [self.at[k] if k >= 0 else self.steps - 1 for k in readers]
        until = [self.until[k] if k >= 0 else self.steps - 1 for k in readers]
        return min(at), max(until)


def is_fused(op: Op) -> bool:
    """Whether the operator reads its operands inside a loop of elements, so that cheap ones need not be stored."""
    return op.follows or op.primitive.startswith(("reduce_", "arg"))


def moments(graph: Graph) -> tuple[int, ...]:
    """The moment each operator runs: its number, but as early as can be for those that only lead out of the step."""
    ready, at = [0] * len(graph.values), []
    for k, (op, last) in enumerate(zip(graph.ops, late(graph), strict=True)):
        at.append(max((ready[v] for v in op.inputs if v >= 0), default=0) if last else k)
        for v in op.outputs:
            ready[v] = at[k]
    return tuple(at)


def lives(graph: Graph) -> Lives:
    """When each value that needs memory of its own is there."""
    at, steps = moments(graph), len(graph.ops)
    readers: dict[int, list[int]] = {}
    for k, op in enumerate(graph.ops):
        for v in op.inputs:
            if v >= 0:
                readers.setdefault(v, []).append(k)
    leaving = set(graph.leaving)
    kept: dict[int, int] = {}
    end: dict[int, int] = {}
    until = [0] * steps
    for k in range(steps - 1, -1, -1):
        op = graph.ops[k]
        for v in op.outputs:
            end[v] = max((until[r] for r in readers.get(v, ())), default=at[k])
            if v in leaving or _stored(op, [graph.ops[r] for r in readers.get(v, ())]):
                kept[v] = at[k]
        until[k] = max([at[k], *(end[v] for v in op.outputs if v not in kept)])
    replaced = {v for v, argument in zip(graph.leaving, graph.carried, strict=True) if argument is not None}
    spans = {v: (start, start if v in replaced else steps if v in leaving else end[v]) for v, start in kept.items()}
    for v in graph.entering:
        used = max((until[r] for r in readers.get(v, ())), default=0)
        spans[v] = (0, steps if graph.values[v].kind == "state" else used)
    return Lives(at, tuple(until), readers, spans, steps + 1)


class Held(NamedTuple):
    """Bytes a device holds from moment `first` to `last`, of `value`: itself, or, where `copy`, lying otherwise or
    still in parts."""

    first: int
    last: int
    bytes: float
    value: int
    copy: bool


def held(graph: Graph, plan: Plan, topology: Topology, spans: Lives) -> Iterator[Held]:
    """All that needs memory."""

    def size(value: int, split: Split) -> int:
        return local_bytes(graph.values[value].shape, graph.values[value].dtype.itemsize, split, plan.mesh)

    lies = lying(graph, plan)
    for value, span in spans.spans.items():
        yield Held(*span, size(value, lies[value]), value, False)
    for copy in copies(graph, plan, reading_times(graph) if plan.regather else {}):
        about = graph.values[copy.value].shape, graph.values[copy.value].dtype.itemsize
        if reshard(*about, lies[copy.value], copy.split, plan.mesh, topology)[0]:
            span = spans.copy_span([k for k, _ in copy.readers])
            yield Held(*span, size(copy.value, copy.split), copy.value, True)
    for each in sums(graph, plan):
        whole = made(graph.ops[each.op], each.result, plan.ops[each.op].loops)
        more = size(each.value, whole) - size(each.value, each.split)
        yield Held(spans.at[each.op], spans.at[each.op], more, each.value, True)


def curve(graph: Graph, plan: Plan, topology: Topology, found: Lives | None = None) -> npt.NDArray[np.float64]:
    """Bytes a device holds at each moment of the step under `plan`."""
    spans = found or lives(graph)
    change = np.zeros(spans.steps + 1)
    for one in held(graph, plan, topology, spans):
        change[one.first] += one.bytes
        change[one.last + 1] -= one.bytes
    return np.cumsum(change)[:-1]


def _stored(op: Op, readers: Sequence[Op]) -> bool:
    return not op.follows or (op.primitive in _DEAR and len(readers) > 1) or not all(map(is_fused, readers))
