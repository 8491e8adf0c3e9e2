"""Prediction of a plan's cost from what will be emitted: every collective with its reason, computing, memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

from cloud.parallel.cost import combine, local_bytes, reshard
from cloud.parallel.graph import Graph
from cloud.parallel.plan import Collective, Estimate, Plan
from cloud.parallel.searching.edges import exchanged
from cloud.parallel.searching.grouping.groups import grouped
from cloud.parallel.searching.grouping.merging import merged
from cloud.parallel.searching.holding.memory import Lives, curve, lives
from cloud.parallel.searching.holding.schedule import hides
from cloud.parallel.searching.walk import behind, copies, early, late, loose, lying, reading_times, sums
from cloud.parallel.searching.work import counting, work
from cloud.parallel.topology import Topology

__all__ = ["Moved", "moved", "predict"]


def predict(graph: Graph, plan: Plan, topology: Topology, *, reduce_scatter: bool = True) -> Estimate:
    """`reduce_scatter`: whether the compiler emits them (the GPU compiler does; the CPU compiler uses all-reduces)."""
    found = lives(graph, hides(topology))
    moves = moved(graph, plan, topology, reduce_scatter=reduce_scatter)
    collective = sum(one.seconds for one in moves)
    hidden = topology.overlap * sum(one.seconds for one in moves if one.hides)
    chosen = dict(enumerate(plan.ops))
    computing = sum(
        work(graph, group, chosen, found.spans, plan.mesh, topology.device) for group in grouped(graph)
    ) + counting(graph, topology.device)  # fmt: skip
    state = [(graph.values[v], split) for v, split in zip(graph.entering, plan.entering, strict=True)]
    held = sum(local_bytes(v.shape, v.dtype.itemsize, s, plan.mesh) for v, s in state if v.kind == "state")
    peak = int(curve(graph, plan, topology, found).max())
    return Estimate(computing, collective, collective - hidden, peak, held, tuple(one.collective for one in moves))


class Moved(NamedTuple):
    """A collective, its seconds, and whether computing can hide it. `op`: the operator whose partial results it
    combines (`adds`), or the first that needs `value` in another split or its neighbours' `edges`; -1 for the step's
    end."""

    collective: Collective
    seconds: float
    hides: bool
    value: int
    op: int
    adds: bool
    edges: bool = False


def moved(graph: Graph, plan: Plan, topology: Topology, *, reduce_scatter: bool = True) -> list[Moved]:
    """All communication between devices; `predict` sums it."""
    sums_ = _sums(graph, plan, topology, lives(graph, hides(topology)), reduce_scatter)
    return [*_copies(graph, plan, topology, reduce_scatter), *_edges(graph, plan, topology), *sums_]


def _copies(graph: Graph, plan: Plan, topology: Topology, reduce_scatter: bool) -> Iterator[Moved]:
    lies, ahead, free = lying(graph, plan), early(graph), loose(graph) if reduce_scatter else ()
    times: Mapping[tuple[int, int], int] = reading_times(graph) if plan.regather else {}
    for copy in copies(graph, plan, times):
        value = graph.values[copy.value]
        about = value.shape, value.dtype.itemsize, lies[copy.value], copy.split
        moves, seconds = reshard(*about, plan.mesh, topology, copy.value in free)
        first = next((k for k, _ in copy.readers if k >= 0), -1)
        reader = graph.ops[first] if first >= 0 else None
        name = value.name or f"value of {list(value.shape)}"
        why = f"{name} for {reader.primitive} at {reader.where}" if reader else f"{name} back to its sharding"
        trips = graph.times(copy.value)
        hides = copy.value in ahead and value.inside < 0
        for move in moves:
            one = replace(move, why=why, times=trips)
            yield Moved(one, trips * seconds / len(moves), hides, copy.value, first, False)


def _edges(graph: Graph, plan: Plan, topology: Topology) -> Iterator[Moved]:
    for found, (k, *_) in exchanged(graph, plan):
        op = graph.ops[k]
        value = op.inputs[0]
        why = f"edges of {graph.values[value].name or 'parts'} for {op.primitive} at {op.where}"
        time = op.times * found.seconds(plan.mesh, topology) / len(found.collectives)
        for one in found.collectives:
            yield Moved(replace(one, why=why, times=op.times), time, False, value, k, False, True)


def _sums(graph: Graph, plan: Plan, topology: Topology, found: Lives, reduce_scatter: bool) -> Iterator[Moved]:
    out, free, gone = late(graph), behind(graph), merged(graph, plan) if reduce_scatter else ()
    for each in sums(graph, plan):
        if (each.op, each.result) in gone:
            continue
        op, value = graph.ops[each.op], graph.values[each.value]
        about = value.shape, value.dtype.itemsize
        reading = [r for v in op.outputs for r in found.readers.get(v, ())]
        leads_out = all(out[r] for r in reading)
        one_of_many = all(free[r] for r in reading) and reduce_scatter
        moves, seconds = combine(*about, each.axes, each.split, plan.mesh, topology, reduce_scatter, one_of_many)
        for move in moves:
            why = f"partial sums of {op.primitive} at {op.where}"
            one = replace(move, why=why, times=op.times)
            yield Moved(one, op.times * seconds / len(moves), leads_out, each.value, each.op, True)
