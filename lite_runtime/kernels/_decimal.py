"""Decimal numbers in text: digits to integers, eight at a time, and to the float64 nearest to them.

The table of powers that callers pass, in int64 words: [REALS] 10^0 … 10^22 as the bits of float64, [TENS] 10^0 … 10^19,
[FIVES] two words for each q from LEAST to MOST: the first 128 bits of 5^q, high word first, truncated; but rounded up
for -27 <= q < 0, where the product for a multiple of 5^-q must not be too small.
"""

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from lite_runtime.native.simd import declare, exact, i64p, u8p

REALS, TENS, FIVES, LEAST, MOST = 0, 23, 43, -342, 308
EXACT = 1 << 53
"""Integers up to this one are exact in float64."""
_I64, _I128 = ir.IntType(64), ir.IntType(128)


def on_words(emit, arity):
    """An intrinsic that takes int64 values and returns one."""
    if arity == 1:

        @intrinsic
        def call(typing, a):
            return types.int64(types.int64), lambda context, builder, sig, args: emit(builder, *args)

    else:

        @intrinsic
        def call(typing, a, b):
            return types.int64(types.int64, types.int64), lambda context, builder, sig, args: emit(builder, *args)

    return call


def _emit_high(builder, a, b):
    product = builder.mul(builder.zext(a, _I128), builder.zext(b, _I128))
    return builder.trunc(builder.lshr(product, _I128(64)), _I64)


def _emit_count(name):
    def emit(builder, a):
        return builder.call(declare(builder, f"llvm.{name}.i64", _I64, _I64, ir.IntType(1)), [a, ir.IntType(1)(0)])

    return emit


high = on_words(_emit_high, 2)
"""The upper word of the product of two unsigned words; `*` gives the lower one."""
down = on_words(lambda builder, a, b: builder.lshr(a, b), 2)
"""a >> b for an unsigned a."""
below = on_words(lambda builder, a, b: builder.zext(builder.icmp_unsigned("<", a, b), _I64), 2)
"""a < b for unsigned words, as 0 or 1."""
leading, trailing = on_words(_emit_count("ctlz"), 1), on_words(_emit_count("cttz"), 1)
"""Zero bits above the highest set bit and below the lowest set bit; 64 for zero."""
eight_bytes = on_words(lambda builder, a: builder.load(builder.inttoptr(a, _I64.as_pointer()), align=1, typ=_I64), 1)
"""The word at an address, aligned or not."""
ones = on_words(lambda builder, a: builder.call(declare(builder, "llvm.ctpop.i64", _I64, _I64), [a]), 1)
"""How many bits are set."""


@intrinsic
def bits_of(typing, real):
    """A float64's bits."""
    return types.int64(types.float64), lambda context, builder, sig, args: builder.bitcast(args[0], _I64)


@intrinsic
def real_of(typing, bits):
    """The float64 whose bits these are."""
    return types.float64(types.int64), lambda context, builder, sig, args: builder.bitcast(args[0], ir.DoubleType())


# -- digits -----------------------------------------------------------------------------------------------------------


@exact
def byte_at(at, end):
    """The byte at an address, 0 at the end."""
    return u8p(at)[0] if at < end else 0


@exact
def digit_at(at, end):
    """The digit at an address, or a number above 9."""
    return (byte_at(at, end) - 48) & 255


@exact
def _eight(digits):
    """The number whose digits are a word's bytes, first digit in the lowest byte. Digits are combined in pairs, then in
    fours, then all, with two products."""
    pairs = digits * 10 + down(digits, 8)
    mask = 0x000000FF000000FF
    odd, even = pairs & mask, down(pairs, 16) & mask
    return down(odd * (100 + (1000000 << 32)) + even * (1 + (10000 << 32)), 32)


@exact
def digits_at(at, end, mantissa, powers):
    """Append the digits at an address to the mantissa (modulo 2^64); return it and the address where they end.

    Eight digits at a time. A byte is a digit if neither adding 0x46 nor subtracting 0x30 sets its highest bit. Carries
    only go up, so the lowest byte that fails this test is the first byte that is not a digit. The digits before it are
    moved to the top of the word, with zeros below them.
    """
    tens = i64p(powers + 8 * TENS)
    taken = 8
    while taken == 8 and at + 8 <= end:
        word = eight_bytes(at)
        digits = word - 0x3030303030303030
        taken = trailing(((word + 0x4646464646464646) | digits) & -0x7F7F7F7F7F7F7F80) >> 3
        if taken:
            mantissa = mantissa * tens[taken] + _eight(digits << (64 - 8 * taken))
            at += taken
    digit = digit_at(at, end)
    while digit <= 9:  # within eight bytes of the end
        mantissa = mantissa * 10 + digit
        at += 1
        digit = digit_at(at, end)
    return mantissa, at


@exact
def zeros_at(at, end):
    """The number of leading zeros of the number at an address."""
    zeros = 0
    byte = byte_at(at, end)
    while byte == 48 or byte == 46:
        zeros += byte == 48
        at += 1
        byte = byte_at(at, end)
    return zeros


@exact
def _tail(end, count):
    """The number made by the last `count` of eight bytes (0 to 8), which are digits, and a word that is not 0 if one of
    them is not a digit."""
    digits = (eight_bytes(end - 8) ^ 0x3030303030303030) & ((-2 << (63 - 8 * count)) if count < 8 else -1)
    return _eight(digits), ((digits + 0x7676767676767676) | digits) & -0x7F7F7F7F7F7F7F80


@exact
def last_digits(end, count):
    """Like _tail, for up to 24 bytes."""
    lower, wrong = _tail(end, min(count, 8))
    if count > 8:
        middle, wrong_there = _tail(end - 8, min(count - 8, 8))
        upper, wrong_above = _tail(end - 16, max(count - 16, 0))
        lower += middle * 100000000 + upper * 10000000000000000
        wrong |= wrong_there | wrong_above
    return lower, wrong


# -- reals ------------------------------------------------------------------------------------------------------------


@exact
def nearest(mantissa, q, powers):
    """Bits of the float64 nearest to mantissa * 10^q, ties to even; -1 if that is not a normal number or is undecided.

    mantissa: unsigned, not 0. Eisel and Lemire's method (Lemire, "Number parsing at a gigabyte per second", 2021): the
    mantissa, shifted until its highest bit is at the top, is multiplied by the first 64 bits of 5^q. If the 9 bits
    below the bits that count are all ones, a carry from the truncated part is possible, so the next 64 bits of 5^q are
    used too. If the product then still ends in 64 ones, the result is undecided. An exact tie is only possible for q
    between -4 and 23, where 5^q or its inverse is short enough.
    """
    if q < LEAST or q > MOST:
        return -1
    fives = i64p(powers + 8 * (FIVES + 2 * (q - LEAST)))
    zeros = leading(mantissa)
    mantissa <<= zeros
    upper, lower = high(mantissa, fives[0]), mantissa * fives[0]
    if upper & 511 == 511:
        carried = high(mantissa, fives[1])
        lower += carried
        upper += below(lower, carried)
    if lower == -1:
        return -1
    top = down(upper, 63)
    kept = down(upper, top + 9)
    # floor(q * log2(5)) + q: exact in this range of q.
    exponent = ((217706 * q) >> 16) + 63 + top - zeros + 1023
    if 0 <= lower <= 1 and -4 <= q <= 23 and kept & 3 == 1 and kept << (top + 9) == upper:
        kept -= 1
    kept = (kept + (kept & 1)) >> 1
    if kept == EXACT:
        kept >>= 1
        exponent += 1
    if exponent <= 0 or exponent >= 2047:
        return -1
    return (exponent << 52) | (kept & ((1 << 52) - 1))


@exact
def real(mantissa, q, powers):
    """Bits of mantissa * 10^q, or -1. Both factors are exact in float64, so there is one rounding (Clinger 1990)."""
    if mantissa == 0:
        return 0
    if 0 < mantissa <= EXACT and -22 <= q <= 22:
        ten = real_of(i64p(powers + 8 * REALS)[abs(q)])
        return bits_of(float(mantissa) / ten if q < 0 else float(mantissa) * ten)
    return nearest(mantissa, q, powers)
