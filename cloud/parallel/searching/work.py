"""Computing costs of a device: one kernel for a group's leader, and one fused kernel for all its followers."""

from __future__ import annotations

from collections.abc import Container, Mapping

from cloud.parallel.cost import compute, local_bytes
from cloud.parallel.graph import Graph, Op, Split
from cloud.parallel.plan import Assignment, Mesh
from cloud.parallel.searching.grouping.groups import Group
from cloud.parallel.searching.options import degree, made, wanted
from cloud.parallel.topology import Device

__all__ = ["work"]

_LOOKUPS = frozenset({"gather", "dynamic_slice"})
"""Operators that read no more of their first operand than they produce."""


def work(graph: Graph, group: Group, chosen: Mapping[int, Assignment], stored: Container[int], mesh: Mesh,
         device: Device) -> float:  # fmt: skip
    """Seconds of the group's operators, split as in `chosen`. `stored`: values that are in memory; the others exist
    only inside kernels."""
    seconds = 0.0
    if group.leader >= 0:
        op = graph.ops[group.leader]
        loops = chosen[group.leader].loops
        moved = sum(_moved(graph, op, loops, mesh))
        seconds += op.times * compute(op.flops / _parts(loops, mesh), moved, _dtype(graph, op), device)
    flops, read, written = 0.0, {}, 0.0
    for member in group.members:
        op, loops = graph.ops[member.op], chosen[member.op].loops
        flops += op.flops / _parts(loops, mesh)
        for i, value in enumerate(op.inputs):
            if value in stored:
                read[value] = _bytes(graph, value, wanted(op, i, loops), mesh)
        for j, value in enumerate(op.outputs):
            if value in stored:
                written += _bytes(graph, value, made(op, j, loops), mesh)
    if group.members and (written or flops):
        first = graph.ops[group.members[0].op]
        seconds += first.times * compute(flops, sum(read.values()) + written, _dtype(graph, first), device)
    return seconds


def _moved(graph: Graph, op: Op, loops: tuple[tuple[int, ...], ...], mesh: Mesh) -> list[float]:
    results = [float(_bytes(graph, v, made(op, j, loops), mesh)) for j, v in enumerate(op.outputs)]
    operands = [float(_bytes(graph, v, wanted(op, i, loops), mesh)) for i, v in enumerate(op.inputs) if v >= 0]
    if op.primitive in _LOOKUPS:
        return [*results, *results, *operands[1:]]
    return [*results, *(operands[1:] if op.primitive.startswith("scatter") else operands)]


def _bytes(graph: Graph, value: int, split: Split, mesh: Mesh) -> int:
    return local_bytes(graph.values[value].shape, graph.values[value].dtype.itemsize, split, mesh)


def _parts(loops: tuple[tuple[int, ...], ...], mesh: Mesh) -> int:
    return degree([axis for axes in loops for axis in axes], mesh)


def _dtype(graph: Graph, op: Op) -> str:
    return str(graph.values[next((v for v in op.inputs if v >= 0), op.outputs[0])].dtype)
