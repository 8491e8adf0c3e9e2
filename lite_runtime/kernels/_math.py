"""Elementary functions on float32 without a library: our own polynomials, written as scalar code that LLVM vectorises.

Products and sums carry LLVM's `contract` flag, so they become fused multiply-adds where the target has them. There are
no branches: both sides of a choice are computed and one is selected. NaN gives NaN unless a docstring says otherwise.
Coefficients are weighted minimax fits (Lawson's iteration on Chebyshev points; each coefficient is rounded to float32
in turn and the remaining ones are fitted again); the bound given for each is the error of the fit alone. Largest
measured errors against float64, over all ranges of float32, in units in the last place: exp 1.1, log 0.8, expm1 1.6,
sigmoid 2.4, tanh 2.5, erf 2.9, softplus 2, sin and cos 1.6, tan 3.4, atan 1.4, asin 1.8, acos 1.3, sinh 2.1, cosh 1.5,
the inverse hyperbolics 2.1, power 0.51; tests/lite_runtime/kernels/test_math.py checks these bounds.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from lite_runtime.native.simd import (
    LANES,
    address,
    copysign,
    device,
    exact,
    f32p,
    fabs,
    floor,
    shared,
    sqrt,
    stack_floats,
    vload,
    vload_n,
    vstore,
    vstore_n,
)

_f = np.float32


def _poly(*coefficients: float) -> tuple[np.float32, ...]:
    return tuple(map(_f, coefficients))


INF, NAN = _f(np.inf), _f(np.nan)
ZERO, HALF, ONE, TWO = _f(0), _f(0.5), _f(1), _f(2)


# -- bits and choices -------------------------------------------------------------------------------------------------

_I32, _I64, _F32, _F64 = ir.IntType(32), ir.IntType(64), ir.FloatType(), ir.DoubleType()


def _emitted(result: Any, *arguments: Any) -> Any:
    """An intrinsic with fixed types, made from a function (builder, values…) -> value."""

    def make(emit: Any) -> Any:
        def lower(context, builder, sig, args):
            return emit(builder, *args)

        if len(arguments) == 1:

            @intrinsic
            def call(typing, a):
                return result(*arguments), lower

        else:

            @intrinsic
            def call(typing, a, b):
                return result(*arguments), lower

        return call

    return make


@intrinsic
def select(typing, condition, yes, no):
    """`yes` if the condition holds, else `no`; one instruction, no branch."""
    sig = yes(types.boolean, yes, yes)
    return sig, lambda context, builder, sig, args: builder.select(*args)


@_emitted(types.float32, types.float32)
def _power_of_two(builder, t):
    """2**n, n in -126..127, from t = n + 1.5 * 2**23: n is in the low bits of t's mantissa."""
    return builder.bitcast(builder.add(builder.shl(builder.bitcast(t, _I32), _I32(23)), _I32(0x3F800000)), _F32)


@_emitted(types.float32, types.float32)
def _half_power_of_two(builder, t):
    """2**(n >> 1) from t = n + 1.5 * 2**23."""
    n = builder.sub(builder.bitcast(t, _I32), _I32(0x4B400000))
    return builder.bitcast(builder.add(builder.shl(builder.ashr(n, _I32(1)), _I32(23)), _I32(0x3F800000)), _F32)


@_emitted(types.float32, types.float32)
def _rest_power_of_two(builder, t):
    """2**(n - (n >> 1)) from t = n + 1.5 * 2**23."""
    n = builder.sub(builder.bitcast(t, _I32), _I32(0x4B400000))
    rest = builder.sub(n, builder.ashr(n, _I32(1)))
    return builder.bitcast(builder.add(builder.shl(rest, _I32(23)), _I32(0x3F800000)), _F32)


_ROOT_HALF = 0x3F3504F3
"""Bits of float32 sqrt(1/2)."""


@_emitted(types.float32, types.float32)
def _exponent(builder, x):
    """e as float32, where x = m * 2**e with m in [sqrt(1/2), sqrt 2); x is normal and positive."""
    bits = builder.sub(builder.bitcast(x, _I32), _I32(_ROOT_HALF))
    return builder.sitofp(builder.ashr(bits, _I32(23)), _F32)


@_emitted(types.float32, types.float32)
def _mantissa(builder, x):
    """m of `_exponent`."""
    bits = builder.and_(builder.sub(builder.bitcast(x, _I32), _I32(_ROOT_HALF)), _I32(0x7FFFFF))
    return builder.bitcast(builder.add(bits, _I32(_ROOT_HALF)), _F32)


_WIDE_ROOT_HALF = 0x3FE6A09E667F3BCD
"""Bits of float64 sqrt(1/2)."""


@_emitted(types.float64, types.float64)
def _wide_exponent(builder, x):
    """`_exponent` in float64."""
    bits = builder.sub(builder.bitcast(x, _I64), _I64(_WIDE_ROOT_HALF))
    return builder.sitofp(builder.ashr(bits, _I64(52)), _F64)


@_emitted(types.float64, types.float64)
def _wide_mantissa(builder, x):
    """`_mantissa` in float64."""
    bits = builder.and_(builder.sub(builder.bitcast(x, _I64), _I64(_WIDE_ROOT_HALF)), _I64((1 << 52) - 1))
    return builder.bitcast(builder.add(bits, _I64(_WIDE_ROOT_HALF)), _F64)


@_emitted(types.float64, types.float64)
def _wide_power_of_two(builder, t):
    """2**n in float64 from t = n + 1.5 * 2**52."""
    return builder.bitcast(builder.add(builder.shl(builder.bitcast(t, _I64), _I64(52)), _I64(0x3FF << 52)), _F64)


@_emitted(types.float64, types.float32)
def _wide(builder, x):
    """float64 of a float32."""
    return builder.fpext(x, _F64)


@_emitted(types.float32, types.float64)
def _narrow(builder, x):
    """float32 of a float64."""
    return builder.fptrunc(x, _F32)


@_emitted(types.float32, types.float32, types.float32)
def flip_sign(builder, x, by):
    """x with its sign changed where `by` is negative (-0 too)."""
    sign = builder.and_(builder.bitcast(by, _I32), _I32(-0x80000000))
    return builder.bitcast(builder.xor(builder.bitcast(x, _I32), sign), _F32)


# -- exponentials -----------------------------------------------------------------------------------------------------

_MAGIC = _f(1.5 * 2**23)
"""Adding it rounds to the nearest integer and leaves that integer in the low mantissa bits."""
_LOG2_E = _f(1.4426950408889634)
# ln 2 in two parts; the first has 9 bits, so that n * _LN2_HIGH is exact for |n| < 2**15.
_LN2_HIGH, _LN2_LOW = _f(0.693359375), _f(-2.12194440054690583e-4)
_LN2 = _f(0.6931471805599453)

# exp(r) = 1 + r + r**2 * Q(r) on |r| <= ln(2) / 2, to 2**-28 absolute.
_EXP = _poly(0.5, 1.6666521e-01, 4.166639e-02, 8.368679e-03, 1.3941878e-03)
# expm1(r) = r + r**2 * Q(r), to 2**-26 relative.
_EXPM1 = _poly(0.5, 1.6666545e-01, 4.1666403e-02, 8.366398e-03, 1.394065e-03)
_EXP_TOP, _EXP_BOTTOM = _f(90), _f(-104)
"""exp overflows above 88.73, half of it above 89.42, and it rounds to 0 below -103.98."""


@device
def _horner5(c, x):
    return (((c[4] * x + c[3]) * x + c[2]) * x + c[1]) * x + c[0]


@device
def clamp(x, low, high):
    """x limited to the bounds; NaN stays NaN."""
    x = select(x < low, low, x)
    return select(x > high, high, x)


@device
def _reduce(x):
    """(t, r): x = n ln 2 + r, |r| <= ln(2) / 2, t = n + 1.5 * 2**23."""
    t = x * _LOG2_E + _MAGIC
    n = t - _MAGIC
    return t, (x - n * _LN2_HIGH) - n * _LN2_LOW


@device
def exp_scaled(x, factor):
    """factor * exp(x); factor is a power of two near 1."""
    t, r = _reduce(clamp(x, _EXP_BOTTOM, _EXP_TOP))
    p = (_horner5(_EXP, r) * (r * r) + r) + ONE
    return (p * factor * _half_power_of_two(t)) * _rest_power_of_two(t)


@device
def exp(x):
    """e**x; exp(-inf) = 0, gradual underflow."""
    return exp_scaled(x, ONE)


_SMALL_EXP_BOTTOM = _f(-87)


@device
def _exp_normal(x):
    """e**x for x <= 0, at least 2**-126."""
    t, r = _reduce(select(x < _SMALL_EXP_BOTTOM, _SMALL_EXP_BOTTOM, x))
    p = (_horner5(_EXP, r) * (r * r) + r) + ONE
    return p * _power_of_two(t)


_EXPM1_BOTTOM, _EXPM1_TOP = _f(-18), _f(89)


@device
def expm1(x):
    """e**x - 1, with a small relative error near 0."""
    t, r = _reduce(clamp(x, _EXPM1_BOTTOM, _EXPM1_TOP))
    p = _horner5(_EXPM1, r) * (r * r) + r
    s = _power_of_two(t - ONE)
    return (s * p + (s - HALF)) * TWO


@device
def sigmoid(x):
    """1 / (1 + e**-x)."""
    e = exp(-fabs(x))
    return select(x < ZERO, e, ONE) / (ONE + e)


@device
def tanh(x):
    """(1 - e**-2|x|) / (1 + e**-2|x|) with x's sign."""
    t = expm1(fabs(x) * -TWO)
    return copysign(t / (t + TWO), x)


# -- logarithms -------------------------------------------------------------------------------------------------------

# log(1 + f) = f - f**2 / 2 + f**3 * P(f) on [sqrt(1/2) - 1, sqrt(2) - 1], to 2**-30.
_LOG = _poly(
    3.333331e-01, -2.4999987e-01, 2.0002224e-01, -1.666925e-01, 1.4218716e-01, -1.2384402e-01, 1.18726194e-01,
    -1.178937e-01, 6.9156125e-02,
)  # fmt: skip
_SMALLEST_NORMAL, _TWO_23, _23 = _f(2.0**-126), _f(2.0**23), _f(23)


@device
def _horner9(c, x):
    high = (((c[8] * x + c[7]) * x + c[6]) * x + c[5]) * x + c[4]
    return (((high * x + c[3]) * x + c[2]) * x + c[1]) * x + c[0]


@device
def log(x):
    """Natural logarithm; log(0) = -inf, NaN below 0."""
    tiny = x < _SMALLEST_NORMAL
    scaled = select(tiny, x * _TWO_23, x)
    e = _exponent(scaled) - select(tiny, _23, ZERO)
    f = _mantissa(scaled) - ONE
    z = f * f
    p = f * (z * _horner9(_LOG, f)) + e * _LN2_LOW
    y = e * _LN2_HIGH + (f + (p - HALF * z))
    y = select(x == ZERO, -INF, select(x < ZERO, NAN, y))
    return select(x < INF, y, x)


_TWO_25 = _f(2.0**25)


@device
def log1p(u):
    """log(1 + u) for u >= 0: the rounding error of 1 + u is corrected to first order."""
    s = ONE + u
    lost = (u - (s - ONE)) / s
    return log(s) + select(u < _TWO_25, lost, ZERO)


@device
def softplus(x):
    """log(1 + e**x)."""
    return select(x < ZERO, ZERO, x) + log1p(exp(-fabs(x)))


_MISH_TOP = _f(20)


@device
def mish(x):
    """x * tanh(softplus(x)) = x * n / (n + 2), n = e**x * (e**x + 2); beyond 20 the factor rounds to 1."""
    e = exp(select(x > _MISH_TOP, _MISH_TOP, x))
    n = e * (e + TWO)
    return x * (n / (n + TWO))


# -- the error function -----------------------------------------------------------------------------------------------

# erf(x) = x + x * P(x**2) on [0, 1], to 2**-29.
_ERF = _poly(
    0.12837916709551256, -3.7612197e-01, 1.1278558e-01, -2.663861e-02, 4.772252e-03, -4.304355e-04, -4.5190005e-05
)
# log(erfc(x)) = Q(x) on [1, 4], to 2**-35 / erfc(x); erfc(4) is below half an ulp of 1.
_LOG_ERFC = _poly(
    1.8803669e-04, -1.1295784e+00, -6.3322014e-01, -1.0841822e-01, 2.5207976e-02, -4.2044404e-03, 4.413091e-04,
    -2.1684384e-05,
)  # fmt: skip
_FOUR = _f(4)


@device
def _erf_near(x):
    """erf on |x| <= 1."""
    z = x * x
    c = _ERF
    p = (((((c[6] * z + c[5]) * z + c[4]) * z + c[3]) * z + c[2]) * z + c[1]) * z + c[0]
    return x * p + x


@device
def _erfc_far(a):
    """1 - erf on a >= 1, at least erfc(4)."""
    a = select(a > _FOUR, _FOUR, a)
    c = _LOG_ERFC
    high = ((c[7] * a + c[6]) * a + c[5]) * a + c[4]
    return _exp_normal((((high * a + c[3]) * a + c[2]) * a + c[1]) * a + c[0])


@device
def erf(x):
    """The error function."""
    a = fabs(x)
    far = copysign(ONE - _erfc_far(a), x)
    return select(a > ONE, far, _erf_near(x))


_ROOT_HALF_F = _f(0.7071067811865476)


@device
def gelu(x):
    """x * Phi(x), Phi the normal distribution; for |x| > 5.65, Phi(x) is replaced by 0 or 1 (error below 5e-8)."""
    s = x * _ROOT_HALF_F
    a = fabs(s)
    tail = select(a > _FOUR, ZERO, HALF * _erfc_far(a))
    far = select(s < ZERO, tail, ONE - tail)
    return x * select(a > ONE, far, HALF * _erf_near(s) + HALF)


# tanh(u) = 2 sigmoid(2u) - 1, so 0.5 x (1 + tanh(u)) = x sigmoid(2u), u = sqrt(2 / pi) (x + 0.044715 x**3).
_GELU_1, _GELU_3 = _f(1.5957691216057308), _f(1.5957691216057308 * 0.044715)


@device
def gelu_tanh(x):
    """Gelu by its tanh approximation."""
    return x * sigmoid(x * (_GELU_3 * (x * x) + _GELU_1))


# -- piecewise activations --------------------------------------------------------------------------------------------


@device
def relu(x):
    """max(x, 0); NaN stays NaN."""
    return select(x < ZERO, ZERO, x)


@device
def leaky_relu(x, alpha, unused):
    """x, or alpha x below 0."""
    return select(x < ZERO, alpha * x, x)


@device
def silu(x):
    """x sigmoid(x)."""
    return x * sigmoid(x)


@device
def swish(x, alpha, unused):
    """x sigmoid(alpha x)."""
    return x * sigmoid(alpha * x)


@exact
def hard_sigmoid(x, alpha, beta):
    """alpha x + beta limited to [0, 1]; bit-identical to its reference."""
    return clamp(alpha * x + beta, ZERO, ONE)


_SIXTH = _f(1 / 6)


@exact
def hard_swish(x):
    """x * clamp(x / 6 + 1/2, 0, 1); bit-identical to its reference."""
    return x * hard_sigmoid(x, _SIXTH, HALF)


@device
def elu(x, alpha, unused):
    """x, or alpha (e**x - 1) below 0."""
    return select(x < ZERO, alpha * expm1(select(x < ZERO, x, ZERO)), x)


@device
def celu(x, alpha, unused):
    """x, or alpha (e**(x / alpha) - 1) below 0."""
    return select(x < ZERO, alpha * expm1(x / alpha), x)


@device
def selu(x, alpha, gamma):
    """gamma times (x, or alpha (e**x - 1) below 0)."""
    return gamma * select(x < ZERO, alpha * expm1(select(x < ZERO, x, ZERO)), x)


# -- hyperbolic -------------------------------------------------------------------------------------------------------

_LARGE = _f(30)


@device
def sinh(x):
    """(t + t / (t + 1)) / 2 with t = expm1|x|; for |x| above 30, half of e**|x|."""
    a = fabs(x)
    t = expm1(select(a > _LARGE, _LARGE, a))
    return copysign(select(a > _LARGE, exp_scaled(a, HALF), HALF * (t + t / (t + ONE))), x)


@device
def cosh(x):
    """(e**|x| + e**-|x|) / 2."""
    a = fabs(x)
    h = exp_scaled(a, HALF)
    return h + select(a > _LARGE, ZERO, HALF * HALF / h)


@device
def asinh(x):
    """log(|x| + sqrt(x**2 + 1)) with x's sign, computed by log1p; from 2**25 on, log(2|x|)."""
    a = fabs(x)
    b = select(a < _TWO_25, a, ONE)
    z = b * b
    near = log1p(b + z / (ONE + sqrt(ONE + z)))
    return copysign(select(a < _TWO_25, near, log(a) + _LN2), x)


@device
def acosh(x):
    """log(x + sqrt(x**2 - 1)), computed by log1p; NaN below 1."""
    t = x - ONE
    near = log1p(t + sqrt(TWO * t + t * t))
    return select(x < ONE, NAN, select(x > _TWO_25, log(x) + _LN2, near))


@device
def atanh(x):
    """log1p(2|x| / (1 - |x|)) / 2 with x's sign; NaN for |x| above 1."""
    a = fabs(x)
    return copysign(select(a > ONE, NAN, HALF * log1p(TWO * a / (ONE - a))), x)


# -- circular ---------------------------------------------------------------------------------------------------------

# atan(t) = t + t**3 P(t**2) on [0, 1], to 2**-28.7.
_ATAN = _poly(
    -3.3333302e-01, 1.9998626e-01, -1.4265092e-01, 1.0956658e-01, -8.416461e-02, 5.81781e-02, -3.1394538e-02,
    1.1029044e-02, -1.8187419e-03,
)  # fmt: skip
# asin(t) = t + t**3 P(t**2) on [0, 1/2], to 2**-31.7.
_ASIN = _poly(1.666666e-01, 7.500521e-02, 4.4513635e-02, 3.1836055e-02, 1.4329189e-02, 3.7673127e-02)
_HALF_PI, _HALF_PI_LOW, _PI = _f(np.pi / 2), _f(np.pi / 2 - float(_f(np.pi / 2))), _f(np.pi)


@device
def atan(x):
    """Inverse tangent; for |x| above 1 as pi/2 - atan(1 / |x|)."""
    a = fabs(x)
    t = select(a > ONE, ONE / a, a)
    z = t * t
    y = t * (z * _horner9(_ATAN, z)) + t
    return copysign(select(a > ONE, (_HALF_PI - y) + _HALF_PI_LOW, y), x)


@device
def _asin_near(t, z):
    """asin on [0, 1/2]; z = t**2."""
    c = _ASIN
    p = ((((c[5] * z + c[4]) * z + c[3]) * z + c[2]) * z + c[1]) * z + c[0]
    return t * (z * p) + t


@device
def asin(x):
    """Inverse sine; for |x| above 1/2 as pi/2 - 2 asin(sqrt((1 - |x|) / 2)); NaN for |x| above 1."""
    a = fabs(x)
    half = HALF - HALF * a
    z = select(a > HALF, half, a * a)
    y = _asin_near(select(a > HALF, sqrt(half), a), z)
    return copysign(select(a > HALF, (_HALF_PI - TWO * y) + _HALF_PI_LOW, y), x)


@device
def acos(x):
    """Inverse cosine; NaN for |x| above 1."""
    a = fabs(x)
    half = HALF - HALF * a
    z = select(a > HALF, half, a * a)
    y = _asin_near(select(a > HALF, sqrt(half), a), z)
    far = select(x < ZERO, _PI - TWO * y, TWO * y)
    return select(a > HALF, far, (_HALF_PI - copysign(y, x)) + _HALF_PI_LOW)


# sin(r) = r + r**3 P(r**2) and cos(r) = 1 - r**2 / 2 + r**4 P(r**2) on |r| <= pi / 4, to 2**-32 and 2**-33.
_SIN = _poly(-1.6666667e-01, 8.33338e-03, -1.9853511e-04, 2.837514e-06)
_COS = _poly(4.1666646e-02, -1.3887301e-03, 2.4430668e-05)
_WIDE_MAGIC = 1.5 * 2.0**52
_TWO_OVER_PI = 2 / np.pi
# pi/2 in two parts; the first has 29 bits, so its product with a number of quarter turns below 2**24 is exact.
_QUARTER_HIGH = float.fromhex("0x1.921fb54p0")
_QUARTER_LOW = float.fromhex("0x1.10b4611a62633p-30")
_QUARTER_FIXED = np.pi / 2 * 2.0**-62
# Bits of 2/pi, four words, starting at the bit of weight 2 (the first two bits are 0).
_TWO_OVER_PI_BITS = (0x28BE60DB9391054A, 0x7F09D5F47D4D3770, 0x36D8A5664F10E410, 0x7F9458EAF7AEF158)


@_emitted(types.int64, types.float32)
def _fixed_turns(builder, x):
    """|x| in quarter turns modulo 4, in units of 2**-62, for |x| >= 2**23 (Payne and Hanek's reduction).

    |x| = m * 2**e with a 24-bit m; of 2/pi, only those bits matter that 2**e moves to weights 2 to 2**-94.
    """
    bits = builder.and_(builder.bitcast(x, _I32), _I32(0x7FFFFFFF))
    e = builder.zext(builder.sub(builder.lshr(bits, _I32(23)), _I32(150)), _I64)
    m = builder.zext(builder.or_(builder.and_(bits, _I32(0x7FFFFF)), _I32(0x800000)), _I64)
    far = builder.icmp_unsigned(">=", builder.and_(e, _I64(127)), _I64(64))
    by = builder.and_(e, _I64(63))
    back = builder.sub(_I64(63), by)
    w = [builder.select(far, _I64(b), _I64(a)) for a, b in pairwise(_TWO_OVER_PI_BITS)]

    def window(i):
        return builder.or_(builder.shl(w[i], by), builder.lshr(builder.lshr(w[i + 1], _I64(1)), back))

    low = builder.lshr(builder.mul(m, builder.lshr(window(1), _I64(32))), _I64(32))
    return builder.add(builder.mul(m, window(0)), low)


@_emitted(types.int64, types.float64)
def _wide_bits(builder, x):
    """The bits of a float64."""
    return builder.bitcast(x, _I64)


_UNIT, _HALF_UNIT = np.int64(62), np.int64(1 << 61)


@device
def _quarter_turns(x):
    """(n, r): x = n pi/2 + r, |r| <= pi/4, n modulo 4; for any finite x; r has a relative error of 2**-24."""
    t = _wide(x) * _TWO_OVER_PI + _WIDE_MAGIC
    k = t - _WIDE_MAGIC
    near = (_wide(x) - k * _QUARTER_HIGH) - k * _QUARTER_LOW
    fixed = _fixed_turns(x)
    n = (fixed + _HALF_UNIT) >> _UNIT
    rest = np.float64(fixed - (n << _UNIT)) * _QUARTER_FIXED
    negative = x < ZERO
    big = fabs(x) >= _TWO_23
    turns = select(big, select(negative, -n, n), _wide_bits(t))
    return turns, _narrow(select(big, select(negative, -rest, rest), near))


_ODD, _BACK = np.int64(1), np.int64(2)


@device
def _sin_near(r):
    z = r * r
    c = _SIN
    return r * (z * (((c[3] * z + c[2]) * z + c[1]) * z + c[0])) + r


@device
def _cos_near(r):
    z = r * r
    c = _COS
    return (ONE - HALF * z) + (z * z) * ((c[2] * z + c[1]) * z + c[0])


@device
def sin(x):
    """Sine; NaN for infinities."""
    n, r = _quarter_turns(x)
    y = select((n & _ODD) != 0, _cos_near(r), _sin_near(r))
    return select(fabs(x) < INF, select((n & _BACK) != 0, -y, y), NAN)


@device
def cos(x):
    """Cosine; NaN for infinities."""
    n, r = _quarter_turns(x)
    y = select((n & _ODD) != 0, _sin_near(r), _cos_near(r))
    negative = ((n + _ODD) & _BACK) != 0
    return select(fabs(x) < INF, select(negative, -y, y), NAN)


@device
def tan(x):
    """Tangent; NaN for infinities."""
    n, r = _quarter_turns(x)
    s, c = _sin_near(r), _cos_near(r)
    odd = (n & _ODD) != 0
    return select(fabs(x) < INF, select(odd, -c, s) / select(odd, s, c), NAN)


# -- powers -----------------------------------------------------------------------------------------------------------

_WIDE_LOG2_E = 1.4426950408889634
# Taylor: 2 atanh(s) = 2 s (1 + s**2 / 3 + ...), |s| <= 0.1716, to 2**-49; e**r, |r| <= 0.3466, to 2**-44.
_ATANH = tuple(1.0 / (2 * k + 1) for k in range(9))
_EXPONENTIAL = tuple(1.0 / float(np.prod(np.arange(1, k + 1), dtype=np.float64)) for k in range(11))
_WIDE_LN2 = 0.6931471805599453


@device
def _wide_log2(x):
    """log2 in float64 of a float64 > 0 that is normal and finite."""
    e, m = _wide_exponent(x), _wide_mantissa(x)
    s = (m - 1.0) / (m + 1.0)
    z = s * s
    c = _ATANH
    p = (((c[8] * z + c[7]) * z + c[6]) * z + c[5]) * z + c[4]
    p = (((p * z + c[3]) * z + c[2]) * z + c[1]) * z + c[0]
    return e + (2.0 * _WIDE_LOG2_E) * (s * p)


@device
def _wide_exp2(y):
    """2**y in float64, |y| <= 400."""
    t = y + _WIDE_MAGIC
    r = (y - (t - _WIDE_MAGIC)) * _WIDE_LN2
    c = _EXPONENTIAL
    p = ((((c[10] * r + c[9]) * r + c[8]) * r + c[7]) * r + c[6]) * r + c[5]
    p = ((((p * r + c[4]) * r + c[3]) * r + c[2]) * r + c[1]) * r + c[0]
    return p * _wide_power_of_two(t)


@device
def power(x, y):
    """x**y with the special cases of C, computed in float64: |x|**y = 2**(y log2|x|), within 0.501 ulp."""
    a = fabs(x)
    usable = (a > ZERO) & (a < INF)
    product = _wide(y) * _wide_log2(_wide(select(usable, a, ONE)))
    product = select(product > 400.0, 400.0, product)
    product = select(product < -400.0, -400.0, product)
    finite = _narrow(_wide_exp2(product))
    at_zero = select(y > ZERO, ZERO, INF)
    at_infinity = select(y > ZERO, INF, ZERO)
    magnitude = select(usable, finite, select(a == ZERO, at_zero, at_infinity))
    whole = floor(y) == y
    half = HALF * y
    odd = whole & (floor(half) != half)  # infinities and floats from 2**24 on are even
    signed = select(odd, flip_sign(magnitude, x), magnitude)
    signed = select((x < ZERO) & (a < INF) & (not whole), NAN, signed)
    signed = select((a != a) | (y != y), NAN, signed)
    signed = select((fabs(y) == INF) & (a == ONE), ONE, signed)
    return select((y == ZERO) | (x == ONE), ONE, signed)


# -- epilogues --------------------------------------------------------------------------------------------------------

_TAIL = 16


@device
def _apply(code, a, b, pointer, n):
    """`activate` on a multiple of LANES elements, so that every loop has only vector operations."""
    n = n // LANES * LANES
    if code == 1:
        for i in range(n):
            pointer[i] = relu(pointer[i])
    elif code == 2:
        for i in range(n):
            pointer[i] = clamp(pointer[i], a, b)
    elif code == 3:
        for i in range(n):
            pointer[i] = leaky_relu(pointer[i], a, b)
    elif code == 4:
        for i in range(n):
            pointer[i] = sigmoid(pointer[i])
    elif code == 5:
        for i in range(n):
            pointer[i] = tanh(pointer[i])
    elif code == 6:
        for i in range(n):
            pointer[i] = hard_swish(pointer[i])
    elif code == 7:
        for i in range(n):
            pointer[i] = hard_sigmoid(pointer[i], a, b)
    elif code == 8:
        for i in range(n):
            pointer[i] = silu(pointer[i])
    elif code == 9:
        for i in range(n):
            pointer[i] = gelu(pointer[i])
    elif code == 10:
        for i in range(n):
            pointer[i] = gelu_tanh(pointer[i])
    elif code == 11:
        for i in range(n):
            pointer[i] = elu(pointer[i], a, b)


@shared
def activate(code, a, b, pointer, n):
    """Apply an activation (numbered in `lite_runtime.ops.activation`) in place to `n` contiguous float32.

    The last n % LANES elements are copied to a vector on the stack: the same code runs twice and exists once.
    """
    if code != 0:
        tail = stack_floats(_TAIL)
        full = n // LANES * LANES
        rest = n - full
        at = f32p(address(pointer) + 4 * full)
        if rest > 0:
            vstore(tail, vload_n(at, rest))
        part, count = pointer, full
        for _ in range(1 if rest == 0 else 2):
            _apply(code, a, b, part, count)
            part, count = tail, LANES
        if rest > 0:
            vstore_n(at, vload(tail), rest)
