"""The edges of parts that devices exchange where a window reaches beyond its device's part: a halo exchange.

The edge of each neighbour comes by a collective-permute and is joined with the part, which is a copy of it. What
several operators need alike (a convolution, and the gradient of its kernel) compilers make once and keep from the first
to the last of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import NamedTuple

from cloud.parallel.cost import seconds
from cloud.parallel.graph import Graph, Op, Split, Value, remembered
from cloud.parallel.plan import Collective, Mesh, Plan
from cloud.parallel.searching.options import degree, wanted
from cloud.parallel.topology import Topology

__all__ = ["Edges", "edges", "exchanged", "repeated"]


class Edges(NamedTuple):
    """For one run of an operator: the collectives, and the bytes of the first operand's part with its edges."""

    collectives: tuple[Collective, ...]
    joined: int

    def seconds(self, mesh: Mesh, topology: Topology) -> float:
        """Of the collectives, and of copying the part."""
        moving = sum(seconds(one.kind, one.bytes, one.axes, mesh, topology) for one in self.collectives)
        return moving + max(topology.device.launch, 2 * self.joined / topology.device.bandwidth)


def edges(op: Op, values: Sequence[Value], loops: tuple[tuple[int, ...], ...], mesh: Mesh) -> Edges | None:
    """What is exchanged for an operator whose loops are split in this way."""
    if not any(op.edges) or not loops[op.slides]:
        return None
    split, value, dim = wanted(op, 0, loops), values[op.inputs[0]], op.reads[0].index(op.slides)
    part = [size // degree(over, mesh) for size, over in zip(value.shape, split, strict=True)]
    thin = prod(part) // part[dim] * value.dtype.itemsize
    axes = tuple(sorted(split[dim]))
    sent = [Collective("collective-permute", wide * thin, axes, degree(axes, mesh)) for wide in op.edges if wide]
    return Edges(tuple(sent), thin * (part[dim] + sum(op.edges)))


def exchanged(graph: Graph, plan: Plan) -> Iterator[tuple[Edges, list[int]]]:
    """All edges of a plan, and the operators that need them, in order."""
    needed: dict[tuple[int, Split, tuple[int, int], int], tuple[Edges, list[int]]] = {}
    for k, (op, assignment) in enumerate(zip(graph.ops, plan.ops, strict=True)):
        if (found := edges(op, graph.values, assignment.loops, plan.mesh)) is not None:
            key = op.inputs[0], wanted(op, 0, assignment.loops), op.edges, op.inside
            needed.setdefault(key, (found, []))[1].append(k)
    return iter(needed.values())


@remembered
def repeated(graph: Graph) -> frozenset[int]:
    """Operators whose edges an earlier one has exchanged if both are split alike."""
    seen, found = set[tuple[int, int, tuple[int, int], int]](), set[int]()
    for k, op in enumerate(graph.ops):
        if any(op.edges):
            key = op.inputs[0], op.reads[0].index(op.slides), op.edges, op.inside
            if key in seen:
                found.add(k)
            seen.add(key)
    return frozenset(found)
