"""Fixed-point arithmetic of LiteRT's integer kernels: rescaling by multiplier and shift, sigmoid and tanh of 16 bits.

Sigmoid and tanh are the series and Newton iterations of gemmlowp (fixedpoint/fixedpoint.h) on int16, where a number
with n integer bits is stored in units of 2**(n - 15), and each product is rounded to 15 bits.
"""

from __future__ import annotations

from math import floor, frexp

import numpy as np

from lite_runtime.graph import Array
from lite_runtime.reference.registry import define
from lite_runtime.reference.support import require

__all__ = ["INTEGER_BITS", "ROUNDINGS", "multiplier_of", "rounded_shift", "short_multiplier_of"]

ROUNDINGS = ("UP", "AWAY", "DOUBLE")
"""Of a quotient to a whole number."""
INTEGER_BITS = range(7)
"""The integer bits that LiteRT's tanh may have."""
_EXP_AT = (25520, 19875, 12055, 4435, 600, 11, 0)
"""exp(-2**k) in units of 2**-15, for k = -2 to 4."""
_BITS = 31
_LEAST, _MOST = -(1 << 15), (1 << 15) - 1
_CONSTANT, _THIRD = 28918, 10923  # exp(-1/8) and 1/3 in units of 2**-15
_A, _B = 23130, -15420  # 48/17 and -32/17 in units of 2**-13


@define("Rescale")
def _rescale(
    x: Array,
    multiplier: Array,
    shift: Array,
    y_zero: Array,
    x_zero: Array | None = None,
    /,
    *,
    rounding: str,
) -> Array:
    """(x - x_zero_point) * multiplier / 2**shift + y_zero_point, saturated to the zero point's type.

    UP rounds halves up, AWAY rounds them away from zero. DOUBLE rounds to multiples of 2**(shift - 31) first, halves
    up, then to whole numbers, halves away from zero. Products are below 2**62, shifts in [0, 62].
    """
    require(rounding in ROUNDINGS, f"expected rounding to be one of {', '.join(ROUNDINGS)}, got {rounding!r}")
    require(y_zero.dtype.kind in "iu", f"expected an integer zero point, got {y_zero.dtype}")
    by = shift.astype(np.int64)
    require(bool(np.all((by >= 0) & (by <= 62))), "expected shifts in [0, 62]")
    value = x.astype(np.int64) - (0 if x_zero is None else x_zero.astype(np.int64))
    value = value * multiplier.astype(np.int64)
    first = {"UP": by, "AWAY": np.zeros_like(by), "DOUBLE": np.minimum(by, 31)}[rounding]
    value = (value + _half(first)) >> first
    value = rounded_shift(value, by - first) + y_zero.astype(np.int64)
    ends = np.iinfo(y_zero.dtype)
    return np.asarray(np.clip(value, ends.min, ends.max)).astype(y_zero.dtype)


def multiplier_of(real: float) -> tuple[int, int]:
    """A positive factor as a 31-bit multiplier / 2**shift, shift in [1, 62] (LiteRT's QuantizeMultiplier)."""
    fraction, exponent = frexp(real)
    multiplier = floor(fraction * 2.0**_BITS + 0.5)
    if multiplier == 1 << _BITS:
        multiplier, exponent = multiplier // 2, exponent + 1
    if exponent < -_BITS or real == 0:
        return 0, _BITS
    return (multiplier, _BITS - exponent) if exponent < _BITS else ((1 << _BITS) - 1, 1)


def short_multiplier_of(real: float) -> tuple[int, int]:
    """The same with 15 bits, as LiteRT multiplies the sums of 16-bit convolutions; factors are below 2**14."""
    multiplier, shift = multiplier_of(real)
    return min((multiplier + (1 << 15)) >> 16, _MOST), max(shift - 16, 1)


def _half(bits: Array) -> Array:
    return np.where(bits > 0, np.int64(1) << np.maximum(bits - 1, 0), 0)


def rounded_shift(x: Array, bits: Array | int) -> Array:
    """x / 2**bits, halves away from zero."""
    bits = np.asarray(bits)
    return np.asarray((x + _half(bits) + np.where((bits > 0) & (x < 0), -1, 0)) >> bits)


def _narrow(x: Array) -> Array:
    return np.asarray(np.clip(x, _LEAST, _MOST))


def _product(a: Array | int, b: Array | int) -> Array:
    """a * b / 2**15, halves up."""
    return np.asarray(np.minimum((np.asarray(a, np.int64) * b + (1 << 14)) >> 15, _MOST))


def _exp(a: Array, integer_bits: int) -> Array:
    """exp(a) for a <= 0: the series on the interval [-1/4, 0), times exp(-2**k) for each other bit of a."""
    fraction = 15 - integer_bits
    quarter = 1 << (fraction - 2)
    inner = (a & (quarter - 1)) - quarter
    x = (inner << integer_bits) + (1 << 12)
    square = _product(x, x)
    cube, fourth = _product(square, x), rounded_shift(_product(square, square), 2)
    series = rounded_shift(_product(fourth + cube, _THIRD) + square, 1)
    result = _narrow(_CONSTANT + _product(_CONSTANT, x + series))
    for k, factor in enumerate(_EXP_AT, -2):
        if integer_bits > k:
            result = np.where((inner - a) & (1 << (fraction + k)), _product(result, factor), result)
    if integer_bits > 5:
        result = np.where(a < -(1 << (20 - integer_bits)), 0, result)
    return np.where(a == 0, _MOST, result)


def _reciprocal(a: Array) -> Array:
    """2 / (1 + a) in units of 2**-13, for a in [0, 1), by Newton's iteration."""
    half = (a + _MOST + 1) >> 1
    x = _A + _product(half, _B)
    for _ in range(3):
        x = x + _narrow(_product(x, (1 << 13) - _product(half, x)) << 2)
    return x


def _checked(x: Array, integer_bits: int) -> Array:
    require(x.dtype == np.int16, f"expected int16, got {x.dtype}")
    require(integer_bits in INTEGER_BITS, f"expected 0 to 6 integer bits, got {integer_bits}")
    return x.astype(np.int64)


@define("FixedPointSigmoid")
def _sigmoid(x: Array, /, integer_bits: int = 3) -> Array:
    """sigmoid(x), x in units of 2**(integer_bits - 15), the result in units of 2**-15."""
    a = _checked(x, integer_bits)
    above = _narrow(_reciprocal(_exp(-np.abs(a), integer_bits)) << 1)
    return np.where(a == 0, 1 << 14, np.where(a > 0, above, _MOST - above)).astype(np.int16)


@define("FixedPointTanh")
def _tanh(x: Array, /, integer_bits: int = 3) -> Array:
    """tanh(x), x in units of 2**(integer_bits - 15), the result in units of 2**-15."""
    a = _checked(x, integer_bits)
    above = _narrow((_reciprocal(_exp(-np.abs(a), integer_bits + 1)) - (1 << 13)) << 2)
    return np.where(a == 0, 0, np.where(a > 0, above, -above)).astype(np.int16)
