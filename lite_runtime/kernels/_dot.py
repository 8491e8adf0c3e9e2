"""How integers meet in a register, for kernels of quantised tensors: dot products of bytes, requantised stores.

An activation is an unsigned byte here; signed ones become so by flipping their top bit, which adds 128. Sums are exact.
Everything in this file rounds each product and sum on its own: its callers are kernels of fastmath=set().
"""

from __future__ import annotations

from llvmlite import ir
from numba.core import cgutils

from lite_runtime.simd import LANES, TARGET, declare, emit_mask, emit_max

__all__ = [
    "BYTES",
    "FLOATS",
    "INTS",
    "at",
    "emit_dot",
    "emit_pair_dot",
    "emit_rounded",
    "emit_store_narrow",
    "load_floats",
    "load_ints",
    "variable",
]

_I8, _I16, _I32, _I64, _F32 = ir.IntType(8), ir.IntType(16), ir.IntType(32), ir.IntType(64), ir.FloatType()
INTS, BYTES = ir.VectorType(_I32, LANES), ir.VectorType(_I8, 4 * LANES)
"""A register as int32 and as bytes, four to a lane."""
FLOATS = ir.VectorType(_F32, LANES)
_PAIRS = ir.VectorType(_I16, 2 * LANES)
_DOT = f"llvm.x86.avx512.vpdpbusd.{32 * LANES}"
_PAIR_DOT = {4: "llvm.x86.sse2.pmadd.wd", 8: "llvm.x86.avx2.pmadd.wd", 16: "llvm.x86.avx512.pmaddw.d.512"}[LANES]
_HAS_DOT = TARGET is not None and TARGET.dot == "vpdpbusd"


def at(builder, where, kind):
    """The address `where` as a pointer to `kind`."""
    return builder.inttoptr(where, kind.as_pointer())


def load_ints(builder, where):
    """LANES int32 at an address."""
    return builder.load(at(builder, where, INTS), align=4, typ=INTS)


def load_floats(builder, where):
    """LANES float32 at an address."""
    return builder.load(at(builder, where, FLOATS), align=4, typ=FLOATS)


def _each(kind: ir.VectorType, value: int):
    return ir.Constant(kind, [value] * kind.count)


def emit_pair_dot(builder, so_far, a, b):
    """so_far + a[2i] * b[2i] + a[2i + 1] * b[2i + 1] of int16 in every int32 lane."""
    function = declare(builder, _PAIR_DOT, INTS, _PAIRS, _PAIRS)
    pairs = [builder.bitcast(x, _PAIRS) for x in (a, b)]
    return builder.add(so_far, builder.call(function, pairs))


def emit_dot(builder, so_far, a, w):
    """so_far + the four products of unsigned bytes `a` and signed bytes `w` in every int32 lane."""
    if _HAS_DOT:
        function = declare(builder, _DOT, INTS, INTS, BYTES, BYTES)
        return builder.call(function, [so_far, builder.bitcast(a, BYTES), builder.bitcast(w, BYTES)])
    a, w, eight = builder.bitcast(a, _PAIRS), builder.bitcast(w, _PAIRS), _each(_PAIRS, 8)
    even = builder.and_(a, _each(_PAIRS, 255)), builder.ashr(builder.shl(w, eight), eight)
    odd = builder.lshr(a, eight), builder.ashr(w, eight)
    return emit_pair_dot(builder, emit_pair_dot(builder, so_far, *even), *odd)


def emit_rounded(builder, value, low, high, zero):
    """float32 -> int32: within [low, high], vectors of whole numbers below 2**22; rounded half to even; plus `zero`.

    Adding 1.5 * 2**23 leaves no bits for a fraction, and float32 addition rounds as wanted (IEEE 754, 4.3.1).
    """
    value = emit_max(builder, value, low)
    value = emit_max(builder, value, high, "<")
    shifted = builder.fadd(value, ir.Constant(FLOATS, [12582912.0] * LANES))
    return builder.add(builder.bitcast(shifted, INTS), builder.sub(zero, _each(INTS, 0x4B400000)))


def emit_store_narrow(builder, value, where, bits: int, live=None):
    """The low `bits` of every int32 lane to an address; of the first `live` (int64) lanes where that is given."""
    kind = ir.IntType(bits)
    narrow = ir.VectorType(kind, value.type.count)
    value = builder.trunc(value, narrow)
    pointer = at(builder, where, narrow)
    if live is None:
        builder.store(value, pointer, align=bits // 8)
        return
    if LANES == 16:
        mask = emit_mask(builder, live)
        name = f"llvm.masked.store.v{LANES}i{bits}.p0"
        function = declare(builder, name, ir.VoidType(), narrow, narrow.as_pointer(), _I32, mask.type)
        builder.call(function, [value, pointer, _I32(bits // 8), mask])
        return
    with builder.if_else(builder.icmp_signed(">=", live, _I64(LANES))) as (whole, part):
        with whole:
            builder.store(value, pointer, align=bits // 8)
        with part:
            for i in range(LANES - 1):
                with builder.if_then(builder.icmp_signed("<", _I64(i), live)):
                    one = builder.add(where, _I64(i * bits // 8))
                    builder.store(builder.extract_element(value, _I32(i)), at(builder, one, kind), align=bits // 8)


def variable(builder, value):
    """A local that starts as `value`."""
    return cgutils.alloca_once_value(builder, value)
