"""Softmax on quantised numbers.

Of bytes, the exponentials come from a table of integers, so that their sum is exact in any order; or, as LiteRT has
them, of float32, added one after the other. Of 16 bits, as LiteRT has them, they and the sum's reciprocal are
interpolated in tables.
"""

from __future__ import annotations

from functools import cache
from math import exp

import numpy as np

from lite_runtime.graph import Array
from lite_runtime.reference.fixed_point import Units, looked_up, multiplier_of, rescaled, sampled
from lite_runtime.reference.registry import define
from lite_runtime.reference.support import axis_of, require, scalar

__all__ = ["exponentials", "real_exponentials", "short_scaling", "short_tables"]

_ONE = 1 << 30
"""The integer that represents 1: an int64 holds the sum of 2**32 of them."""
_SHORT = (1 << 15) - 1
_SPAN = 65535.0


def exponentials(x_scale: float) -> Array:
    """round(exp(-d * x_scale) * 2**30), half to even, for the distances d = 0..255 below the largest element: int64."""
    return np.array([round(exp(-d * x_scale) * _ONE) if d else _ONE for d in range(256)], np.int64)


def real_exponentials(x_scale: float) -> Array:
    """exp(-d * x_scale) in float32, for the distances d = 0..255."""
    return np.exp((-np.float32(x_scale) * np.arange(256, dtype=np.float32)).astype(np.float64)).astype(np.float32)


@cache
def short_tables() -> tuple[Array, Array]:
    """exp on [-10, 0] and 1 / (1 + x) on [0, 1], as interpolated tables."""
    result = Units(2 / _SPAN)
    powers = sampled(np.exp, Units(10 / _SPAN, _SHORT), result, np.float64)
    return powers, sampled(lambda x: 1 / (1 + x), Units(1 / _SPAN, -_SHORT - 1), result, np.float64)


def short_scaling(x_scale: float) -> tuple[int, int]:
    """The multiplier and the shift that make distances of 16-bit numbers those of the table of exp."""
    return multiplier_of(float(np.float32(x_scale)) / (10 / _SPAN))


@define("QLinearSoftmax")
def _qlinear_softmax(
    x: Array,
    x_scale: Array,
    x_zero_point: Array,
    y_scale: Array,
    y_zero_point: Array,
    /,
    axis: int = -1,
    rounding: str = "",
) -> Array:
    """Softmax along `axis` of x (int8, uint8) as a quantised y: with d the distance to the largest element,
    e[d] / sum(e) in float32, divided by y_scale, rounded half to even, plus the zero point, saturated.

    `rounding` ORDERED: `_ordered`; int16 x: `_short`. x's zero point shifts all elements equally, so it has no effect.
    """
    allowed = ("int8", "uint8", "int16")
    for name, array in (("x", x), ("y_zero_point", y_zero_point)):
        require(array.dtype.name in allowed, f"expected {name} of int8, uint8 or int16, got {array.dtype}")
    step = float(scalar(x_scale, "x_scale"))
    require(0 < step < np.inf, f"expected x_scale to be positive and finite, got {step}")
    axis = axis_of(axis, x.ndim)
    if x.size == 0:
        return np.zeros(x.shape, y_zero_point.dtype)
    wide = x.astype(np.int64)
    below = wide.max(axis, keepdims=True) - wide
    if x.dtype == np.int16:
        require(y_zero_point.dtype == np.int16, f"expected y_zero_point of int16 as x, got {y_zero_point.dtype}")
        return _short(below, step, axis)
    y_step, y_zero = np.float32(scalar(y_scale, "y_scale")), np.float32(scalar(y_zero_point, "y_zero_point"))
    if rounding == "ORDERED":
        moved = _ordered(below, step, y_step, axis, y_zero_point.dtype) + y_zero
    else:
        require(y_zero_point.dtype != np.int16, "expected y_zero_point of int8 or uint8, got int16")
        powers = exponentials(step)[below]
        shares = powers.astype(np.float32) / powers.sum(axis, keepdims=True).astype(np.float32)
        moved = np.rint(shares / y_step) + y_zero
    ends = np.iinfo(y_zero_point.dtype)
    return np.asarray(np.clip(np.nan_to_num(moved, nan=ends.min), ends.min, ends.max).astype(y_zero_point.dtype))


def _ordered(below: Array, x_step: float, y_step: np.float32, axis: int, dtype: np.dtype) -> Array:
    """LiteRT's kernel (optimized_ops.h): e[d] * (1 / (sum * y_scale)), the sum in the order of memory; rounded halves
    away from zero, of uint8 by adding a half and truncating, without a zero point."""
    powers = real_exponentials(x_step)[below]
    total = np.take(np.add.accumulate(powers, axis, np.float32), [-1], axis)
    shares = np.minimum(powers * (np.float32(1) / (total * y_step)), np.float32(1 << 20))
    if dtype == np.uint8:
        return np.asarray(np.trunc(shares + np.float32(0.5)))
    return np.asarray(np.trunc(shares) + (shares - np.trunc(shares) >= 0.5))


def _short(below: Array, x_step: float, axis: int) -> Array:
    """LiteRT's kernel for 16 bits (reference/softmax.h), in units of 2**-15."""
    powers, reciprocals = short_tables()
    scaled = rescaled(-below, *short_scaling(x_step)) + _SHORT
    exps = looked_up(np.maximum(scaled, -_SHORT - 1).astype(np.int16), powers).astype(np.int64)
    total = exps.sum(axis, keepdims=True)
    length = np.frexp(total.astype(np.float64))[1].astype(np.int64)
    shifted = ((total << (31 - length)) + (1 << 13)) >> 14
    centred = np.minimum(shifted - ((1 << 15) + (1 << 16)), _SHORT)
    inverse = looked_up(centred.astype(np.int16), reciprocals).astype(np.int64)
    down = length - 1
    shares = (exps * inverse + (np.int64(1) << (down - 1))) >> down
    return np.asarray(np.clip(shares, 0, _SHORT)).astype(np.int16)
