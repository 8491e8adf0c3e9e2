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
from cloud.parallel.graph import Graph, Halo, Op, Split, Value, remembered
from cloud.parallel.plan import Collective, Mesh, Plan
from cloud.parallel.searching.options import degree, wanted
from cloud.parallel.topology import Topology

__all__ = ["Edges", "edges", "exchanged", "repeated"]


class Edges(NamedTuple):
    """For one run of an operator: the collectives for operand `operand`, and the bytes of its part with its edges."""

    operand: int
    collectives: tuple[Collective, ...]
    joined: int

    def seconds(self, mesh: Mesh, topology: Topology) -> float:
        """Of the collectives, and of copying the part."""
        moving = sum(seconds(one.kind, one.bytes, one.axes, mesh, topology) for one in self.collectives)
        return moving + max(topology.device.launch, 2 * self.joined / topology.device.bandwidth)


def edges(op: Op, values: Sequence[Value], loops: tuple[tuple[int, ...], ...], mesh: Mesh) -> list[Edges]:
    """What is exchanged for an operator whose loops are split in this way; nothing for operands that are not split."""
    found = []
    for halo in op.halos:
        split, value = wanted(op, halo.operand, loops), values[op.inputs[halo.operand]]
        axes = tuple(sorted(split[halo.dim]))
        if (parts := degree(axes, mesh)) == 1:
            continue
        part = [size // degree(over, mesh) for size, over in zip(value.shape, split, strict=True)]
        thin = prod(part) // part[halo.dim] * value.dtype.itemsize
        both = [wide for wide in (halo.before, halo.after) if wide]
        sent = tuple(Collective("collective-permute", wide * thin, axes, parts) for wide in both)
        found.append(Edges(halo.operand, sent, thin * (part[halo.dim] + sum(both))))
    return found


def exchanged(graph: Graph, plan: Plan) -> Iterator[tuple[Edges, list[int]]]:
    """All edges of a plan, and the operators that need them, in order."""
    needed: dict[tuple[int, Halo, Split, int], tuple[Edges, list[int]]] = {}
    for k, (op, assignment) in enumerate(zip(graph.ops, plan.ops, strict=True)):
        for one in edges(op, graph.values, assignment.loops, plan.mesh) if op.halos else ():
            split, halo = wanted(op, one.operand, assignment.loops), op.halos[0]
            key = op.inputs[one.operand], halo, split, op.inside
            needed.setdefault(key, (one, []))[1].append(k)
    return iter(needed.values())


@remembered
def repeated(graph: Graph) -> frozenset[int]:
    """Operators whose edges an earlier one has exchanged if both are split alike."""
    seen, found = set[tuple[int, Halo, int]](), set[int]()
    for k, op in enumerate(graph.ops):
        for halo in op.halos:
            key = op.inputs[halo.operand], halo, op.inside
            if key in seen:
                found.add(k)
            seen.add(key)
    return frozenset(found)
