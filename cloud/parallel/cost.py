"""The cost model: α-β times of collectives, times of operators, and the collectives that reshard a value.

Collectives (Alpa, Zheng et al., OSDI 2022, appendix): on an axis of n devices, with B the bytes of the whole over that
axis, all-gather = reduce-scatter = α + β (n-1)/n B, all-reduce = α + 2 β (n-1)/n B, all-to-all = α + β (n-1)/n² B n/2.
Over several axes: level by level from the fastest links outwards, each level one ring; the slow links carry less by the
product of the sizes of the fast ones.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import permutations, product
from typing import Final, NamedTuple

from cloud.errors import PlanError
from cloud.parallel.graph import Split
from cloud.parallel.plan import Collective, Mesh
from cloud.parallel.topology import Device, Topology

__all__ = ["combine", "compute", "landing", "local_bytes", "reshard", "route", "seconds", "sent"]

Shape = tuple[int, ...]

TOGETHER = 30 << 20
"""The most bytes of independent collectives of one kind that the GPU compiler combines into one."""


def compute(flops: float, bytes: float, dtype: str, device: Device) -> float:
    """Seconds of one fused operator: the longer of computing and memory access, and at least one launch."""
    return max(device.launch, flops / device.peak(dtype), bytes / device.bandwidth)


# As functions of the number of devices: the bytes of the largest array that a device holds meanwhile, in multiples of
# the result's bytes, and the share of that array that each device sends.
_WHOLE: Final[Mapping[str, Callable[[int], float]]] = {
    "all-gather": lambda n: 1.0,
    "reduce-scatter": lambda n: n,
    "all-reduce": lambda n: 1.0,
    "all-to-all": lambda n: 1.0,
    "collective-permute": lambda n: 1.0,
}
_SENT: Final[Mapping[str, Callable[[int], float]]] = {
    "all-gather": lambda n: (n - 1) / n,
    "reduce-scatter": lambda n: (n - 1) / n,
    "all-reduce": lambda n: 2 * (n - 1) / n,
    "all-to-all": lambda n: (n - 1) / 2,
    "collective-permute": lambda n: 1.0,
}
_SHRINKS = ("all-gather", "reduce-scatter", "all-reduce")


class _Links:
    """The costs of a topology's levels as a hashable cache key (a `Topology` holds a table, which has no hash)."""

    def __init__(self, topology: Topology) -> None:
        self.levels = tuple((level.latency, level.bandwidth) for level in topology.levels)

    def __hash__(self) -> int:
        return hash(self.levels)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Links) and self.levels == other.levels


def seconds(kind: str, bytes: float, axes: Sequence[int], mesh: Mesh, topology: Topology, loose: bool = False) -> float:
    """Seconds of one collective with `bytes` of result on each device; 0 over axes of one device. `loose`: it is
    combined with others and shares their latency."""
    start, each = _line(kind, tuple(axes), mesh, _Links(topology))
    return start * (min(1.0, bytes / TOGETHER) if loose else 1.0) + each * bytes


def sent(kind: str, bytes: float, devices: int) -> float:
    """Bytes that each of the devices of one axis sends for a collective with `bytes` of result on each."""
    return _SENT[kind](devices) * _WHOLE[kind](devices) * bytes


@lru_cache(maxsize=1 << 12)
def _line(kind: str, axes: tuple[int, ...], mesh: Mesh, links: _Links) -> tuple[float, float]:
    """Seconds before the first byte, and seconds per byte of the result on one device."""
    sizes: dict[int, int] = {}
    for axis in axes:
        sizes[mesh.levels[axis]] = sizes.get(mesh.levels[axis], 1) * mesh.sizes[axis]
    start, each = 0.0, 0.0
    carried = _WHOLE[kind](math.prod(sizes.values()))
    for level in sorted(sizes, reverse=True):
        n, (latency, bandwidth) = sizes[level], links.levels[level]
        if n > 1:
            start += latency
            each += _SENT[kind](n) * carried / bandwidth
        if kind in _SHRINKS:
            carried /= n
    return start, each


def local_bytes(shape: Shape, itemsize: int, split: Split, mesh: Mesh) -> int:
    """Bytes of an array on one device."""
    return math.prod(shape) * itemsize // math.prod(mesh.sizes[axis] for axes in split for axis in axes)


def reshard(
    shape: Shape, itemsize: int, made: Split, wanted: Split, mesh: Mesh, topology: Topology, loose: bool = False
) -> tuple[tuple[Collective, ...], float]:  # fmt: skip
    """The collectives that reshard an array from one split to another by `route` (none on one device), and their
    seconds. `loose`: as for `seconds`."""
    whole = math.prod(shape) * itemsize
    steps = _steps(_pattern(shape, mesh), whole, made, wanted, mesh, _Links(topology))
    return _priced([(move.kind, whole // move.parts, move.axes) for move in steps if move.kind], mesh, topology, loose)


def route(shape: Shape, itemsize: int, made: Split, wanted: Split, mesh: Mesh, topology: Topology) -> tuple[Split, ...]:
    """The intermediate splits, `wanted` last, one constraint each, so that the compiler emits the collectives of
    `reshard`: without them it gathers whole arrays where a part suffices. Empty if there is nothing to do."""
    steps = _steps(_pattern(shape, mesh), math.prod(shape) * itemsize, made, wanted, mesh, _Links(topology))
    after = [move.kind for move in steps[1:]] + ["end"]  # consecutive slices are one
    return tuple(move.there for move, following in zip(steps, after, strict=False) if move.kind or following)


def combine(
    shape: Shape, itemsize: int, partial: Sequence[int], result: Split, mesh: Mesh, topology: Topology,
    reduce_scatter: bool, loose: bool = False,
) -> tuple[tuple[Collective, ...], float]:  # fmt: skip
    """The collectives that reduce partial results over the axes `partial` to the split `result`, by `landing`, and
    their seconds. `reduce_scatter`: whether the compiler emits one where it can: the GPU compiler does if all of the
    axes split one dimension of the result; else it emits an all-reduce and slices, as the CPU compiler always does.
    `loose`: as for `seconds`."""
    if not partial:
        return (), 0.0
    summed, axes = _summed(partial, result), tuple(sorted(partial))
    if reduce_scatter and any((*before, *axes) == after for before, after in zip(summed, result, strict=True)):
        return _priced([("reduce-scatter", local_bytes(shape, itemsize, result, mesh), axes)], mesh, topology, loose)
    first, start = _priced([("all-reduce", local_bytes(shape, itemsize, summed, mesh), axes)], mesh, topology, loose)
    then, time = reshard(shape, itemsize, summed, result, mesh, topology, loose)
    return (*first, *then), start + time


def landing(
    shape: Shape, itemsize: int, partial: Sequence[int], result: Split, mesh: Mesh, topology: Topology
) -> tuple[Split, ...]:  # fmt: skip
    """The splits to constrain partial results to, one after the other, `result` last, so that the compiler emits the
    collectives of `combine`: the first is the split directly after the sum. Constrained to `result` at once, it also
    spreads the sum over idle axes, or sums twice."""
    summed = _summed(partial, result)
    return summed, *route(shape, itemsize, summed, result, mesh, topology)


def _summed(partial: Sequence[int], result: Split) -> Split:
    """The split of partial results directly after the sum: as `result`, except for the axes that held the parts."""
    return tuple(tuple(axis for axis in axes if axis not in partial) for axes in result)


def _priced(
    steps: Iterable[tuple[str, int, tuple[int, ...]]], mesh: Mesh, topology: Topology, loose: bool
) -> tuple[tuple[Collective, ...], float]:  # fmt: skip
    found = tuple(
        Collective(kind, bytes, tuple(sorted(axes)), group)
        for kind, bytes, axes in steps if (group := _parts(mesh, axes)) > 1
    )  # fmt: skip
    return found, sum(seconds(one.kind, one.bytes, one.axes, mesh, topology, loose) for one in found)


class _Move(NamedTuple):
    """A move to `there` by one constraint: a collective `kind` (none if each device keeps a part of what it has) over
    `axes`, whose result is one of `parts` parts of the array."""

    there: Split
    kind: str
    axes: tuple[int, ...]
    parts: int


def _pattern(shape: Shape, mesh: Mesh) -> Shape:
    """All that splitting needs to know of a shape: the common divisor of each dimension and the number of devices."""
    devices = math.prod(mesh.sizes)
    return tuple(math.gcd(size, devices) for size in shape)


def _steps(pattern: Shape, whole: int, made: Split, wanted: Split, mesh: Mesh, links: _Links) -> list[_Move]:
    """The cheapest moves for `whole` bytes: searched at the nearest power of two, so that few searches serve arrays of
    all sizes."""
    if made == wanted:
        return []
    before = _search(pattern, round(math.log2(max(whole, 1))), made, mesh, links)
    if wanted not in before:
        raise PlanError(f"expected a split for the divisors {pattern} on a mesh {mesh.sizes}; got {wanted}")
    steps: list[_Move] = []
    while wanted != made:
        wanted, move = before[wanted]
        steps.append(move)
    return steps[::-1]


@lru_cache(maxsize=1 << 13)
def _search(pattern: Shape, scale: int, made: Split, mesh: Mesh, links: _Links) -> dict[Split, tuple[Split, _Move]]:
    """Dijkstra from `made` to every split, of an array of `2**scale` bytes: the last move to each split and its
    origin."""
    before: dict[Split, tuple[Split, _Move]] = {}
    first = _Move(made, "", (), 1)
    queue: list[tuple[float, int, int, Split, _Move]] = [(0.0, 0, 0, made, first)]
    best = {made: (0.0, 0)}
    while queue:
        time, length, _, origin, arrived = heapq.heappop(queue)
        here = arrived.there
        if here in before:
            continue
        before[here] = origin, arrived
        for move in _moves(pattern, here, mesh):
            start, each = _line(move.kind, move.axes, mesh, links) if move.kind else (0.0, 0.0)
            reached = time + start + each * 2.0**scale / move.parts, length + 1
            if move.there not in best or reached < best[move.there]:
                best[move.there] = reached
                heapq.heappush(queue, (*reached, len(best), here, move))
    return before


@lru_cache(maxsize=1 << 14)
def _moves(pattern: Shape, here: Split, mesh: Mesh) -> tuple[_Move, ...]:
    """The changes that one constraint can make. An axis is added to a dimension as its minor one: each device keeps its
    part, for free. The minor axes of a dimension are removed (all-gather) or move to another dimension (all-to-all).
    Devices exchange parts: each dimension keeps its number of parts (collective-permute)."""
    found: list[_Move] = []
    parts = _parts(mesh, sum(here, ()))

    def add(kind: str, axes: tuple[int, ...], pieces: int, changed: Mapping[int, tuple[int, ...]]) -> None:
        if all(pattern[dim] % _parts(mesh, axes) == 0 for dim, axes in changed.items()):
            there = tuple(changed.get(dim, axes) for dim, axes in enumerate(here))
            found.append(_Move(there, kind, axes, pieces))

    for axis in (axis for axis in range(len(mesh.sizes)) if all(axis not in axes for axes in here)):
        for dim, axes in enumerate(here):
            add("", (axis,), parts * mesh.sizes[axis], {dim: (*axes, axis)})
    for dim, axes in enumerate(here):
        for kept in range(len(axes)):
            gone = axes[kept:]
            add("all-gather", gone, parts // _parts(mesh, gone), {dim: axes[:kept]})
            for other in (other for other in range(len(here)) if other != dim):
                add("all-to-all", gone, parts, {dim: axes[:kept], other: (*here[other], *gone)})
    for traded in _trades(here, mesh):
        changed = {dim: new for dim, (old, new) in enumerate(zip(here, traded, strict=True)) if old != new}
        axes = tuple(sorted({axis for dim in changed for axis in (*here[dim], *traded[dim])}))
        add("collective-permute", axes, parts, changed)
    return tuple(found)


def _trades(here: Split, mesh: Mesh) -> Iterator[Split]:
    """Other splits with the same number of parts of each dimension."""
    axes = range(len(mesh.sizes))
    orders = [order for count in range(len(axes) + 1) for order in permutations(axes, count)]
    alike = [[order for order in orders if _parts(mesh, order) == _parts(mesh, now)] for now in here]
    for split in product(*alike):
        flat = sum(split, ())
        if split != here and len({*flat}) == len(flat):
            yield split


def _parts(mesh: Mesh, axes: Iterable[int]) -> int:
    return math.prod(mesh.sizes[axis] for axis in axes)
