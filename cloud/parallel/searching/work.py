"""Computing costs of a device: one kernel for a group's leader, and one fused kernel for all its followers."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence

from cloud.parallel.cost import compute, local_bytes
from cloud.parallel.graph import Graph, Op, Split, remembered
from cloud.parallel.plan import Assignment, Mesh
from cloud.parallel.searching.grouping.groups import Group
from cloud.parallel.searching.options import degree, made, wanted
from cloud.parallel.topology import Device
from cloud.parallel.tracing.bodies import SLICE, STACK, TIES

__all__ = ["counting", "work"]

_LOOKUPS = frozenset({"gather", "dynamic_slice", SLICE})
"""Operators that read no more of their first operand than they produce."""

_REDUCTIONS = "reduce_", "arg"


def work(graph: Graph, group: Group, chosen: Mapping[int, Assignment], stored: Container[int], mesh: Mesh,
         device: Device) -> float:  # fmt: skip
    """Seconds of the group's operators, split as in `chosen`. `stored`: values that are in memory; the others exist
    only inside kernels."""
    seconds = 0.0
    if group.leader >= 0 and graph.ops[group.leader].primitive not in TIES:
        op = graph.ops[group.leader]
        loops = chosen[group.leader].loops
        moved = sum(_moved(graph, op, loops, mesh))
        if op.primitive == SLICE and op.outputs[0] not in stored:  # read by the kernels that need it
            seconds += op.times * moved / 2 / device.bandwidth
        else:
            seconds += op.times * compute(op.flops / _parts(loops, mesh), moved, _dtype(graph, op), device)
    by_body: dict[int, list[int]] = {}
    for member in group.members:
        if graph.ops[member.op].primitive not in TIES:
            by_body.setdefault(graph.ops[member.op].inside, []).append(member.op)
    return seconds + sum(_fused(graph, ops, chosen, stored, mesh, device) for ops in by_body.values())


def counting(graph: Graph, device: Device) -> float:
    """Seconds in which loops count their trips, a kernel for each."""
    return sum(graph.trips(b) * device.launch for b, body in enumerate(graph.bodies) if body.bounded)


def _fused(graph: Graph, ops: Sequence[int], chosen: Mapping[int, Assignment], stored: Container[int], mesh: Mesh,
           device: Device) -> float:  # fmt: skip
    """Seconds of the kernel for all these operators of one body: of two if it has reductions, such as those of a
    softmax or a normalisation, and stores what it makes with their results."""
    flops, read, written = 0.0, dict[int, int](), dict[int, int]()
    for k in ops:
        op, loops = graph.ops[k], chosen[k].loops
        flops += op.flops / _parts(loops, mesh)
        for i, value in enumerate(op.inputs):
            if value in stored:
                read[value] = _bytes(graph, value, wanted(op, i, loops), mesh)
        for j, value in enumerate(op.outputs):
            if value in stored:
                written[value] = _bytes(graph, value, made(op, j, loops), mesh)
    if not written and not flops:
        return 0.0
    first, known = graph.ops[ops[0]], _twice(graph)
    if (key := (tuple(ops), tuple(read), tuple(written))) not in known:
        known[key] = _read_twice(graph, *key)
    moved = sum(read.values()) + sum(written.values()) + sum(read[value] for value in known[key])
    return first.times * compute(flops, moved, _dtype(graph, first), device)


_Key = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]


@remembered
def _twice(graph: Graph) -> dict[_Key, frozenset[int]]:
    """Results of `_read_twice`, which are the same for all ways to split the operators."""
    return {}


def _read_twice(graph: Graph, ops: Sequence[int], inputs: Sequence[int], results: Sequence[int]) -> frozenset[int]:
    """Of the stored `inputs` of fused operators, those that are read once for reductions and once more for stored
    `results` that need the reductions."""
    stored = {*inputs, *results}
    sources: dict[int, frozenset[int]] = {}
    reduced: set[int] = set()
    first, second = frozenset[int](), frozenset[int]()
    for k in sorted(ops):
        op = graph.ops[k]
        read = frozenset[int]().union(*(sources.get(v, {v}) for v in op.inputs if v in sources or v in stored))
        after = not reduced.isdisjoint(op.inputs)
        if op.primitive.startswith(_REDUCTIONS):
            first |= read
            sources.update(dict.fromkeys(op.outputs, frozenset()))
            reduced.update(op.outputs)
            continue
        if after and any(v in stored for v in op.outputs):
            second |= read
        sources.update((v, frozenset({v}) if v in stored else read) for v in op.outputs)
        reduced.update(op.outputs if after else ())
    return first & second


def _moved(graph: Graph, op: Op, loops: tuple[tuple[int, ...], ...], mesh: Mesh) -> list[float]:
    results = [float(_bytes(graph, v, made(op, j, loops), mesh)) for j, v in enumerate(op.outputs)]
    operands = [float(_bytes(graph, v, wanted(op, i, loops), mesh)) for i, v in enumerate(op.inputs) if v >= 0]
    if op.primitive == STACK:
        return [*operands, *operands]
    if op.primitive in _LOOKUPS:
        return [*results, *results, *operands[1:]]
    return [*results, *(operands[1:] if op.primitive.startswith("scatter") else operands)]


def _bytes(graph: Graph, value: int, split: Split, mesh: Mesh) -> int:
    return local_bytes(graph.values[value].shape, graph.values[value].dtype.itemsize, split, mesh)


def _parts(loops: tuple[tuple[int, ...], ...], mesh: Mesh) -> int:
    return degree([axis for axes in loops for axis in axes], mesh)


def _dtype(graph: Graph, op: Op) -> str:
    return str(graph.values[next((v for v in op.inputs if v >= 0), op.outputs[0])].dtype)
