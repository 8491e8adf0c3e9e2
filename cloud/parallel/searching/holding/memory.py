"""Memory of a device during a step.

Permanent: the state, and the batch until its last reader. New state replaces the old in place. A computed value needs
memory only if compilers store it: a cheap elementwise operator is computed again inside each kernel that reads it, so
its result is stored only if some reader is another kind of kernel (a product, a lookup, a collective), and its operands
live as long as the kernels that compute it again; a value that all readers need in another split is freed once it has
been moved. When kernels run: `schedule`. Further memory of compilers (`Scratch`): workspaces, the argument positions of
a pool's results, operands copied to another layout.

In a loop the values of a trip take the same memory in each. What a trip reads from outside lives until the loop ends,
stacks of results from when it begins; a carry has one buffer, in which the next one is made if the one before is no
longer read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from cloud.parallel.cost import local_bytes, reshard
from cloud.parallel.graph import Graph, Op, Split, remembered
from cloud.parallel.plan import Plan
from cloud.parallel.searching.edges import exchanged
from cloud.parallel.searching.holding.schedule import hides, in_place, in_turns
from cloud.parallel.searching.options import made, wanted
from cloud.parallel.searching.walk import Copy, copies, lying, reading_times, sums
from cloud.parallel.topology import Topology
from cloud.parallel.tracing.bodies import CLOSE, SLICE, STACK

__all__ = ["Held", "Lives", "curve", "held", "is_fused", "lives"]

_DEAR = frozenset({"tanh", "log", "log1p", "expm1", "pow", "erf", "erf_inv", "erfc", "sin", "cos", "tan", "atan2"})
"""Elementwise operators that compilers do not compute twice."""


WORKSPACE = 32 << 20
"""Bytes of the cuBLAS workspace on Hopper."""


Spans = dict[int, tuple[int, int]]


@dataclass(frozen=True)
class Lives:
    """`at[k]`: the moment operator k runs; `until[k]`: the last moment its operands are read, by it or by kernels that
    compute it again. `spans[v]`: first and last moment of each stored value, including inputs. `readers[v]`: operators
    that read it. `steps`: the number of moments. `outlasting`: (value, operator) -> the last moment of the loop around
    the operator in which all trips read this value from outside."""

    at: tuple[int, ...]
    until: tuple[int, ...]
    readers: dict[int, list[int]]
    spans: dict[int, tuple[int, int]]
    steps: int
    scratch: tuple[Scratch, ...] = ()
    eager: Mapping[int, int] = field(default_factory=dict)
    leaving: frozenset[int] = frozenset()
    outlasting: Mapping[tuple[int, int], int] = field(default_factory=dict)

    def read_until(self, value: int, k: int) -> int:
        """The last moment that operator k, -1 for the step's end, needs the value: inside a loop, every trip does."""
        return self.steps - 1 if k < 0 else self.outlasting.get((value, k), self.until[k])

    def copy_span(self, value: int, readers: Sequence[int]) -> tuple[int, int]:
        """The lifetime of a copy of the value that these operators read; -1 is the end of the step."""
        at = [self.at[k] if k >= 0 else self.steps - 1 for k in readers]
        return min(self.eager.get(value, self.steps), *at), max(self.read_until(value, k) for k in readers)

    def read_by(self, value: int) -> set[int]:
        """All operators that read the value, -1 for the step's end."""
        return {*self.readers.get(value, ()), *([-1] if value in self.leaving else [])}

    def begun(self, graph: Graph, k: int) -> int:
        """The moment from which the result of operator k has memory."""
        return min((self.spans[v][0] for v in graph.ops[k].outputs if v in self.spans), default=self.at[k])


class Scratch(NamedTuple):
    """Bytes that the compiler needs besides the program's values, from moment `first` to `last`: `bytes`, or `times`
    the bytes of operand `operand` of operator `op` in the split that the operator needs."""

    first: int
    last: int
    op: int
    operand: int = 0
    times: float = 0.0
    bytes: float = 0.0


def is_fused(op: Op) -> bool:
    """Whether the operator reads its operands inside a loop of elements, so that cheap ones need not be stored."""
    return op.follows or op.primitive == STACK or op.primitive.startswith(("reduce_", "arg"))


@remembered
def lives(graph: Graph, hides: bool = False) -> Lives:
    """The lifetime of each stored value. `hides`: whether the compiler reorders kernels to hide collectives
    (`schedule.hides`)."""
    readers: dict[int, list[int]] = {}
    for k, op in enumerate(graph.ops):
        for v in op.inputs:
            if v >= 0:
                readers.setdefault(v, []).append(k)
    leaving = set(graph.leaving)
    stored = {v for op in graph.ops for v in op.outputs
              if v in leaving or _stored(op, [graph.ops[r] for r in readers.get(v, ())], hides)
              or any(graph.ops[r].inside != graph.values[v].inside for r in readers.get(v, ()))}  # fmt: skip
    at, until, prepared, steps = (in_turns if hides else in_place)(graph, readers, stored)
    bodies = _bodies(graph, at)
    outlasting = {(v, r): bodies[b][1] for v, found in readers.items() for r in found
                  if (b := graph.around(graph.ops[r].inside, graph.values[v].inside)) >= 0}  # fmt: skip

    def ends(v: int, first: int) -> int:
        return max((outlasting.get((v, r), until[r]) for r in readers.get(v, ())), default=first)

    replaced = {v for v, argument in zip(graph.leaving, graph.carried, strict=True) if argument is not None}
    spans: Spans = {}
    for k, op in enumerate(graph.ops):
        for v in stored.intersection(op.outputs):
            end = steps if v in leaving else ends(v, at[k])
            spans[v] = (at[k], at[k] - 1 if v in replaced else end)
    for v in graph.entering:
        spans[v] = (0, steps if graph.values[v].kind == "state" else ends(v, 0))
    spans.update(_tied(graph, readers, spans, bodies, until))
    scratch = [*_products(graph, at), *_moved_batches(graph, at)] if hides else list(_moved_batches(graph, at))
    for k, start in prepared.items():
        op = graph.ops[k]
        if op.primitive == "select_and_scatter_add":
            scratch.append(_places(graph, k, start, at[k]))
        else:  # in place
            spans[op.inputs[0]], spans[op.outputs[0]] = (start, start - 1), (start, max(at[k], spans[op.outputs[0]][1]))
    spans.update(_added_to(graph, readers, spans, prepared))
    eager = {} if hides else {v: at[k] for k, op in enumerate(graph.ops) for v in op.outputs}
    return Lives(at, until, readers, spans, steps + 1, tuple(scratch), eager, frozenset(leaving), outlasting)


def _bodies(graph: Graph, at: Sequence[int]) -> list[tuple[int, int]]:
    """The first and the last moment of each body."""
    return [(min(at[body.start : body.stop]), max(at[body.start : body.stop])) for body in graph.bodies]


def _tied(graph: Graph, readers: Mapping[int, Sequence[int]], spans: Spans, bodies: Sequence[tuple[int, int]],
          until: Sequence[int]) -> Spans:  # fmt: skip
    """The lifetimes of carries and stacks."""
    changed: Spans = {}
    for op in graph.ops:
        (first, last), made = bodies[op.inside] if op.inside >= 0 else (0, 0), op.outputs
        if op.primitive == STACK:
            changed[made[0]] = first, max(last, spans[made[0]][1])
        elif op.primitive == CLOSE:
            after, before = op.inputs
            changed[made[0]] = last + 1, max(last, spans[made[0]][1])
            changed[before] = first, last
            needed = max((until[r] for r in readers[before] if graph.ops[r].primitive != CLOSE), default=first)
            in_place = after in spans and graph.values[after].inside == graph.values[before].inside != -1
            if in_place and after != before and needed <= spans[after][0]:
                changed[after] = spans[after][0], spans[after][0] - 1
    return changed


def _added_to(graph: Graph, readers: Mapping[int, Sequence[int]], spans: Mapping[int, tuple[int, int]],
              prepared: Collection[int]) -> Spans:  # fmt: skip
    """If only the sum of two products is read, the second is accumulated into the memory of the first; likewise if two
    lookups of one table scatter their gradients into zeros (`prepared`)."""
    products = {v for k, op in enumerate(graph.ops) for v in op.outputs
                if op.primitive == "dot_general" or (k in prepared and op.primitive == "scatter-add")}  # fmt: skip
    changed = {}
    for op in graph.ops:
        if op.primitive in ("add", "add_any") and products.issuperset(op.inputs):
            first, second = sorted(op.inputs, key=lambda v: spans.get(v, (-1, -1)))
            if first in spans and second in spans and len(readers[first]) == len(readers[second]) == 1:
                start, end = spans[second][0], max(spans[first][1], spans[second][1])
                changed[first], changed[second] = (spans[first][0], end), (start, start - 1)
    return changed


def _products(graph: Graph, at: Sequence[int]) -> Iterator[Scratch]:
    """The workspace of cuBLAS."""
    for k, op in enumerate(graph.ops):
        if op.primitive == "dot_general":
            yield Scratch(at[k], at[k], k, bytes=WORKSPACE)


def _moved_batches(graph: Graph, at: Sequence[int]) -> Iterator[Scratch]:
    """An operand of a batched product whose batch dimensions are not its first (heads after positions) is copied to
    another layout, once for all operators that read it so."""
    reading: dict[int, list[tuple[int, int]]] = {}
    for k, op in enumerate(graph.ops):
        if op.primitive == "dot_general" and op.inputs[0] >= 0 <= op.inputs[1]:
            alike = set(op.reads[0]) & set(op.reads[1]) & set(op.writes[0])
            batch = {loop for loop in alike if loop is not None and op.loops[loop].size > 1}
            for i in (0, 1):
                sizes = graph.values[op.inputs[i]].shape
                wide = [loop for loop, size in zip(op.reads[i], sizes, strict=True) if size > 1]
                if not batch.issuperset(wide[: len(batch)]):
                    reading.setdefault(op.inputs[i], []).append((k, i))
    for found in reading.values():
        moments = [at[k] for k, _ in found]
        yield Scratch(min(moments), max(moments), *found[0], 1.0)


def _places(graph: Graph, k: int, first: int, last: int) -> Scratch:
    """The position in its window of each result of a pool: an int32 for each dimension."""
    result = graph.values[graph.ops[k].inputs[0]]
    return Scratch(first, last, k, 0, 4 * len(result.shape) / result.dtype.itemsize)


class Held(NamedTuple):
    """Bytes of `value` on a device from moment `first` to `last`: itself or, if `copy`, a resharded copy or a partial
    result."""

    first: int
    last: int
    bytes: float
    value: int
    copy: bool


def held(graph: Graph, plan: Plan, topology: Topology, spans: Lives) -> Iterator[Held]:
    """Everything that needs memory."""

    def size(value: int, split: Split) -> int:
        return local_bytes(graph.values[value].shape, graph.values[value].dtype.itemsize, split, plan.mesh)

    lies = lying(graph, plan)
    only: dict[int, list[Copy]] = {}
    moving: dict[int, int] = {}
    for copy in copies(graph, plan, reading_times(graph) if plan.regather else {}):
        about = graph.values[copy.value].shape, graph.values[copy.value].dtype.itemsize
        only.setdefault(copy.value, []).append(copy)
        if reshard(*about, lies[copy.value], copy.split, plan.mesh, topology)[0]:
            first, last = spans.copy_span(copy.value, [k for k, _ in copy.readers])
            moving[copy.value] = max(first, moving.get(copy.value, 0))
            yield Held(first, last, size(copy.value, copy.split), copy.value, True)
    for value, (first, last) in spans.spans.items():
        split, others = lies[value], only.get(value, ())
        if others and graph.values[value].kind == "computed" and spans.read_by(value) == _readers(others):
            if value in moving:
                last = min(last, moving[value])
            elif len(others) == 1:
                split = others[0].split
        yield Held(first, last, size(value, split), value, False)
    for each in sums(graph, plan):
        parts = made(graph.ops[each.op], each.result, plan.ops[each.op].loops)
        more = in_parts(each.split, size(each.value, parts), size(each.value, each.split))
        yield Held(spans.begun(graph, each.op), spans.at[each.op], more, each.value, True)
    for found, needing in exchanged(graph, plan):
        at, value = [spans.at[k] for k in needing], graph.ops[needing[0]].inputs[0]
        yield Held(min(at), max(at), found.joined, value, True)
    for one in spans.scratch:
        value = graph.ops[one.op].inputs[one.operand]
        split = wanted(graph.ops[one.op], one.operand, plan.ops[one.op].loops)
        yield Held(one.first, one.last, one.bytes or one.times * size(value, split), value, True)


def _readers(found: Sequence[Copy]) -> set[int]:
    return {k for copy in found for k, _ in copy.readers}


def in_parts(split: Split, parts: float, left: float) -> float:
    """Bytes of the partial results `parts` of a value beyond the `left` ones, until they are reduced: if scattered
    along another dimension than the first, compilers copy them to another layout before."""
    return parts - left + (parts if parts > left and any(split[1:]) and not split[0] else 0.0)


def curve(graph: Graph, plan: Plan, topology: Topology, found: Lives | None = None) -> npt.NDArray[np.float64]:
    """Bytes that a device holds at each moment of the step under `plan`."""
    spans = found or lives(graph, hides(topology))
    change = np.zeros(spans.steps + 1)
    for one in held(graph, plan, topology, spans):
        change[one.first] += one.bytes
        change[one.last + 1] -= one.bytes
    return np.cumsum(change)[:-1]


def _stored(op: Op, readers: Sequence[Op], again: bool) -> bool:
    """`again`: even expensive operators are computed again rather than stored."""
    if op.primitive == "gather" and len(readers) == 1 and is_fused(readers[0]):
        return False  # a lookup runs inside the kernel that reads it
    if op.primitive == SLICE and all(map(is_fused, readers)):
        return False
    dear = op.primitive in _DEAR and len(readers) > 1 and not again
    return not op.follows or dear or not all(map(is_fused, readers))
