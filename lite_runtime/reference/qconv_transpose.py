"""The transposed convolution of quantised images."""

from __future__ import annotations

from typing import Any

import numpy as np

from lite_runtime.graph import Array
from lite_runtime.reference.convolution import spread
from lite_runtime.reference.movement import to_channels_first, to_channels_last
from lite_runtime.reference.qlinear import bounds_of, clamped, requantize
from lite_runtime.reference.registry import define
from lite_runtime.reference.support import require, scalar

__all__: list[str] = []


def _per_channel(values: Array, rank: int) -> Array:
    """One value, or one per output channel, shaped to broadcast against (n, channels, space…)."""
    return values.reshape(1, -1, *(1,) * (rank - 2))


@define("QLinearConvTranspose")
def _qlinear_conv_transpose(
    x: Array,
    x_scale: Array,
    x_zero_point: Array,
    w: Array,
    w_scale: Array,
    w_zero_point: Array,
    y_scale: Array | None = None,
    y_zero_point: Array | None = None,
    b: Array | None = None,
    /,
    layout: str = "NCHW",
    group: int = 1,
    activation: str = "",
    activation_min: float = -np.inf,
    activation_max: float = np.inf,
    **window: Any,
) -> Array:
    """QLinearConv's operands and rounding applied to ConvTranspose: W is (channels, m / group, kernel…), its scale and
    zero point are one or m numbers.

    Sums are int32, or int64 if x is int16. With y_scale and y_zero_point: clamp(round_half_even(float32(sum + B) *
    float32(float32(x_scale * w_scale) / y_scale)) + y_zero_point). Without: act(float32(sum) * float32(x_scale *
    w_scale) + B) in float32; x may then have one scale and zero point per image.
    """
    x, rank = to_channels_first(x, layout), x.ndim
    m = group * w.shape[1]
    for name, values in (("w_scale", w_scale), ("w_zero_point", w_zero_point)):
        require(values.size in (1, m), f"expected 1 or {m} numbers in {name}, got shape {values.shape}")
    images = (-1, *(1,) * (rank - 1))
    centred = x.astype(np.float64) - x_zero_point.astype(np.float64).reshape(images)
    zeros = np.broadcast_to(w_zero_point.reshape(-1), (m,)).reshape(group, 1, -1)
    taps = w.reshape(group, -1, *w.shape[1:]) - zeros.astype(np.float64).reshape(*zeros.shape, *(1,) * (rank - 2))
    sums = spread(centred, taps.reshape(w.shape), group=group, **window).astype(np.int64)
    held = np.int64 if x.dtype.itemsize > 1 else np.int32
    scale = x_scale.astype(np.float32).reshape(images) * _per_channel(w_scale.astype(np.float32), rank)
    ends = {"activation_min": activation_min, "activation_max": activation_max} if activation == "Clip" else {}
    if y_scale is None or y_zero_point is None:
        require(y_scale is None and y_zero_point is None, "expected both y_scale and y_zero_point, or neither")
        y = sums.astype(held).astype(np.float32) * scale
        y = y if b is None else y + _per_channel(b, rank)
        return to_channels_last(clamped(y, activation, **ends), layout)
    if b is not None:
        sums = sums + _per_channel(b.astype(np.int64), rank)
    step, zero = np.float32(scalar(y_scale, "y_scale")), int(scalar(y_zero_point, "y_zero_point"))
    low, high = bounds_of(y_zero_point.dtype, float(step), zero, activation, **ends)
    return to_channels_last(requantize(sums.astype(held), scale / step, y_zero_point, low, high), layout)
