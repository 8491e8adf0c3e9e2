"""When kernels run.

XLA orders a step's kernels to keep little in memory, which is close to the program's own order. On devices with a table
of latencies (Hopper and later) it then reorders them, from the last kernel to the first, so that computing can hide
collectives: of the kernels whose readers are all placed, it takes one whose readers were placed a while ago before one
that has just become ready, and the later one before the earlier. So the chain of a backward pass, in which each kernel
becomes ready only when the next one is placed, alternates with kernels that only the optimiser needs: the gradients of
weights are computed one per link of the chain, all of them near the end, and their operands are kept until then.
Kernels that only prepare something, and make no other kernel ready, are placed when there is nothing better. The body
of a loop is ordered by itself; around it, the loop is one kernel.
(`latency_hiding_scheduler.cc` of openxla/xla: "kLessStall", then "kOriginalOrder".)
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from math import prod
from typing import NamedTuple

from cloud.parallel.graph import Graph
from cloud.parallel.searching.walk import early, late
from cloud.parallel.topology import DEVICES, Topology

__all__ = ["Order", "hides", "in_place", "in_turns"]


class Order(NamedTuple):
    """`at[k]`: the moment operator k runs, or first runs if its readers' kernels compute it; `until[k]`: the last
    moment its operands are read, by it or by those kernels. `prepared[k]`: the moment of the kernel that prepares the
    buffer of operator k (`_prepared`). `steps`: the number of moments."""

    at: tuple[int, ...]
    until: tuple[int, ...]
    prepared: Mapping[int, int]
    steps: int


Readers = Mapping[int, Sequence[int]]
Moments = tuple[int, ...]


def hides(topology: Topology) -> bool:
    """Whether XLA reorders kernels for this device to hide collectives."""
    return topology.device == DEVICES["h100"][0]


def in_place(graph: Graph, readers: Readers, stored: Collection[int]) -> Order:
    """Program order; but operators that only lead to outputs of the step (the optimiser's) run as soon as their
    operands are computed, not after the whole backward pass."""
    ready, at = [0] * len(graph.values), []
    for k, (op, last) in enumerate(zip(graph.ops, late(graph), strict=True)):
        at.append(max((ready[v] for v in op.inputs if v >= 0), default=0) if last else k)
        for v in op.outputs:
            ready[v] = at[k]
    until = list(at)
    for k in range(len(at) - 1, -1, -1):
        inside = (r for v in graph.ops[k].outputs if v not in stored for r in readers.get(v, ()))
        until[k] = max((until[r] for r in inside), default=at[k])
    made = {v: at[k] for k, op in enumerate(graph.ops) for v in op.outputs}
    prepared = {k: min([*(at[j] for j in ops), *(made.get(v, 0) for v in values)])
                for ops, values in _prepared(graph) for k in ops}  # fmt: skip
    return Order(tuple(at), tuple(until), prepared, len(at))


def in_turns(graph: Graph, readers: Readers, stored: Collection[int]) -> Order:
    """Kernels placed from the last to the first; those that have just become ready after all others, later ones first;
    the optimiser's after everything."""
    home, needs, sources = _kernels(graph, stored)
    preparing = dict(enumerate(_prepared(graph), len(home)))
    for kernel, (ops, values) in preparing.items():
        needs[kernel] = {home[m] for v in values for m in sources(v)}
        for k in ops:
            needs[home[k]].add(kernel)
    rank = {k: -(k + len(home) * last) for k, last in enumerate(late(graph))} | dict.fromkeys(preparing, 1)
    inside = {k: graph.ops[k if k < len(home) else preparing[k][0][0]].inside for k in needs}
    loops = len(home) + len(preparing)  # the first loop's number among kernels
    rank |= {loops + b: 1 - body.stop for b, body in enumerate(graph.bodies)}
    levels: dict[int, dict[int, set[int]]] = {b: {} for b in range(-1, len(graph.bodies))}
    for b, body in enumerate(graph.bodies):
        levels[body.outer][loops + b] = set()
    for k in needs:
        levels[inside[k]][k] = set()
    for k, needed in needs.items():
        for m in needed:
            level, one, other = _beside(graph, inside[k], inside[m])
            reader, maker = (end if b < 0 else loops + b for end, b in ((k, one), (m, other)))
            if reader != maker:
                levels[level][reader].add(maker)

    def ordered(level: int) -> list[int]:
        found = _backwards(levels[level], rank)
        return [k for one in found for k in (ordered(one - loops) if one >= loops else [one])]

    slots = {k: slot for slot, k in enumerate(ordered(-1))}
    at, until = _placed(graph, readers, stored, [slots[k] if k >= 0 else -1 for k in home])
    prepared = {k: slots[kernel] for kernel, (ops, _) in preparing.items() for k in ops}
    return Order(at, until, prepared, len(needs))


def _beside(graph: Graph, one: int, other: int) -> tuple[int, int, int]:
    """The innermost body around both bodies, and which of its inner bodies holds each; -1 if it is the body itself."""
    around = {-1}
    level = one
    while level >= 0:
        around.add(level)
        level = graph.bodies[level].outer
    level = other
    while level not in around:
        level = graph.bodies[level].outer
    return level, graph.around(one, level), graph.around(other, level)


def _backwards(needs: Mapping[int, Collection[int]], rank: Mapping[int, int]) -> list[int]:
    """The kernels in order. `needs[k]`: those that kernel k reads; of several, the one of the lowest rank is taken."""
    waiting = Counter(m for needed in needs.values() for m in needed)
    settled = [(rank[k], k) for k in needs if not waiting[k]]
    heapq.heapify(settled)
    fresh: list[tuple[int, int]] = []
    found: list[int] = []
    while settled or fresh:
        k = (heapq.heappop(settled) if settled else fresh.pop(fresh.index(min(fresh))))[1]
        found.append(k)
        for one in fresh:
            heapq.heappush(settled, one)
        waiting.subtract(needs[k])
        fresh = [(rank[m], m) for m in needs[k] if not waiting[m]]
    return found[::-1]


def _placed(graph: Graph, readers: Readers, stored: Collection[int], slots: Sequence[int]) -> tuple[Moments, Moments]:
    """`at` and `until` of `Order`. `slots[k]`: the moment of operator k's own kernel, -1 if it runs inside its readers'
    kernels."""
    at, until = list(slots), list(slots)
    for k in range(len(slots) - 1, -1, -1):
        op = graph.ops[k]
        reading = [r for v in op.outputs for r in readers.get(v, ()) if slots[k] < 0 or v not in stored]
        until[k] = max([slots[k], *(until[r] for r in reading)], default=0)
        if slots[k] < 0:
            at[k] = min((at[r] for r in reading), default=0)
            until[k] = max(until[k], at[k])
    return tuple(at), tuple(until)


def _prepared(graph: Graph) -> list[tuple[list[int], list[int]]]:
    """Kernels that only prepare: (operators that use their results, values that they read). The buffers that operators
    scatter into start as zeros (or another number): similar ones are filled by one kernel. And the backward pass of a
    pool needs the position of each result in its window, which is computed from the pool's operand."""
    plain = {v for op in graph.ops if op.primitive == "broadcast_in_dim" and op.inputs[0] < 0 for v in op.outputs}
    alike: dict[tuple[tuple[int, ...], str, int], list[int]] = {}
    pools = []
    for k, op in enumerate(graph.ops):
        if op.primitive.startswith("scatter") and op.inputs[0] in plain:
            value = graph.values[op.outputs[0]]
            alike.setdefault((value.shape, str(value.dtype), op.inside), []).append(k)
        elif op.primitive == "select_and_scatter_add":
            pools.append(([k], [op.inputs[1]]))
    return [*((ops, list[int]()) for ops in alike.values()), *pools]


Kernels = tuple[list[int], dict[int, set[int]], Callable[[int], set[int]]]


def _kernels(graph: Graph, stored: Collection[int]) -> Kernels:
    """The kernel of each operator, identified by one of its operators, -1 if it runs inside its readers' kernels; the
    kernels that each kernel needs; and the operators that must run before a value exists. A reduction shares the kernel
    of the elementwise operator that made its operand, else that of the other reductions of the same operand; a
    reduction over nothing is not a kernel. Values computed from state alone by operators without cost are always
    ready."""
    ahead, leading = early(graph), late(graph)
    maker = {v: k for k, op in enumerate(graph.ops) for v in op.outputs}
    home: list[int] = []
    sources: list[set[int]] = []
    beside: dict[int, int] = {}
    needs: dict[int, set[int]] = {}
    for k, op in enumerate(graph.ops):
        made = [maker[v] for v in op.inputs if v in maker]
        found = {m for m in made if home[m] >= 0}.union(*(sources[m] for m in made if home[m] < 0))
        sources.append(found)
        if not any(v in stored and v not in ahead for v in op.outputs):
            home.append(-1)
            continue
        last = max(found, default=-1)
        beside_it = last >= 0 and graph.ops[last].inside == op.inside
        if op.primitive.startswith("reduce_") and beside_it and not leading[k]:
            joins = graph.ops[last].follows or _size(graph, op.inputs[0]) == _size(graph, op.outputs[0])
            home.append(home[last] if joins else beside.setdefault(last, k))
        else:
            home.append(k)
        needs.setdefault(home[k], set()).update({home[m] for m in found} - {home[k]})

    def behind(value: int) -> set[int]:
        k = maker.get(value, -1)
        return set() if k < 0 else {k} if home[k] >= 0 else sources[k]

    return home, needs, behind


def _size(graph: Graph, value: int) -> int:
    return prod(graph.values[value].shape) if value >= 0 else 1
