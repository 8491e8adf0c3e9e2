"""Fixed-point arithmetic on int64: `reference/fixed_point.py` defines and explains it.

An argument of sigmoid and tanh has `bits` integer bits, so it is in units of 2**(bits - 15); results are in units of
2**-15. All branches are selections, so that loops vectorise.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from lite_runtime.kernels._math import select
from lite_runtime.native.simd import declare, device
from lite_runtime.reference.fixed_point import SIGMOIDS

__all__ = [
    "between_entries",
    "divided",
    "inverse_root",
    "inverse_root_shift",
    "rescale_away",
    "rescale_double",
    "rescale_twice",
    "rescale_up",
    "sigmoid",
    "table_sigmoid",
    "table_tanh",
    "tanh",
]

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


@device
def rescale_twice(x, multiplier, bits):
    """The same, both times halves up."""
    first = select(bits > _31, _31, bits)
    return rescale_up(rescale_up(x, multiplier, first), _1, bits - first)


# -- LiteRT's table of sigmoid ----------------------------------------------------------------------------------------


_I1, _I16, _I64 = ir.IntType(1), ir.IntType(16), ir.IntType(64)


@intrinsic
def _sigmoids(typing, k):
    """Number k of the table, which is part of the code."""

    def lower(context, builder, sig, args):
        name, kind = "msedge.sigmoids", ir.ArrayType(_I16, len(SIGMOIDS))
        table = builder.module.globals.get(name)
        if table is None:
            table = ir.GlobalVariable(builder.module, kind, name)
            table.initializer = ir.Constant(kind, [int(v) - (int(v) >> 15 << 16) for v in SIGMOIDS])
            table.global_constant, table.linkage = True, "internal"
        return builder.zext(builder.load(builder.gep(table, [_I64(0), args[0]]), typ=_I16), _I64)

    return types.int64(types.int64), lower


@device
def _between(a, bits, most):
    """sigmoid(a / 24 / 2**bits) for a >= 0 in units of 2**(-16 - bits), `most` beyond the table."""
    far = (a >> bits) >= np.int64(255)
    k = select(far, np.int64(254), a >> bits)
    low, high = _sigmoids(k), _sigmoids(k + _1)
    return select(far, most, (low << bits) + (a & ((_1 << bits) - _1)) * (high - low))


@device
def table_sigmoid(x):
    """sigmoid(x) of x in units of 2**-12 / 3."""
    y = _between(select(x < _0, -x, x), np.int64(9), _MOST << np.int64(10))
    return select(x < _0, np.int64((1 << 25) + 511) - y, y + np.int64(512)) >> np.int64(10)


@device
def table_tanh(x):
    """tanh(x) of x in units of 2**-12 / 3."""
    y = _between(select(x < _0, -x, x), np.int64(8), np.int64(((1 << 16) - 1) << 8))
    return select(x < _0, np.int64((1 << 23) + 127) - y, y - np.int64((1 << 23) - 128)) >> np.int64(8)


@device
def between_entries(value, entries):
    """The value of an interpolated table, whose entries are int16, at an int32: halves up; the slope wraps around."""
    k = np.uint64(np.int64(value >> np.int32(7)) + 256)
    low = np.int32(entries[k])
    slope = np.int32(np.int16(np.int32(entries[k + np.uint64(1)]) - low))
    return low + ((slope * (value & np.int32(127)) + np.int32(64)) >> np.int32(7))


# -- reciprocals and inverse roots of 32 bits -------------------------------------------------------------------------

_3, _30, _32 = np.int64(3), np.int64(30), np.int64(32)
_LEAST_WIDE, _MOST_WIDE = np.int64(-(1 << 31)), np.int64((1 << 31) - 1)
_ONE, _THREE_HALVES, _ROOT_HALF = np.int64(1 << 28), np.int64((1 << 28) + (1 << 27)), np.int64(1518500250)
_A_WIDE, _B_WIDE, _UNIT_WIDE = np.int64(1515870810), np.int64(-1010580540), np.int64(1 << 29)


@intrinsic
def _length(typing, x):
    """The bits of a number that is not negative, without leading zeros."""

    def lower(context, builder, sig, args):
        zeros = builder.call(declare(builder, "llvm.ctlz.i64", _I64, _I64, _I1), [args[0], _I1(0)])
        return builder.sub(_I64(64), zeros)

    return types.int64(types.int64), lower


@device
def _wide(a, b):
    """a * b / 2**31, halves up."""
    y = (a * b + (_1 << _30)) >> _31
    return select(y > _MOST_WIDE, _MOST_WIDE, y)


@device
def _raised(x, bits):
    """x * 2**bits, saturated to int32."""
    y = x << bits
    y = select(y > _MOST_WIDE, _MOST_WIDE, y)
    return select(y < _LEAST_WIDE, _LEAST_WIDE, y)


@device
def _reduced(x, shift):
    large = x >= _1 << np.int64(29)
    return select(large, x >> _2, x), shift + select(large, _1, _0)


@device
def _root_of(x):
    """(the number of which the root is taken, its shift): x times a power of four in [2**27, 2**29)."""
    x, shift = _reduced(*_reduced(select(x < _2, _2, x), np.int64(11)))
    pairs = ((_31 - _length(x)) >> _1) - _1
    return x << (pairs << _1), shift - pairs


@device
def _root_step(y, half):
    cube = _raised(_wide(_wide(y, y), y), np.int64(6))
    return _raised(_wide(y, _THREE_HALVES) - _wide(half, cube), _3)


@device
def inverse_root(x):
    """The multiplier of 1 / sqrt(x)."""
    reduced, shift = _root_of(x)
    half = ((reduced >> _1) + _1) >> _1
    y = _root_step(_root_step(_root_step(_root_step(_root_step(_ONE, half), half), half), half), half)
    y = _wide(y, _ROOT_HALF) << select(shift < _0, -shift, _0)
    return select(x > _1, y, _MOST_WIDE)


@device
def inverse_root_shift(x):
    """The shift of 1 / sqrt(x)."""
    shift = _root_of(x)[1]
    return _31 + select((x > _1) & (shift > _0), shift, _0)


@device
def divided(a, b, by):
    """a / b * multiplier / 2**shift, by = multiplier * 64 + shift."""
    a, b = select(b < _0, -a, a), select(b < _0, -b, b)
    b = select(b < _1, _1, b)
    length = _length(b)
    half = b << (_31 - length)
    x = _A_WIDE + _wide(half, _B_WIDE)
    x = x + _raised(_wide(x, _UNIT_WIDE - _wide(half, x)), _2)
    x = x + _raised(_wide(x, _UNIT_WIDE - _wide(half, x)), _2)
    x = x + _raised(_wide(x, _UNIT_WIDE - _wide(half, x)), _2)
    room = _31 - _length(select(a < _0, ~a, a))
    scaled = _wide(_wide(a << room, _raised(x, _1)), by >> np.int64(6))
    down = length - _1 + room + (by & np.int64(63)) - _31
    some = down & _31
    whole = select((down & np.int64(63)) < _32, (_1 << some) - _1, np.int64(-1))
    rest = (whole >> _1) + select(scaled < _0, _1, _0)
    return (scaled >> some) + select((scaled & whole) > rest, _1, _0)
