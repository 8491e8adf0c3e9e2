"""Means of quantised tensors: exact integer sums, converted to the result's scale."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from lite_runtime.graph import Array
from lite_runtime.reference.movement import to_channels_first, to_channels_last
from lite_runtime.reference.quantize import integer_range
from lite_runtime.reference.registry import define
from lite_runtime.reference.support import axes_of, require, scalar
from lite_runtime.reference.windows import resolve

__all__: list[str] = []


class _Scales:
    """The scalars that every mean here takes, and values derived from them."""

    def __init__(self, x: Array, x_scale: Array, x_zero: Array, y_scale: Array, y_zero: Array) -> None:
        require(x_zero.dtype == x.dtype, f"expected x_zero_point of dtype {x.dtype}, got {x_zero.dtype}")
        require(y_zero.dtype.kind in "iu", f"expected an integer y_zero_point, got {y_zero.dtype}")
        scales = np.float32(scalar(x_scale, "x_scale")), np.float32(scalar(y_scale, "y_scale"))
        self.zero, self._y_zero, self._dtype = (
            int(scalar(x_zero, "x_zero_point")),
            int(scalar(y_zero, "y_zero_point")),
            y_zero.dtype,
        )
        self._ratio = scales[0] / scales[1]
        self._same = bool(scales[0] == scales[1]) and self.zero == self._y_zero and x.dtype == y_zero.dtype

    def mean(self, total: Array, count: Array | int) -> Array:
        """Sums of `count` elements as the result's integers, in XNNPACK's float32 steps.

        With m = (x_scale / y_scale) * (1 / count) and z = count * x_zero_point:
        round_half_even(total * m + (y_zero_point - z * m)).
        """
        factor = (self._ratio * (np.float32(1) / np.asarray(count, np.float32))).astype(np.float32)
        shift = np.float32(self._y_zero) - np.asarray(np.asarray(count) * self.zero, np.float32) * factor
        return self._saturated(np.rint(total.astype(np.float32) * factor + shift))

    def pooled(self, total: Array, count: Array | int) -> Array:
        """Like `mean`; if x and y have equal parameters, exactly total / count with halves away from zero, as in
        TFLite. ONNX leaves the rounding of such halves open."""
        if not self._same:
            return self.mean(total, count)
        by = np.maximum(count, 1)
        rounded = np.sign(total) * ((2 * np.abs(total) + by) // (2 * by))
        return self._saturated(np.where(np.asarray(count) > 0, rounded, np.nan))

    def _saturated(self, y: Array) -> Array:
        low, high = integer_range(self._dtype)
        return np.asarray(np.clip(np.nan_to_num(y.astype(np.float64), nan=low), low, high).astype(self._dtype))


@define("QLinearAveragePool")
def _qlinear_average_pool(
    x: Array,
    x_scale: Array,
    x_zero_point: Array,
    y_scale: Array,
    y_zero_point: Array,
    /,
    kernel_shape: Sequence[int],
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    count_include_pad: int = 0,
    dilations: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
    layout: str = "NCHW",
) -> Array:
    """AveragePool on integers, rounded as in `_Scales.pooled`: the padding counts as real zeros if
    `count_include_pad`, otherwise not at all; a window without counted elements gives the least value."""
    scales = _Scales(x, x_scale, x_zero_point, y_scale, y_zero_point)
    x = to_channels_first(x, layout)
    window = resolve(
        x.shape[2:],
        kernel_shape,
        strides=strides,
        dilations=dilations,
        pads=pads,
        auto_pad=auto_pad,
        ceil_mode=ceil_mode,
    )
    padded = window.pad(x.astype(np.int64) - scales.zero, 0)
    counted = window.pad(np.ones(x.shape[2:], np.int64), 0)
    if count_include_pad:  # positions beyond the declared padding, reached through ceil_mode, are still not counted
        sizes = zip(window.begin, x.shape[2:], window.end, strict=True)
        counted[tuple(slice(0, b + n + e) for b, n, e in sizes)] = 1
    total = np.zeros((*x.shape[:2], *window.out), np.int64)
    count = np.zeros(window.out, np.int64)
    for _, cut in window.taps():
        total += padded[cut]
        count += counted[cut]
    return to_channels_last(scales.pooled(total + count * scales.zero, count), layout)


@define("QLinearGlobalAveragePool")
def _qlinear_global_average_pool(
    x: Array,
    x_scale: Array,
    x_zero_point: Array,
    y_scale: Array,
    y_zero_point: Array,
    /,
    layout: str = "NCHW",
) -> Array:
    """QLinearAveragePool over all spatial axes, which are kept at size 1."""
    first = 2 if layout == "NCHW" else 1
    axes = tuple(range(first, first + x.ndim - 2))
    scales = _Scales(x, x_scale, x_zero_point, y_scale, y_zero_point)
    total = np.asarray(np.sum(x, axis=axes, keepdims=True, dtype=np.int64))
    return scales.pooled(total, prod(x.shape[a] for a in axes))


@define("QLinearReduceMean")
def _qlinear_reduce_mean(
    x: Array,
    x_scale: Array,
    x_zero_point: Array,
    y_scale: Array,
    y_zero_point: Array,
    axes: Array | None = None,
    /,
    keepdims: int = 1,
    noop_with_empty_axes: int = 0,
) -> Array:
    """ReduceMean on integers, rounded as in `_Scales.mean`; over no axes it converts x to the result's scale."""
    scales = _Scales(x, x_scale, x_zero_point, y_scale, y_zero_point)
    if axes is None or axes.size == 0:
        axes = np.zeros(0, np.int64) if noop_with_empty_axes else None
    where = axes_of(axes, x.ndim)
    total = np.sum(x, axis=where, keepdims=bool(keepdims), dtype=np.int64)
    return scales.mean(np.asarray(total), prod(x.shape[a] for a in where))
