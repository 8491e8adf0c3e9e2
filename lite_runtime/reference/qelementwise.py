"""Sums, differences and products of two quantised 8-bit tensors, broadcast as in NumPy, rounded as in XNNPACK.

Operands of all three: a, a_scale, a_zero_point, b, b_scale, b_zero_point, y_scale, y_zero_point; a, b and y have the
same type, int8 or uint8, each with one scale and one zero point. `activation` clamps the result as in QLinearConv.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lite_runtime.frozen import NamedTuple
from lite_runtime.graph import Array
from lite_runtime.reference.qlinear import bounds_of, requantize
from lite_runtime.reference.registry import define
from lite_runtime.reference.support import require, scalar

__all__ = ["RATIOS", "Multipliers", "multipliers"]

RATIOS = (2.0**-10, 2.0**8)
"""The larger of a_scale / y_scale and b_scale / y_scale must be at least the first and less than the second."""
_BITS = 20


class Multipliers(NamedTuple):
    """Ratios of scales as integers over a common 2**shift; the larger is in [2**20, 2**21], shift in [13, 30].

    With x at most 255 from its zero point, a sum of two products plus the half for rounding stays within
    2 * 255 * 2**21 + 2**29 < 2**31.
    """

    a: int
    b: int
    shift: int


def multipliers(a_scale: float, b_scale: float, y_scale: float) -> Multipliers | None:
    """The multipliers of a sum's operands (xnn_init_qs8_add_minmax_scalar_params); None outside `RATIOS`."""
    with np.errstate(all="ignore"):
        a, b = (float(np.float32(scale) / np.float32(y_scale)) for scale in (a_scale, b_scale))
    if not (a >= 0 and b >= 0 and RATIOS[0] <= max(a, b) < RATIOS[1]):
        return None
    shift = _BITS + 1 - int(np.frexp(max(a, b))[1])
    return Multipliers(round(a * 2**shift), round(b * 2**shift), shift)


class _Operand(NamedTuple):
    """An operand minus its zero point, in int64, and its scale."""

    centred: Array
    scale: np.float32


def _operand(x: Array, x_scale: Array, x_zero: Array, y_zero: Array) -> _Operand:
    require(x.dtype.name in ("int8", "uint8"), f"expected operands of int8 or uint8, got {x.dtype}")
    require(x.dtype == x_zero.dtype == y_zero.dtype, f"expected zero points of {x.dtype}, got {x_zero.dtype}")
    return _Operand(x.astype(np.int64) - int(scalar(x_zero, "zero_point")), np.float32(scalar(x_scale, "scale")))


def _sum(a: _Operand, b: _Operand, sign: int, y_scale: Array, y_zero: Array, activation: dict[str, Any]) -> Array:
    """clamp(((a * ma + sign * b * mb + half) >> shift) + y_zero_point): halves are rounded up."""
    step, zero = float(scalar(y_scale, "y_scale")), int(scalar(y_zero, "y_zero_point"))
    found = multipliers(float(a.scale), float(b.scale), step)
    given = f"{a.scale} and {b.scale} with y_scale {step}"
    require(found is not None, f"expected scales whose larger ratio to y_scale is in {RATIOS}, got {given}")
    assert found is not None
    total = a.centred * found.a + sign * b.centred * found.b + (1 << (found.shift - 1))
    low, high = bounds_of(y_zero.dtype, step, zero, **activation)
    return np.asarray(np.clip((total >> found.shift) + zero, low, high).astype(y_zero.dtype))


@define("QLinearAdd")
def _qlinear_add(
    a: Array,
    a_scale: Array,
    a_zero: Array,
    b: Array,
    b_scale: Array,
    b_zero: Array,
    y_scale: Array,
    y_zero: Array,
    /,
    **activation: Any,
) -> Array:
    """a + b by integer multipliers and one rounding shift (`_sum`)."""
    left, right = _operand(a, a_scale, a_zero, y_zero), _operand(b, b_scale, b_zero, y_zero)
    return _sum(left, right, 1, y_scale, y_zero, activation)


@define("QLinearSub")
def _qlinear_sub(
    a: Array,
    a_scale: Array,
    a_zero: Array,
    b: Array,
    b_scale: Array,
    b_zero: Array,
    y_scale: Array,
    y_zero: Array,
    /,
    **activation: Any,
) -> Array:
    """a - b, like QLinearAdd with b's multiplier negated."""
    left, right = _operand(a, a_scale, a_zero, y_zero), _operand(b, b_scale, b_zero, y_zero)
    return _sum(left, right, -1, y_scale, y_zero, activation)


@define("QLinearMul")
def _qlinear_mul(
    a: Array,
    a_scale: Array,
    a_zero: Array,
    b: Array,
    b_scale: Array,
    b_zero: Array,
    y_scale: Array,
    y_zero: Array,
    /,
    **activation: Any,
) -> Array:
    """clamp(round_half_even(float32(a * b) * m) + y_zero_point), m = float32(float32(a_scale * b_scale) / y_scale)."""
    left, right = _operand(a, a_scale, a_zero, y_zero), _operand(b, b_scale, b_zero, y_zero)
    step = np.float32(scalar(y_scale, "y_scale"))
    bounds = bounds_of(y_zero.dtype, float(step), int(scalar(y_zero, "y_zero_point")), **activation)
    return requantize(left.centred * right.centred, np.asarray(left.scale * right.scale / step), y_zero, *bounds)
