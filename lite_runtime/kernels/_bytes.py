"""int8 with float16 scales in memory: kernels compute in float32."""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from lite_runtime.kernels._dot import FLOATS, INTS, at, emit_store_narrow
from lite_runtime.native.codegen.operations import call
from lite_runtime.native.simd import LANES, vec

_BYTES, _SHORTS = ir.VectorType(ir.IntType(8), LANES), ir.VectorType(ir.IntType(16), LANES)


def emit_load_bytes(builder, where):
    """LANES bytes at an address."""
    return builder.load(at(builder, where, _BYTES), align=1, typ=_BYTES)


@intrinsic
def load_bytes(typing, where):
    """LANES int8 at an address, as float32."""

    def lower(context, builder, sig, args):
        return builder.sitofp(builder.sext(emit_load_bytes(builder, args[0]), INTS), FLOATS)

    return vec(types.int64), lower


@intrinsic
def store_bytes(typing, value, where):
    """LANES whole numbers of -128 to 127 to int8 at an address."""

    def lower(context, builder, sig, args):
        emit_store_narrow(builder, call(builder, "whole", LANES, args[0]), args[1], 8)
        return context.get_dummy_value()

    return types.void(vec, types.int64), lower


@intrinsic
def load_split(typing, low, high):
    """LANES float16 as float32: their low bytes at one address, their high bytes at another."""

    def lower(context, builder, sig, args):
        parts = [builder.zext(emit_load_bytes(builder, where), _SHORTS) for where in args]
        bits = builder.or_(parts[0], builder.shl(parts[1], ir.Constant(_SHORTS, [8] * LANES)))
        return call(builder, "from_half", LANES, bits)

    return vec(types.int64, types.int64), lower
