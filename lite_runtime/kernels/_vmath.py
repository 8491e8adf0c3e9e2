"""exp, log, tanh and the logistic function on whole vectors, and the vector operations that rows with tails need.

Kernels that hold their data in `vec` registers (normalisations, recurrent gates) use these; loops over plain float32
that LLVM vectorises use `_math`. All are branch-free, exact for the limits (0, infinities, NaN), and do not call libm.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from lite_runtime.native.codegen.operations import call
from lite_runtime.native.simd import (
    LANES,
    device,
    emit_mask,
    splat,
    vec,
    vfma,
    vmax,
    vmin,
    vrint,
)

_F32, _I32, _I64 = ir.FloatType(), ir.IntType(32), ir.IntType(64)
_VEC = ir.VectorType(_F32, LANES)
_INTS = ir.VectorType(_I32, LANES)
_F32P = types.CPointer(types.float32)


def _ints(value: int) -> ir.Constant:
    return ir.Constant(_INTS, [value] * LANES)


@intrinsic
def vload_or(typing, pointer, n, other):
    """The first `n` floats at `pointer`, the remaining lanes from `other`; nothing after the n floats is read."""

    def lower(context, builder, sig, args):
        where, mask = builder.bitcast(args[0], _VEC.as_pointer()), emit_mask(builder, args[1])
        return call(builder, "load_first", LANES, where, mask, args[2])

    return vec(_F32P, types.int64, vec), lower


@intrinsic
def vload_even(typing, pointer):
    """Every second one of the 2 * LANES floats at `pointer`, starting with the first."""
    wide = ir.VectorType(_F32, 2 * LANES)
    order = ir.Constant(ir.VectorType(_I32, LANES), [2 * i for i in range(LANES)])

    def lower(context, builder, sig, args):
        both = builder.load(builder.bitcast(args[0], wide.as_pointer()), align=4, typ=wide)
        return builder.shuffle_vector(both, both, order)

    return vec(_F32P), lower


@intrinsic
def vfirst(typing, value, n, other):
    """Lanes below `n` of `value`, the others from `other`."""

    def lower(context, builder, sig, args):
        return builder.select(emit_mask(builder, args[1]), args[0], args[2])

    return vec(vec, types.int64, vec), lower


@intrinsic
def vpick_lt(typing, a, b, x, y):
    """x where a < b, else y (also y where a or b is NaN)."""

    def lower(context, builder, sig, args):
        a, b, x, y = args
        return builder.select(builder.fcmp_ordered("<", a, b), x, y)

    return vec(vec, vec, vec, vec), lower


@intrinsic
def vpick_eq(typing, a, b, x, y):
    """x where a == b, else y."""

    def lower(context, builder, sig, args):
        a, b, x, y = args
        return builder.select(builder.fcmp_ordered("==", a, b), x, y)

    return vec(vec, vec, vec, vec), lower


@intrinsic
def vlarger(typing, v, most):
    """Lane-wise maximum of an element and the largest so far, NaN if either is NaN; shorter than `vmax_nan`."""

    def lower(context, builder, sig, args):
        v, most = args
        larger = builder.select(builder.fcmp_ordered(">", v, most), v, most)
        return builder.select(builder.fcmp_unordered("uno", v, v), v, larger)

    return vec(vec, vec), lower


@intrinsic
def vnote_nan(typing, v, seen):
    """v where it is NaN, else `seen`: used with `vmax`, which ignores NaN, this keeps chains of maxima short."""

    def lower(context, builder, sig, args):
        v, seen = args
        return builder.select(builder.fcmp_unordered("uno", v, v), v, seen)

    return vec(vec, vec), lower


def _pick_better(ordered: str, over_nan: bool) -> object:
    @intrinsic
    def pick(typing, v, best, x, y):
        def lower(context, builder, sig, args):
            v, best, x, y = args
            nan = builder.fcmp_unordered("uno", v, v)
            if not over_nan:
                nan = builder.and_(nan, builder.fcmp_ordered("ord", best, best))
            return builder.select(builder.or_(builder.fcmp_ordered(ordered, v, best), nan), x, y)

        return vec(vec, vec, vec, vec), lower

    return pick


vpick_better = _pick_better(">", over_nan=False)
"""x where v comes before best in the order, with NaN as the largest; else y."""
vpick_as_good = _pick_better(">=", over_nan=True)
"""x where v is equal to best or comes before it, with NaN as the largest; else y."""


@intrinsic
def vany_above(typing, v, bound):
    """Whether any lane is above `bound` or NaN, or the bound is NaN."""

    def lower(context, builder, sig, args):
        lanes = builder.bitcast(builder.fcmp_unordered(">", *args), ir.IntType(LANES))
        return builder.icmp_unsigned("!=", lanes, ir.Constant(ir.IntType(LANES), 0))

    return types.boolean(vec, vec), lower


@intrinsic
def vlane0(typing, a):
    """The first lane."""
    return types.float32(vec), lambda context, builder, sig, args: builder.extract_element(args[0], _I32(0))


@intrinsic(prefer_literal=True)
def vdown(typing, a, by):
    """Lane i of the result is lane (i + by) mod LANES; `by` a literal."""
    shift = by.literal_value
    order = [(i + shift) % LANES for i in range(LANES)]

    def lower(context, builder, sig, args):
        return builder.shuffle_vector(args[0], args[0], ir.Constant(ir.VectorType(_I32, LANES), order))

    return vec(vec, by), lower


@intrinsic
def _power_of_two(typing, n):
    """2^n for whole n of -126 to 127."""

    def lower(context, builder, sig, args):
        bits = builder.shl(builder.add(builder.fptosi(args[0], _INTS), _ints(127)), _ints(23))
        return builder.bitcast(bits, _VEC)

    return vec(vec), lower


@intrinsic
def _scaled(typing, v, n):
    """v * 2^n for whole n, rounded once."""
    return vec(vec, vec), lambda context, builder, sig, args: call(builder, "scale", LANES, *args)


_ROOT_HALF = 0x3F3504F3
"""Bits of sqrt(1/2): numbers are split as m * 2^e with sqrt(1/2) <= m < sqrt(2)."""


@intrinsic
def _exponent(typing, x):
    """e of m * 2^e, as float."""

    def lower(context, builder, sig, args):
        bits = builder.sub(builder.bitcast(args[0], _INTS), _ints(_ROOT_HALF))
        return builder.sitofp(builder.ashr(bits, _ints(23)), _VEC)

    return vec(vec), lower


@intrinsic
def _mantissa(typing, x, e):
    """m of m * 2^e."""

    def lower(context, builder, sig, args):
        shift = builder.shl(builder.fptosi(args[1], _INTS), _ints(23))
        return builder.bitcast(builder.sub(builder.bitcast(args[0], _INTS), shift), _VEC)

    return vec(vec, vec), lower


_F = np.float32
_LOG2E, _LN2_HIGH, _LN2_LOW = _F(1.4426950408889634), _F(0.693359375), _F(-2.1219444005471377e-4)
# (expm1(r) - r - r^2/2) / r^3 on |r| <= ln(2)/2, interpolated at Chebyshev nodes: the relative error is then at most
# 2.2e-8 for exp and 5.3e-8 for expm1, both below one unit in the last place.
_E3, _E4 = _F(0.1666662935275592), _F(0.04166655008649546)
_E5, _E6 = _F(0.008357683177572578), _F(0.0013926929205169327)
# (log((1+s)/(1-s)) - 2s) / s^3 as a polynomial of s^2, likewise: 2e-11 relative before rounding.
_L3, _L5, _L7, _L9 = _F(0.6666666654913326), _F(0.40000126050227713), _F(0.28550356015443473), _F(0.2334286247430765)
_ONE, _TWO, _HALF, _ZERO = _F(1), _F(2), _F(0.5), _F(0)
_EXP_LOW, _EXP_HIGH = _F(-105), _F(89)
_TANH_LIMIT = _F(10)
_TINY, _TINY_SCALE, _TINY_BITS = _F(1.1754943508222875e-38), _F(2.0**24), _F(24)
_INF, _NAN = _F(np.inf), _F(np.nan)


@device
def _expm1_core(r):
    """expm1 of |r| <= ln(2)/2."""
    p = vfma(splat(_E6), r, splat(_E5))
    p = vfma(p, r, splat(_E4))
    p = vfma(p, r, splat(_E3))
    p = vfma(p, r, splat(_HALF))
    return vfma(p * r, r, r)


@device
def vexp(x):
    """e^x: within 1.5 units in the last place; 0 from -104 down, infinity above 88.73, NaN for NaN."""
    x = vmin(splat(_EXP_HIGH), vmax(splat(_EXP_LOW), x))
    n = vrint(x * splat(_LOG2E))
    r = vfma(n, splat(-_LN2_LOW), vfma(n, splat(-_LN2_HIGH), x))
    return _scaled(_expm1_core(r) + splat(_ONE), n)


@device
def vtanh(x):
    """(e^2x - 1) / (e^2x + 1) with e^2x - 1 computed without cancellation: within 3 units in the last place."""
    x = vmin(splat(_TANH_LIMIT), vmax(splat(-_TANH_LIMIT), x)) * splat(_TWO)
    n = vrint(x * splat(_LOG2E))
    r = vfma(n, splat(-_LN2_LOW), vfma(n, splat(-_LN2_HIGH), x))
    scale = _power_of_two(n)
    e = vfma(_expm1_core(r), scale, scale - splat(_ONE))
    return e / (e + splat(_TWO))


@device
def vsigmoid(x):
    """1 / (1 + e^-x): within 3 units in the last place."""
    return splat(_ONE) / (splat(_ONE) + vexp(splat(_ZERO) - x))


@device
def vlog(x):
    """Natural logarithm: within 2 units in the last place; -infinity for 0, NaN below."""
    small = splat(_TINY)
    scaled = vpick_lt(x, small, x * splat(_TINY_SCALE), x)
    e = _exponent(scaled)
    m = _mantissa(scaled, e)
    e = vpick_lt(x, small, e - splat(_TINY_BITS), e)
    f = m - splat(_ONE)
    s = f / (splat(_TWO) + f)
    z = s * s
    p = vfma(splat(_L9), z, splat(_L7))
    p = vfma(p, z, splat(_L5))
    p = vfma(p, z, splat(_L3)) * z
    # log m = 2s + s*p = f - s*(f - p): f is exact, so the leading digits are.
    y = vfma(e, splat(_LN2_HIGH), f - vfma(s, f - p, splat(_ZERO) - e * splat(_LN2_LOW)))
    y = vpick_lt(x, splat(_INF), y, x)
    y = vpick_eq(x, splat(_ZERO), splat(-_INF), y)
    return vpick_lt(x, splat(_ZERO), splat(_NAN), y)


@device
def exp1(x):
    """`vexp` of one float32."""
    return vlane0(vexp(splat(x)))


@device
def log1(x):
    """`vlog` of one float32."""
    return vlane0(vlog(splat(x)))


@intrinsic(prefer_literal=True)
def vswap(typing, a, by):
    """Lane i of the result is lane i xor `by`; `by` a literal power of two below LANES."""
    flip = by.literal_value
    order = [(i ^ flip) % LANES for i in range(LANES)]

    def lower(context, builder, sig, args):
        return builder.shuffle_vector(args[0], args[0], ir.Constant(ir.VectorType(_I32, LANES), order))

    return vec(vec, by), lower


@device
def across_sum(v):
    """The sum of all lanes, in every lane."""
    if LANES >= 16:
        v = v + vdown(v, 8)
    if LANES >= 8:
        v = v + vdown(v, 4)
    v = v + vdown(v, 2)
    return v + vdown(v, 1)


@device
def across_max(v):
    """The largest lane, in every lane; NaN lanes are ignored if there are others."""
    if LANES >= 16:
        v = vmax(v, vdown(v, 8))
    if LANES >= 8:
        v = vmax(v, vdown(v, 4))
    v = vmax(v, vdown(v, 2))
    return vmax(v, vdown(v, 1))
