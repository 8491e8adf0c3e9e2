"""Strided copies bound to the `copy` kernels: merges dimensions, widens elements, chooses the best kernel."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import TYPE_CHECKING, TypedDict

import numpy as np

from lite_runtime import steps
from lite_runtime.frozen import NamedTuple
from lite_runtime.graph import itemsize, numpy_dtype
from lite_runtime.ops._checks import dense_strides
from lite_runtime.ops.registry import Binder, NoKernel, Operand

__all__ = ["Dim", "copy_whole", "dense", "element_size", "emit_copy", "fill_operand", "is_window", "view_or_copy"]

SIZES = (1, 2, 4, 8)
FEW = (2, 3, 4)
"""Number of planes that are interleaved or deinterleaved without going through tiles."""
MAX_OUTER = 10
"""Number of counters of the kernels' odometer (nested loop over dimensions)."""
PIECE = 8192
"""Bytes of a long run that one worker copies at a time."""
BLOCKS = (64, 80, 96, 48)
"""Side lengths, in elements, of the block of a transpose that one worker takes at a time; the first one that leaves no
narrow remainder is chosen."""
TILE = 16
"""The greatest tile width of any target."""


class Dim(NamedTuple):
    """One dimension of a copy, in elements: extent, step in the source (0 repeats), step in the target."""

    extent: int
    source: int
    target: int


if TYPE_CHECKING:

    class _Frame(TypedDict):
        """Operands of a copy, and the byte offsets in them where it starts."""

        source: Operand
        target: Operand
        source_start: int
        target_start: int

else:
    _Frame = dict


def element_size(dtype: str) -> int:
    """Bytes of an element that kernels can copy; raises NoKernel for strings."""
    if dtype == "string":
        raise NoKernel("text has no bytes to move")
    return itemsize(dtype)


def dense(shape: Sequence[int]) -> list[Dim]:
    """The dimensions of a copy between two row-major tensors of this shape."""
    return [Dim(n, s, s) for n, s in zip(shape, dense_strides(shape), strict=True)]


def fill_operand(b: Binder, value: object, dtype: str) -> Operand:
    """A constant with one element."""
    return b.constant(np.full(1, value, numpy_dtype(dtype)))


def copy_whole(b: Binder, source: Operand, target: Operand) -> None:
    """Copy every element; the shapes may differ, the numbers of elements may not."""
    emit_copy(b, source, target, dense((source.size,)))


def view_or_copy(b: Binder, output: int, source: Operand, offset: int = 0) -> None:
    """Make an output a view of `source` from element `offset` on, or a copy if source is a constant."""
    target = b.outputs[output]
    assert target is not None
    if source.value is None:
        b.view(output, source, offset * itemsize(source.dtype))
    else:
        emit_copy(b, source, target, dense((target.size,)), offset)


def is_window(dims: Iterable[Dim]) -> bool:
    """Whether source and target have the same dense layout."""
    merged = _merge(dims)
    return not merged or (len(merged) == 1 and merged[0].source == 1 and merged[0].target == 1)


def emit_copy(
    b: Binder, source: Operand, target: Operand, dims: Iterable[Dim], source_at: int = 0, target_at: int = 0
) -> None:
    """Emit the copy of `dims` from element `source_at` of `source` to element `target_at` of `target`.

    The caller guarantees that every element is inside its operand and that no target element is written twice.
    """
    size = element_size(source.dtype)
    merged = _merge(dims)
    if any(d.extent == 0 for d in merged):
        return
    frame = _Frame(source=source, target=target, source_start=source_at * size, target_start=target_at * size)
    size, merged = _widen(size, [Dim(d.extent, d.source * size, d.target * size) for d in merged])
    if len(merged) > MAX_OUTER:
        raise NoKernel(f"a copy over {len(merged)} dimensions")
    pair = _turned(size, merged)
    if pair is not None:
        _emit_swap(b, frame, size, merged, *pair)
    elif size not in SIZES:
        _emit_segments(b, frame, "copy.rows", 1, [*merged, Dim(size, 1, 1)])
    else:
        _emit_segments(b, frame, f"copy.strided_{size}", size, _long_inside(merged) or [Dim(1, size, size)])


def _merge(dims: Iterable[Dim]) -> list[Dim]:
    """The same copy with as few dimensions as possible, ordered by descending step in the target."""
    kept = sorted((d for d in dims if d.extent != 1), key=lambda d: -abs(d.target))
    if any(d.extent == 0 for d in kept):
        return [Dim(0, 0, 0)]
    merged: list[Dim] = []
    for d in kept:
        if merged and merged[-1].source == d.extent * d.source and merged[-1].target == d.extent * d.target:
            merged[-1] = Dim(merged[-1].extent * d.extent, d.source, d.target)
        else:
            merged.append(d)
    return merged


def _widen(size: int, dims: list[Dim]) -> tuple[int, list[Dim]]:
    """Merge elements that are adjacent on both sides into one wider element; steps are in bytes from here on."""
    if dims and dims[-1].source == size and dims[-1].target == size:
        return size * dims[-1].extent, dims[:-1]
    return size, dims


def _turned(size: int, dims: Sequence[Dim]) -> tuple[int, int] | None:
    """The dimension dense in the target and the one dense in the source, if a transpose through tiles is worthwhile."""
    if size not in SIZES or len(dims) < 2 or dims[-1].target != size or dims[-1].source == 0:
        return None
    for i, d in enumerate(dims[:-1]):
        if d.source == size and min(d.extent, dims[-1].extent) >= 2 and d.extent * dims[-1].extent >= 16:
            return len(dims) - 1, i
    return None


def _emit_swap(
    b: Binder,
    frame: _Frame,
    size: int,
    dims: Sequence[Dim],
    a: int,
    c: int,
) -> None:
    """Dimension `a` is dense in the target, `c` in the source."""
    outer = [d for i, d in enumerate(dims) if i not in (a, c)]
    inner, across = dims[a], dims[c]
    if inner.extent in FEW and across.target == inner.extent * size:
        planes, join, extent, stride = inner.extent, 1, across.extent, inner.source
    elif across.extent in FEW and inner.source == across.extent * size:
        planes, join, extent, stride = across.extent, 0, inner.extent, across.target
    else:
        b.emit(
            steps.Swap(
                outer=len(outer),
                extent_a=inner.extent,
                extent_b=across.extent,
                stride_a=inner.source,
                stride_b=across.target,
                block_a=_block(inner.extent),
                block_b=_block(across.extent),
                dims=_extents(outer),
                **frame,
            ),
            kernel=f"copy.swap_{size}",
        )
        return
    b.emit(
        steps.Weave(
            outer=len(outer),
            planes=planes,
            join=join,
            extent=extent,
            stride=stride,
            block=PIECE // size,
            dims=_extents(outer),
            **frame,
        ),
        kernel=f"copy.weave_{size}",
    )


def _block(extent: int) -> int:
    if extent <= max(BLOCKS):
        return extent
    return next((block for block in BLOCKS if not 0 < extent % block < TILE), BLOCKS[0])


def _long_inside(dims: list[Dim]) -> list[Dim]:
    """Swap a very short innermost loop with the loop around it."""
    if len(dims) > 1 and dims[-1].extent < 8 and dims[-2].extent > 2 * dims[-1].extent:
        return [*dims[:-2], dims[-1], dims[-2]]
    return dims


def _emit_segments(b: Binder, frame: _Frame, kernel: str, size: int, dims: list[Dim]) -> None:
    *outer, run = dims
    piece = PIECE // size
    whole = 0
    if run.extent >= 2 * piece and prod(d.extent for d in outer) < 16:
        whole = run.extent
        outer.append(Dim(-(-whole // piece), piece * run.source, piece * run.target))
        run = Dim(piece, run.source, run.target)
    rows = outer.pop() if outer else Dim(1, 0, 0)
    b.emit(
        steps.Segments(
            outer=len(outer),
            rows=rows.extent,
            row_source=rows.source,
            row_target=rows.target,
            run=run.extent,
            whole=whole,
            run_source=run.source,
            run_target=run.target,
            dims=_extents(outer),
            **frame,
        ),
        kernel=kernel,
    )


def _extents(dims: Sequence[Dim]) -> tuple[steps.Extent, ...]:
    return tuple(steps.Extent(*dim) for dim in dims)
