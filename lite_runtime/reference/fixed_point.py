"""Fixed-point arithmetic of LiteRT's integer kernels: rescaling by multiplier and shift, sigmoid and tanh of 16 bits.

Sigmoid and tanh are the series and Newton iterations of gemmlowp (fixedpoint/fixedpoint.h) on int16, where a number
with n integer bits is stored in units of 2**(n - 15), and each product is rounded to 15 bits; or LiteRT's table,
interpolated. Reciprocals and inverse roots are Newton iterations on int32.
"""

from __future__ import annotations

from collections.abc import Callable
from math import floor, frexp

import numpy as np

from lite_runtime.frozen import NamedTuple
from lite_runtime.graph import Array
from lite_runtime.reference.registry import define
from lite_runtime.reference.support import require

__all__ = [
    "INTEGER_BITS",
    "ROUNDINGS",
    "SIGMOIDS",
    "TABLE",
    "Units",
    "inverse_root",
    "looked_up",
    "multiplier_of",
    "rescaled",
    "rounded_shift",
    "sampled",
    "short_multiplier_of",
]

ROUNDINGS = ("UP", "AWAY", "DOUBLE", "TWICE")
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

    UP rounds halves up, AWAY rounds them away from zero. DOUBLE and TWICE round to multiples of 2**(shift - 31) first,
    halves up, then to whole numbers, halves away from zero (DOUBLE) or up (TWICE). Products are below 2**62, shifts in
    [0, 62].
    """
    require(rounding in ROUNDINGS, f"expected rounding to be one of {', '.join(ROUNDINGS)}, got {rounding!r}")
    require(y_zero.dtype.kind in "iu", f"expected an integer zero point, got {y_zero.dtype}")
    by = shift.astype(np.int64)
    require(bool(np.all((by >= 0) & (by <= 62))), "expected shifts in [0, 62]")
    value = x.astype(np.int64) - (0 if x_zero is None else x_zero.astype(np.int64))
    value = rescaled(value, multiplier.astype(np.int64), by, rounding) + y_zero.astype(np.int64)
    ends = np.iinfo(y_zero.dtype)
    return np.asarray(np.clip(value, ends.min, ends.max)).astype(y_zero.dtype)


def rescaled(x: Array, multiplier: Array | int, shift: Array | int, rounding: str = "DOUBLE") -> Array:
    """x * multiplier / 2**shift in int64, rounded as by Rescale."""
    by = np.asarray(shift, np.int64)
    first = {"UP": by, "AWAY": np.zeros_like(by)}.get(rounding, np.minimum(by, 31))
    whole = (x * np.asarray(multiplier, np.int64) + _half(first)) >> first
    return (whole + _half(by - first)) >> (by - first) if rounding == "TWICE" else rounded_shift(whole, by - first)


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


def _sigmoids() -> Array:
    """sigmoid(k / 24) for k = 0 to 255 in units of 2**-16, each less a sixteenth of the curvature between neighbours,
    which halves the greatest error of interpolation; the last one is the greatest number."""
    y = 1 / (1 + np.exp(-np.arange(256) / 24))
    bent = y * (1 - y) * (1 - 2 * y) / (16 * 24**2)
    return np.append(np.rint((y - bent) * (1 << 16)).astype(np.int64)[:-1], (1 << 16) - 1)


SIGMOIDS = _sigmoids()
"""LiteRT's table of sigmoid (kernels/internal/common.h)."""


def _interpolated(x: Array, bits: int, most: int) -> Array:
    """sigmoid(|x| / 24 / 2**bits) in units of 2**(-16 - bits): linear between the table's numbers, `most` beyond."""
    require(x.dtype == np.int32, f"expected int32, got {x.dtype}")
    a = np.abs(x.astype(np.int64))
    k = np.minimum(a >> bits, 254)
    inside = (SIGMOIDS[k] << bits) + (a & ((1 << bits) - 1)) * (SIGMOIDS[k + 1] - SIGMOIDS[k])
    return np.where(a >> bits >= 255, most, inside)


@define("FixedPointSigmoid")
def _sigmoid(x: Array, /, integer_bits: int = 3, interpolated: int = 0) -> Array:
    """sigmoid(x), the result in units of 2**-15. int16 x is in units of 2**(integer_bits - 15); interpolated: int32 x
    in units of 2**-12 / 3, as LiteRT computes it for 16 bits of any scale (reference/integer_ops/logistic.h)."""
    if interpolated:
        y = _interpolated(x, 9, _MOST << 10)
        return (np.where(x >= 0, y + 512, (1 << 25) - y + 511) >> 10).astype(np.int16)
    a = _checked(x, integer_bits)
    above = _narrow(_reciprocal(_exp(-np.abs(a), integer_bits)) << 1)
    return np.where(a == 0, 1 << 14, np.where(a > 0, above, _MOST - above)).astype(np.int16)


@define("FixedPointTanh")
def _tanh(x: Array, /, integer_bits: int = 3, interpolated: int = 0) -> Array:
    """tanh(x), likewise; interpolated: 2 * sigmoid(2 * x) - 1 (reference/integer_ops/tanh.h)."""
    if interpolated:
        y = _interpolated(x, 8, ((1 << 16) - 1) << 8)
        return (np.where(x >= 0, y - (1 << 23) + 128, (1 << 23) - y + 127) >> 8).astype(np.int16)
    a = _checked(x, integer_bits)
    above = _narrow((_reciprocal(_exp(-np.abs(a), integer_bits + 1)) - (1 << 13)) << 2)
    return np.where(a == 0, 0, np.where(a > 0, above, -above)).astype(np.int16)


@define("InterpolatedTable")
def _interpolated_table(x: Array, table: Array, /) -> Array:
    """A function of 16 bits from its values at every 128th number: linear between them, halves up, wrapped to 16 bits
    (LUTLookup in LiteRT's kernels/internal/common.h)."""
    require(x.dtype == table.dtype == np.int16, f"expected int16, got {x.dtype} and {table.dtype}")
    require(table.shape == (TABLE,), f"expected a table of shape ({TABLE},), got {table.shape}")
    return looked_up(x, table)


def looked_up(x: Array, table: Array) -> Array:
    """The interpolated table's values at x, int16."""
    k, rest = (x >> 7).astype(np.int64) + 256, (x & 127).astype(np.int64)
    slope = (table[k + 1] - table[k]).astype(np.int64)
    return np.asarray(table[k] + ((slope * rest + 64) >> 7)).astype(np.int16)


TABLE = 513
"""The entries of an interpolated table."""


def sampled(function: Callable[[Array], Array], x: Units, y: Units, kind: type = np.float32) -> Array:
    """The table of a function of real numbers, computed in `kind` as LUTPopulateInt16 does: each entry is moved by half
    of the error that interpolation has in the middle of the next interval. NaN gives 0."""
    first, last = (kind(x.scale) * kind(end - x.zero) for end in (_LEAST, _MOST))
    least, most = (kind(y.scale) * kind(end - y.zero) for end in (_LEAST, _MOST))
    step: np.floating = (last - first) / kind(TABLE - 1)
    count: Array = np.arange(TABLE - 1).astype(kind)
    scaling = kind(1 << 16) / (most - least)
    starts, ends = (function(first + (count + kind(k)) * step) * scaling for k in (0, 1))
    middles = _whole(function(first + count * step + step / kind(2)) * scaling)
    error = _whole((ends + _whole(starts)) / kind(2)) - middles
    entries = np.append(_whole(starts) - _whole(error / kind(2)), _whole(function(np.asarray([last])) * scaling))
    return np.asarray(np.nan_to_num(np.clip(entries, _LEAST, _MOST), nan=0)).astype(np.int16)


class Units(NamedTuple):
    """How integers represent numbers: (integer - zero) * scale."""

    scale: float
    zero: int = 0


def _whole(x: Array) -> Array:
    """Rounded, halves away from zero."""
    return np.asarray(np.trunc(x) + np.sign(x) * (np.abs(x - np.trunc(x)) >= 0.5)).astype(x.dtype)


# reciprocals and inverse roots of 32 bits


def _wide(a: Array, b: Array | int) -> Array:
    """a * b / 2**31, halves up, of int32."""
    return np.asarray(np.minimum((a * np.asarray(b, np.int64) + (1 << 30)) >> 31, _MOST_WIDE))


def _raised(x: Array, bits: int) -> Array:
    """x * 2**bits, saturated to int32."""
    return np.asarray(np.clip(x << bits, -_MOST_WIDE - 1, _MOST_WIDE))


def _length(x: Array) -> Array:
    """The bits of a number that is not negative, without leading zeros."""
    return np.asarray(np.frexp(x.astype(np.float64))[1], np.int64)


_MOST_WIDE = (1 << 31) - 1
_ONE, _THREE_HALVES, _ROOT_HALF = 1 << 28, (1 << 28) + (1 << 27), 1518500250
_A_WIDE, _B_WIDE = 1515870810, -1010580540  # 48/17 and -32/17 in units of 2**-29


def inverse_root(x: Array) -> tuple[Array, Array]:
    """1 / sqrt(x) of integers in [1, 2**31) as multiplier / 2**shift, by Newton's iteration on int32
    (GetInvSqrtQuantizedMultiplierExp in LiteRT's kernels/internal/common.h). Of others as of 1."""
    x = np.asarray(x, np.int64)
    shift, reduced = np.full(x.shape, 11), np.maximum(x, 2)
    for _ in range(2):
        large = reduced >= 1 << 29
        reduced, shift = np.where(large, reduced >> 2, reduced), shift + large
    pairs = (31 - _length(reduced)) // 2 - 1
    reduced, shift = reduced << (2 * pairs), shift - pairs
    half = rounded_shift(reduced >> 1, 1)
    y = np.full(x.shape, _ONE, np.int64)
    for _ in range(5):
        cube = _raised(_wide(_wide(y, y), y), 6)
        y = _raised(_wide(y, _THREE_HALVES) - _wide(half, cube), 3)
    y = _wide(y, _ROOT_HALF) << np.maximum(-shift, 0)
    return np.where(x > 1, y, _MOST_WIDE), np.where(x > 1, np.maximum(shift, 0), 0) + 31


@define("FixedPointRsqrt")
def _rsqrt(x: Array, /, *, part: str) -> Array:
    """The multiplier or the shift of `inverse_root`."""
    require(x.dtype == np.int32, f"expected int32, got {x.dtype}")
    return inverse_root(x)[("MULTIPLIER", "SHIFT").index(part)].astype(np.int32)


@define("FixedPointDiv")
def _div(a: Array, b: Array, /, *, multiplier: int, shift: int) -> Array:
    """a / b * multiplier / 2**shift (kernels/internal/reference/div.h): a and b of at most 17 bits, b not 0.

    b's reciprocal is Newton's on int32; the product with a is scaled to 31 bits, then multiplied, and shifted by at
    most 31: for more, LiteRT's result is what x86-64 makes of the shift, whose amount counts modulo 32.
    """
    wide, by = a.astype(np.int64), b.astype(np.int64)
    wide, by = np.where(by < 0, -wide, wide), np.maximum(np.abs(by), 1)
    length = _length(by)
    half = by << (31 - length)
    inverse = _A_WIDE + _wide(half, _B_WIDE)
    for _ in range(3):
        inverse = inverse + _raised(_wide(inverse, (1 << 29) - _wide(half, inverse)), 2)
    inverse = _raised(inverse, 1)
    room = 31 - _length(np.where(wide < 0, ~wide, wide))
    scaled = _wide(_wide(wide << room, inverse), multiplier)
    down = length - 1 + room + shift - 31
    whole = np.where(down & 63 < 32, (np.int64(1) << (down & 31)) - 1, -1)
    up = (scaled & whole) > (whole >> 1) + (scaled < 0)
    return np.asarray((scaled >> (down & 31)) + up).astype(np.int32)
