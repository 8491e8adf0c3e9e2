"""All the ways to split one operator, or one value, over a mesh."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from math import prod

from cloud.parallel.graph import Op, Split
from cloud.parallel.plan import Assignment, Mesh

__all__ = ["assignments", "degree", "fits", "made", "partial_axes", "splits", "wanted"]

Loops = tuple[tuple[int, ...], ...]


def degree(axes: Sequence[int], mesh: Mesh) -> int:
    """The number of parts into which `axes` together split."""
    return prod(mesh.sizes[axis] for axis in axes)


def fits(split: Split, shape: Sequence[int], mesh: Mesh) -> bool:
    """Whether every dimension is divisible by its number of parts."""
    return all(size % degree(axes, mesh) == 0 for axes, size in zip(split, shape, strict=True))


def wanted(op: Op, operand: int, loops: Loops) -> Split:
    """The split that `op`, with its loops split in this way, needs for its operand."""
    return tuple(() if loop is None else loops[loop] for loop in op.reads[operand])


def made(op: Op, result: int, loops: Loops) -> Split:
    """The split of the result before partial results are combined."""
    return tuple(() if loop is None else loops[loop] for loop in op.writes[result])


def partial_axes(op: Op, result: int, loops: Loops) -> tuple[int, ...]:
    """The axes over which devices hold partial results, ascending."""
    split = (loops[k] for k, loop in enumerate(op.loops) if loop.reduces and k not in op.writes[result])
    return tuple(sorted(axis for axes in split for axis in axes))


def splits(shape: Sequence[int], mesh: Mesh) -> Iterator[Split]:
    """Every Split of a value whose dimensions divide evenly, the whole one first."""
    return _shared(shape, mesh)


def assignments(op: Op, shapes: Sequence[Sequence[int]], mesh: Mesh) -> Iterator[Assignment]:
    """Every way to give each axis to one loop or to none, times every way to combine partial results: whole, or with
    some of the axes scattered over dimensions that divide. `shapes`: of the results."""
    for loops in _shared([loop.size for loop in op.loops], mesh):
        ways = [list(_results(op, j, shape, loops, mesh)) for j, shape in enumerate(shapes)]
        for results in product(*ways):
            yield Assignment(loops, results)


def _shared(sizes: Sequence[int], mesh: Mesh) -> Iterator[Loops]:
    """Every distribution of the mesh axes over items of these `sizes`; axes of one item in mesh order."""
    for owners in product(range(-1, len(sizes)), repeat=len(mesh.sizes)):
        shared = tuple(tuple(a for a, owner in enumerate(owners) if owner == k) for k in range(len(sizes)))
        if fits(shared, sizes, mesh):
            yield shared


def _results(op: Op, j: int, shape: Sequence[int], loops: Loops, mesh: Mesh) -> Iterator[Split]:
    """The possible final splits of result j. A scattered axis must be minor in its dimension: with the axes of a
    dimension in mesh order, it has to come after those that already split it."""
    base, partial = made(op, j, loops), partial_axes(op, j, loops)
    for owners in product(range(-1, len(shape)), repeat=len(partial)):
        given = list(zip(partial, owners, strict=True))
        if any(d >= 0 and base[d] and base[d][-1] > axis for axis, d in given):
            continue
        split = tuple(axes + tuple(axis for axis, owner in given if owner == d) for d, axes in enumerate(base))
        if fits(split, shape, mesh):
            yield split
