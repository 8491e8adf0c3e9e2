"""Integer arithmetic in registers for kernels of quantised tensors: dot products of bytes, requantised stores.

An activation is an unsigned byte here; signed ones are made unsigned by flipping their top bit, which adds 128 (the
other way round on targets that multiply signed bytes faster). Sums are exact. Everything in this file rounds each
product and sum separately: its callers are kernels with fastmath=set().
"""

from __future__ import annotations

from typing import Any, NamedTuple

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from lite_runtime.native.codegen.operations import call
from lite_runtime.native.simd import LANES, SHAPE, declare, emit_mask, emit_max, emit_splat

__all__ = [
    "AWAY",
    "BYTES",
    "FLOATS",
    "INTS",
    "as_address",
    "at",
    "emit_bytes",
    "emit_dot",
    "emit_fixed",
    "emit_in_order",
    "emit_input_dot",
    "emit_pair_dot",
    "emit_rounded",
    "emit_store_narrow",
    "emit_store_part",
    "inputs_are_signed",
    "load_floats",
    "load_ints",
    "load_repeated",
    "narrowing",
    "variable",
]

_I8, _I16, _I32, _I64, _F32 = ir.IntType(8), ir.IntType(16), ir.IntType(32), ir.IntType(64), ir.FloatType()
INTS, BYTES = ir.VectorType(_I32, LANES), ir.VectorType(_I8, 4 * LANES)
"""A register as int32 and as bytes, four per lane."""
FLOATS = ir.VectorType(_F32, LANES)
_PAIRS = ir.VectorType(_I16, 2 * LANES)


def at(builder, where, kind):
    """The address `where` as a pointer to `kind`."""
    return builder.inttoptr(where, kind.as_pointer())


def load_ints(builder, where, align=4):
    """LANES int32 at an address."""
    return builder.load(at(builder, where, INTS), align=align, typ=INTS)


def as_address(builder, number):
    """An address or a count, with as many bits as processors have for it."""
    return builder.trunc(number, _I32) if SHAPE.small else number


def load_repeated(builder, where):
    """LANES int32 at an address, all of which are the same; in registers of one number each, one is loaded."""
    if SHAPE.vectors:
        return load_ints(builder, where)
    return emit_splat(builder, builder.load(at(builder, where, _I32), align=4, typ=_I32), INTS)


def load_floats(builder, where):
    """LANES float32 at an address."""
    return builder.load(at(builder, where, FLOATS), align=4, typ=FLOATS)


def _each(kind: ir.VectorType, value: int):
    return ir.Constant(kind, [value] * kind.count)


def emit_pair_dot(builder, so_far, a, b):
    """so_far + a[2i] * b[2i] + a[2i + 1] * b[2i + 1] of int16 in every int32 lane."""
    return call(builder, "pair_dot", LANES, so_far, builder.bitcast(a, _PAIRS), builder.bitcast(b, _PAIRS))


def emit_dot(builder, so_far, a, w):
    """so_far + the four products of unsigned bytes `a` and signed bytes `w` in every int32 lane."""
    return call(builder, "dot", LANES, so_far, builder.bitcast(a, BYTES), builder.bitcast(w, BYTES))


def emit_input_dot(builder, so_far, a, w):
    """so_far + the four products of an input's bytes and signed bytes `w` in every int32 lane. The input's bytes are
    signed where the target multiplies these faster (`inputs_are_signed`)."""
    return call(builder, "input_dot", LANES, so_far, builder.bitcast(a, BYTES), builder.bitcast(w, BYTES))


@intrinsic
def inputs_are_signed(typing):
    """Whether `emit_input_dot` reads an input's bytes as signed ones: the planner then flips unsigned ones, else signed
    ones."""
    return types.boolean(), lambda context, builder, sig, args: call(builder, "inputs_are_signed", 1)


def emit_rounded(builder, value, low, high, zero):
    """float32 -> int32: limited to [low, high] (whole numbers below 2**22), rounded half to even, plus `zero`.

    Adding 1.5 * 2**23 leaves no bits for a fraction, and float32 addition rounds half to even (IEEE 754, 4.3.1).
    """
    value = emit_max(builder, value, low)
    value = emit_max(builder, value, high, "<")
    shifted = builder.fadd(value, ir.Constant(FLOATS, [12582912.0] * LANES))
    return builder.add(builder.bitcast(shifted, INTS), builder.sub(zero, _each(INTS, 0x4B400000)))


AWAY = 64
"""A flag in the table of shifts: the second rounding of `emit_fixed` is away from zero."""


def emit_fixed(builder, total, multiplier, table):
    """int64 lanes times multipliers / 2**bits: halves up to multiples of 2**(bits - 31), then to whole numbers,
    halves up or away from zero. `table`: bits, plus AWAY; all operands are vectors of int64."""
    kind, most = total.type, _each(total.type, 31)
    bits = builder.and_(table, _each(kind, AWAY - 1))

    def half(amount):
        return builder.lshr(builder.shl(_each(kind, 1), amount), _each(kind, 1))

    first = builder.select(builder.icmp_signed("<", bits, most), bits, most)
    value = builder.ashr(builder.add(builder.mul(total, multiplier), half(first)), first)
    rest = builder.sub(bits, first)
    sign = builder.ashr(value, _each(kind, 63))
    away = builder.and_(builder.icmp_signed("!=", rest, _each(kind, 0)), builder.icmp_signed("!=", table, bits))
    sign = builder.select(away, sign, _each(kind, 0))
    return builder.ashr(builder.add(builder.add(value, half(rest)), sign), rest)


class Narrowing(NamedTuple):
    """The numbers that convert sums to bytes, in registers: see `narrowing`."""

    wild: Any
    high: Any
    point: Any
    floor: Any
    ceiling: Any
    turn: Any


def narrowing(builder, high, wild, point, floor, ceiling, turn) -> Narrowing:
    """high: the highest result minus its zero point, float32. wild: whether a scaled sum can reach 2**31 (int64, 0 or
    1). The others are int64 and describe results made unsigned by flipping the bits of `turn` (128 for int8, 0 for
    uint8): their zero point, the lowest and the highest of them."""
    return Narrowing(
        builder.icmp_signed("!=", wild, _I64(0)),
        emit_splat(builder, high),
        emit_splat(builder, builder.trunc(point, _I16), _PAIRS),
        *(emit_splat(builder, builder.trunc(number, _I8), BYTES) for number in (floor, ceiling, turn)),
    )


def emit_bytes(builder, values, n: Narrowing):
    """Four vectors of scaled sums -> clamp(round_half_even(value), low, high) + zero point as bytes; NaN: low.

    Packing works within 16 bytes: these hold four results of each vector (see `emit_in_order`). It saturates, so bounds
    are applied to bytes. Only values too high for int32 need a bound before it: their conversion may give any number.
    (Applying that bound to all sums cost 6 % of a product of depth 64.)
    """
    held = [variable(builder, value) for value in values]
    with builder.if_then(n.wild, likely=False):
        for one in held:
            builder.store(emit_max(builder, n.high, builder.load(one), "<"), one)
    whole = [call(builder, "whole", LANES, builder.load(one)) for one in held]
    pairs = [call(builder, "pack_pairs", LANES, *whole[i : i + 2]) for i in (0, 2)]
    add = declare(builder, f"llvm.sadd.sat.v{2 * LANES}i16", _PAIRS, _PAIRS, _PAIRS)
    pairs = [builder.call(add, [pair, n.point]) for pair in pairs]
    packed = call(builder, "pack_bytes", LANES, *pairs)
    packed = builder.select(builder.icmp_unsigned(">", packed, n.floor), packed, n.floor)
    packed = builder.select(builder.icmp_unsigned("<", packed, n.ceiling), packed, n.ceiling)
    return builder.xor(packed, n.turn)


def emit_in_order(builder, packed):
    """The result of `emit_bytes`, put into the order of the vectors."""
    if LANES == 4:
        return packed
    order = [4 * i + vector for vector in range(4) for i in range(LANES // 4)]
    packed = builder.bitcast(packed, INTS)
    return builder.bitcast(builder.shuffle_vector(packed, packed, ir.Constant(INTS, order)), BYTES)


def emit_store_part(builder, packed, begin: int, count: int, where):
    """Store `count` bytes of a register, starting at byte `begin`, to an address."""
    if count < packed.type.count:
        order = ir.Constant(ir.VectorType(_I32, count), list(range(begin, begin + count)))
        packed = builder.shuffle_vector(packed, packed, order)
    builder.store(packed, at(builder, where, packed.type), align=1)


def emit_store_narrow(builder, value, where, bits: int, live=None):
    """Store the low `bits` of every lane to an address; only the first `live` (int64) lanes if that is given."""
    kind = ir.IntType(bits)
    narrow = ir.VectorType(kind, value.type.count)
    value = value if value.type == narrow else builder.trunc(value, narrow)
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
    """A local variable with the initial value `value`."""
    return cgutils.alloca_once_value(builder, value)
