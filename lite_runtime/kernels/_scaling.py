"""Quantisation and dequantisation as LLVM IR: the code that loads and stores of quantised elements emit.

No product here is an operand of a sum, so nothing can be fused, and results are the same on every target.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir

from lite_runtime.native.codegen.operations import call
from lite_runtime.native.simd import FMA, declare, emit_max

__all__ = ["dequantised", "quantised"]

_FLOAT = ir.FloatType()


def dequantised(convert: str) -> Any:
    """(builder, x, zero, scale) -> (x - zero) * scale, the integer x first rounded to the nearest float32.
    convert: "sitofp" or "uitofp"."""

    def load(builder: Any, x: Any, zero: Any, scale: Any) -> Any:
        return builder.fmul(builder.fsub(getattr(builder, convert)(x, _FLOAT), zero), scale)

    return load


def _divided(builder: Any, x: Any, scale: Any) -> Any:
    return builder.fdiv(x, scale)


def _near_quotient(builder: Any, x: Any, scale: Any) -> Any:
    """x / scale, rounded as by a division, if the quotient is between 1/2 and 2**20. Other quotients only keep their
    sign and whether they are below 1/2, at least 2**20, or NaN (NaN may also be the result for some below -2**20).
    These are five instructions that overlap, while a division stalls the next one: 2.5 cycles per vector instead of 5
    to 10.

    With r = 1 / scale rounded, q = x * r has an error of at most 2 units in the last place. One step q + r * (x - q *
    scale) reduces it to less than one unit, and a second step from there rounds correctly (Markstein 1990; the
    remainder is exact and cannot underflow: `scale` is within 2**-100 .. 2**100). The bound on x keeps infinities out
    of the remainders.
    """
    fma = declare(builder, "llvm.fma.f32", _FLOAT, _FLOAT, _FLOAT, _FLOAT)
    most = builder.fmul(scale, _FLOAT(2.0**21))
    x = builder.select(builder.fcmp_ordered("<", most, x), most, x)
    reciprocal, minus = builder.fdiv(_FLOAT(1.0), scale), builder.fneg(scale)
    q = builder.fmul(x, reciprocal)
    for _ in range(2):
        q = builder.call(fma, [builder.call(fma, [q, minus, x]), reciprocal, q])
    return q


def _multiplied(builder: Any, x: Any, inverse: Any) -> Any:
    return builder.fmul(x, inverse)


def quantised(dtype: str, *, any_scale: bool = False, inverse: bool = False) -> Any:
    """(LLVM type, conversion): (builder, x, zero, scale) -> x / scale rounded half to even, plus the zero point,
    saturated to an integer type of at most 16 bits; NaN gives the type's lowest value. Scales must be MODERATE unless
    `any_scale`. inverse: x * scale instead, for any scale."""
    ends = np.iinfo(dtype)
    kind, low, high = ir.IntType(ends.bits), _FLOAT(float(ends.min)), _FLOAT(float(ends.max))
    divide = _multiplied if inverse else _divided if any_scale or FMA != "fma" else _near_quotient

    def store(builder: Any, x: Any, zero: Any, scale: Any) -> Any:
        rounded = call(builder, "rint", 1, divide(builder, x, scale))
        y = emit_max(builder, emit_max(builder, builder.fadd(rounded, zero), low), high, "<")
        return builder.trunc(builder.fptosi(y, ir.IntType(32)), kind)

    return kind, store
