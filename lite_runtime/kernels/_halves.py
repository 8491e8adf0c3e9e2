"""float16 in memory: kernels compute in float32."""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from lite_runtime.kernels._dot import at
from lite_runtime.native.codegen.operations import call
from lite_runtime.native.simd import LANES, vec

_HALVES = ir.VectorType(ir.IntType(16), LANES)


def emit_halves(builder, where):
    """LANES float16 at an address, as float32."""
    bits = builder.load(at(builder, where, _HALVES), align=2, typ=_HALVES)
    return call(builder, "from_half", LANES, bits)


@intrinsic
def load_halves(typing, where):
    """LANES float16 at an address, as float32."""
    return vec(types.int64), lambda context, builder, sig, args: emit_halves(builder, args[0])


@intrinsic
def from_half(typing, bits):
    """float32 of a float16, given by its bits."""
    return types.float32(types.int16), lambda context, builder, sig, args: call(builder, "from_half", 1, args[0])


@intrinsic
def to_half(typing, value):
    """The bits of the nearest float16."""
    return types.int16(types.float32), lambda context, builder, sig, args: call(builder, "to_half", 1, args[0])
