"""Integer sums to bytes in LiteRT's fixed-point arithmetic.

A step of its own, after a product whose result is the sums: done by the product's tile it made plain products of depth
16 to 64 slower by 2 to 4 %, even where they skip it.
"""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from lite_runtime.kernels._dot import INTS, emit_fixed, emit_store_narrow, load_ints
from lite_runtime.native.simd import LANES, emit_splat, first, kernel, num, ptr
from lite_runtime.steps.declaration import named
from lite_runtime.steps.qsettle import SettleSums

SETTLE = named(SettleSums)

_I64 = ir.IntType(64)
_LONGS = ir.VectorType(_I64, LANES)
_GRAIN = 1024
"""Elements of a worker's smallest share."""


@intrinsic
def _settle(typing, sums, multipliers, shifts, out, live, zero, low, high):
    """LANES results, of which `live` bytes are stored. Sums are read to the end of the vector: their memory is padded
    by a vector."""

    def lower(context, builder, sig, args):
        sums, multipliers, shifts, out, live, zero, low, high = args
        words = [builder.sext(load_ints(builder, where), _LONGS) for where in (sums, multipliers, shifts)]
        value = emit_fixed(builder, *words)
        value = builder.add(value, emit_splat(builder, zero, _LONGS))
        for sign, end in (("<", low), (">", high)):
            limit = emit_splat(builder, end, _LONGS)
            value = builder.select(builder.icmp_signed(sign, value, limit), limit, value)
        emit_store_narrow(builder, builder.trunc(value, INTS), out, 8, live)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 8), lower


@kernel(SettleSums)
def i32_settle(step, bases, worker, workers):
    """Rows of sums; a column's numbers stay in place while all rows use them."""
    x, y = ptr(step, bases, SETTLE.x), ptr(step, bases, SETTLE.y)
    multipliers, shifts = ptr(step, bases, SETTLE.multipliers), ptr(step, bases, SETTLE.shifts)
    rows, columns = num(step, SETTLE.rows), num(step, SETTLE.columns)
    zero, low, high = num(step, SETTLE.zero), num(step, SETTLE.low), num(step, SETTLE.high)
    grain = (_GRAIN + columns - 1) // columns
    for row in range(first(rows, worker, workers, grain), first(rows, worker + 1, workers, grain)):
        for at in range(0, columns, LANES):
            source, target = x + 4 * (row * columns + at), y + row * columns + at
            _settle(source, multipliers + 4 * at, shifts + 4 * at, target, columns - at, zero, low, high)
