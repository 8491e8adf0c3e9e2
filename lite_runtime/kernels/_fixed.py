"""Fixed-point arithmetic on int64: `reference/fixed_point.py` defines and explains it.

An argument of sigmoid and tanh has `bits` integer bits, so it is in units of 2**(bits - 15); results are in units of
2**-15. All branches are selections, so that loops vectorise.
"""

from __future__ import annotations

import numpy as np

from lite_runtime.kernels._math import select
from lite_runtime.native.simd import device

__all__ = ["rescale_away", "rescale_double", "rescale_up", "sigmoid", "tanh"]

_0, _1, _2, _15, _31 = (np.int64(n) for n in (0, 1, 2, 15, 31))
_LEAST, _MOST, _HALF, _UNIT = (np.int64(n) for n in (-(1 << 15), (1 << 15) - 1, 1 << 14, 1 << 13))
_EIGHTH, _CONSTANT, _THIRD = np.int64(1 << 12), np.int64(28918), np.int64(10923)
_A, _B = np.int64(23130), np.int64(-15420)


@device
def _narrow(x):
    x = select(x > _MOST, _MOST, x)
    return select(x < _LEAST, _LEAST, x)


@device
def _product(a, b):
    """a * b / 2**15, halves up."""
    y = (a * b + _HALF) >> _15
    return select(y > _MOST, _MOST, y)


@device
def _shifted(x, half, bits):
    """x / 2**bits, halves away from zero; half is 2**(bits - 1)."""
    return (x + half + (x >> np.int64(63))) >> bits


@device
def _times(result, rest, bits, fraction, k, factor):
    """result * exp(-2**k) if the argument has that bit."""
    bit = (rest >> (fraction + np.int64(k))) & _1
    return select((bits > np.int64(k)) & (bit != _0), _product(result, np.int64(factor)), result)


@device
def _exp(a, bits):
    """exp(a) for a <= 0: the series on [-1/4, 0), times exp(-2**k) for each other bit of a."""
    fraction = _15 - bits
    quarter = _1 << (fraction - _2)
    inner = (a & (quarter - _1)) - quarter
    x = (inner << bits) + _EIGHTH
    square = _product(x, x)
    fourth = _shifted(_product(square, square), _2, _2)
    series = _shifted(_product(fourth + _product(square, x), _THIRD) + square, _1, _1)
    result = _narrow(_CONSTANT + _product(_CONSTANT, x + series))
    rest = inner - a
    result = _times(result, rest, bits, fraction, -2, 25520)
    result = _times(result, rest, bits, fraction, -1, 19875)
    result = _times(result, rest, bits, fraction, 0, 12055)
    result = _times(result, rest, bits, fraction, 1, 4435)
    result = _times(result, rest, bits, fraction, 2, 600)
    result = _times(result, rest, bits, fraction, 3, 11)
    result = _times(result, rest, bits, fraction, 4, 0)
    far = a < -(_1 << (np.int64(20) - bits))
    result = select((bits > np.int64(5)) & far, _0, result)
    return select(a == _0, _MOST, result)


@device
def _newton(x, half):
    return x + _narrow(_product(x, _UNIT - _product(half, x)) << _2)


@device
def _reciprocal(a):
    """2 / (1 + a) in units of 2**-13."""
    half = (a + _MOST + _1) >> _1
    x = _A + _product(half, _B)
    return _newton(_newton(_newton(x, half), half), half)


@device
def sigmoid(x, bits):
    """sigmoid(x)."""
    above = _narrow(_reciprocal(_exp(select(x < _0, x, -x), bits)) << _1)
    return select(x == _0, _HALF, select(x > _0, above, _MOST - above))


@device
def tanh(x, bits):
    """tanh(x)."""
    above = _narrow((_reciprocal(_exp(select(x < _0, x, -x), bits + _1)) - _UNIT) << _2)
    return select(x == _0, _0, select(x > _0, above, -above))


@device
def _half_of(bits):
    return select(bits > _0, _1 << select(bits > _0, bits - _1, _0), _0)


@device
def rescale_up(x, multiplier, bits):
    """x * multiplier / 2**bits, halves up."""
    return (x * multiplier + _half_of(bits)) >> bits


@device
def rescale_away(x, multiplier, bits):
    """The same, halves away from zero."""
    y = x * multiplier
    return (y + _half_of(bits) + select(bits > _0, y >> np.int64(63), _0)) >> bits


@device
def rescale_double(x, multiplier, bits):
    """The same to multiples of 2**(bits - 31), halves up, then to whole numbers, halves away from zero."""
    first = select(bits > _31, _31, bits)
    return rescale_away(rescale_up(x, multiplier, first), _1, bits - first)
