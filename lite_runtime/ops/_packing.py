"""Weights in the order in which kernels read them: packed while planning if constant, otherwise by a step."""

from __future__ import annotations

from math import prod

import numpy as np

from lite_runtime import steps
from lite_runtime.frozen import NamedTuple
from lite_runtime.graph import Array
from lite_runtime.ops._panels import packed_size, panels
from lite_runtime.ops.registry import Binder, Operand

__all__ = [
    "Filters",
    "dense_filters",
    "depthwise_filters",
    "pack_filters",
    "reversed_filters",
    "spread_filters",
]


class Filters(NamedTuple):
    """Matrices (outer * inner, columns), one per group, stored in weights of any shape: sizes, and the distance in
    elements between neighbours along each. Column c is at (c // run) * run_step + (c % run) * column_step."""

    groups: int
    columns: int
    outer: int
    inner: int
    group_step: int
    column_step: int
    outer_step: int
    inner_step: int
    run: int
    run_step: int = 0
    start: int = 0
    """Element index of the first weight."""

    def matrices(self, w: Array) -> Array:
        """(groups, outer * inner, columns) of the weights `w`."""
        runs = self.columns // self.run
        view = np.lib.stride_tricks.as_strided(
            w.ravel()[self.start :],
            (self.groups, self.outer, self.inner, runs, self.run),
            [4 * s for s in (self.group_step, self.outer_step, self.inner_step, self.run_step, self.column_step)],
            writeable=False,
        )
        return view.reshape(self.groups, self.outer * self.inner, self.columns)


def dense_filters(shape: tuple[int, ...], group: int) -> Filters:
    """A convolution's weights (out, in / group, *window): rows are (tap, channel in), columns are channels out."""
    taps = prod(shape[2:])
    out, deep = shape[0] // group, shape[1]
    return Filters(group, out, taps, deep, out * deep * taps, deep * taps, 1, taps, out)


def reversed_filters(shape: tuple[int, ...], group: int) -> Filters:
    """The same weights for the transposed convolution: rows (tap in reverse order, channel out), columns channels
    in."""
    taps = prod(shape[2:])
    out, deep = shape[0] // group, shape[1]
    return Filters(group, deep, taps, out, out * deep * taps, taps, -1, deep * taps, deep, start=taps - 1)


def depthwise_filters(channels: int, window: tuple[int, int], *, reverse: bool = False) -> Filters:
    """Weights (channels, 1, height, width): rows are taps, column by column of the window; `reverse`: in reverse
    order."""
    high, wide = window
    forward = Filters(1, channels, wide, high, 0, high * wide, 1, wide, channels)
    return forward._replace(outer_step=-1, inner_step=-wide, start=high * wide - 1) if reverse else forward


def spread_filters(shape: tuple[int, ...], group: int) -> Filters:
    """Weights (out, in / group, *window): rows are channels out, columns are (tap, channel in)."""
    out, deep, taps = shape[0] // group, shape[1], prod(shape[2:])
    return Filters(group, taps * deep, 1, out, out * deep * taps, taps, 0, deep * taps, deep, 1)


def pack_filters(b: Binder, w: Operand, filters: Filters, vectors: int) -> Operand:
    """The weights in panels of `vectors` vectors, group by group."""
    if w.value is not None:

        def pack(value: Array) -> Array:
            return np.concatenate([panels(matrix, b.target.shape, vectors) for matrix in filters.matrices(value)])

        return b.packed(w, f"filters {b.lanes} {vectors} {' '.join(map(str, filters))}", pack)
    f = filters
    size = packed_size(f.outer * f.inner, f.columns, b.lanes)
    packed = b.scratch("float32", (f.groups * size,))
    b.emit(
        steps.Panels(
            w=w,
            packed=packed,
            groups=f.groups,
            columns=f.columns,
            outer=f.outer,
            inner=f.inner,
            vectors=vectors,
            start=4 * f.start,
            group_step=4 * f.group_step,
            column_step=4 * f.column_step,
            run_step=4 * f.run_step,
            run=f.run,
            outer_step=4 * f.outer_step,
            inner_step=4 * f.inner_step,
            packed_step=4 * size,
        )
    )
    return packed
