"""Softmax on bytes: exponentials from a table of integers, so that their sum is exact in any order."""

from __future__ import annotations

from math import exp

import numpy as np

from lite_runtime.graph import Array
from lite_runtime.reference.registry import define
from lite_runtime.reference.support import axis_of, require, scalar

__all__ = ["exponentials"]

_ONE = 1 << 30
"""The integer that represents 1: an int64 holds the sum of 2**32 of them."""


def exponentials(x_scale: float) -> Array:
    """round(exp(-d * x_scale) * 2**30), half to even, for the distances d = 0..255 below the largest element: int64."""
    return np.array([round(exp(-d * x_scale) * _ONE) if d else _ONE for d in range(256)], np.int64)


@define("QLinearSoftmax")
def _qlinear_softmax(
    x: Array, x_scale: Array, x_zero_point: Array, y_scale: Array, y_zero_point: Array, /, axis: int = -1
) -> Array:
    """Softmax along `axis` of x (int8 or uint8) as a quantised y (int8 or uint8): with d the distance to the largest
    element, e[d] / sum(e) in float32, divided by y_scale, rounded half to even, plus the zero point, saturated.

    x's zero point shifts all elements equally, so it has no effect.
    """
    for name, array in (("x", x), ("y_zero_point", y_zero_point)):
        require(array.dtype.name in ("int8", "uint8"), f"expected {name} of int8 or uint8, got {array.dtype}")
    step = float(scalar(x_scale, "x_scale"))
    require(0 < step < np.inf, f"expected x_scale to be positive and finite, got {step}")
    axis = axis_of(axis, x.ndim)
    if x.size == 0:
        return np.zeros(x.shape, y_zero_point.dtype)
    wide = x.astype(np.int64)
    powers = exponentials(step)[wide.max(axis, keepdims=True) - wide]
    shares = powers.astype(np.float32) / powers.sum(axis, keepdims=True).astype(np.float32)
    moved = np.rint(shares / np.float32(scalar(y_scale, "y_scale"))) + np.float32(scalar(y_zero_point, "y_zero_point"))
    ends = np.iinfo(y_zero_point.dtype)
    return np.asarray(np.clip(np.nan_to_num(moved, nan=ends.min), ends.min, ends.max).astype(y_zero_point.dtype))
