"""Possible distributions of a topology's devices to stages, their replicas, and the devices of each replica."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from cloud.parallel.plan import Mesh
from cloud.parallel.topology import Topology

__all__ = ["Layout", "divisors", "layouts"]

Axes = tuple[int, ...]


@dataclass(frozen=True)
class Layout:
    """`axes`: the axes of `mesh` for stages, replicas, and the devices of one replica."""

    stages: int
    replicas: int
    tensor: int
    mesh: Mesh
    axes: tuple[Axes, Axes, Axes]

    def over(self, kinds: Axes) -> Axes:
        """Mesh axes for an axis of pipeline parallelism: 0 the stages, 1 the replicas, 2 a replica's devices."""
        return tuple(axis for kind in kinds for axis in self.axes[kind])


def layouts(topology: Topology) -> Iterator[Layout]:
    """Layouts with two stages or more. Stages communicate over the slowest links, because they send least; a replica's
    devices over the fastest ones."""
    *outer, inner = (level.size for level in topology.levels)
    for tensor in divisors(inner):
        for stages in divisors(topology.size // tensor)[1:]:
            split, left = [], stages
            for size in (*outer, inner // tensor):
                along = math.gcd(size, left)
                split.append((along, size // along))
                left //= along
            if left == 1 and _is_major(split):
                yield _layout(split, tensor)


def divisors(number: int) -> list[int]:
    """Ascending."""
    return [n for n in range(1, number + 1) if number % n == 0]


def _layout(split: list[tuple[int, int]], tensor: int) -> Layout:
    factors = [(n, level, kind) for level, pair in enumerate(split) for kind, n in enumerate(pair)]
    factors = [factor for factor in (*factors, (tensor, len(split) - 1, 2)) if factor[0] > 1]
    mesh = Mesh(tuple(n for n, _, _ in factors), tuple(level for _, level, _ in factors))
    across, among, within = (tuple(a for a, (_, _, k) in enumerate(factors) if k == kind) for kind in range(3))
    stages, replicas = (math.prod(pair[kind] for pair in split) for kind in (0, 1))
    return Layout(stages, replicas, tensor, mesh, (across, among, within))


def _is_major(split: list[tuple[int, int]]) -> bool:
    """Whether all of the stages' axes come before all of the replicas'."""
    filled = [level for level, (_, rest) in enumerate(split) if rest > 1]
    return all(along == 1 for along, _ in split[filled[0] + 1 :]) if filled else True
