"""Low-rank adapters, float32: y = base + (x A) B, where each row of x has matrices of its own.

Neighbouring rows with one adapter are computed together, in register tiles, so that a long prompt reads its adapter
once for several rows; a single row reads it once. A^T lies with the depth in neighbours: a number of x A is one chain
of fused multiply-adds in each lane, and then the sum of the lanes. A number of the result is one chain in ascending
rank, to which base is added. These orders are the same for every tile: results do not depend on the other rows of a
batch, nor on the number of workers.
"""

from __future__ import annotations

from llvmlite import ir
from numba import int64, types
from numba.core import cgutils
from numba.extending import intrinsic

from lite_runtime.native.simd import (
    FMA,
    LANES,
    SHAPE,
    address,
    declare,
    device,
    emit_load,
    emit_mask,
    emit_splat,
    emit_store,
    f32p,
    fault,
    first,
    i32p,
    kernel,
    num,
    ptr,
    stack_floats,
    vload_n,
    vstore_n,
)
from lite_runtime.operators.language import RANK
from lite_runtime.steps.declaration import named
from lite_runtime.steps.lora import Adapt

ADAPT = named(Adapt)

TALL = 4 if SHAPE.vectors == 32 else 2
"""Rows of a tile."""
RANKS = 4
"""Columns of A in a tile of several rows; a single row has twice as many chains."""
BLOCK = 16
"""Rows whose x A is on the stack."""
_HELD = BLOCK * RANK
_F32, _I64, _I32 = ir.FloatType(), ir.IntType(64), ir.IntType(32)
_VEC = ir.VectorType(_F32, LANES)
_ZERO = ir.Constant(_VEC, [0.0] * LANES)


def _pointer(builder, where, more=0):
    """The float at an address plus some bytes."""
    more = more if isinstance(more, ir.Value) else _I64(more)
    return builder.inttoptr(builder.add(where, more), _F32.as_pointer())


def _starts(builder, base, count, live, pitch):
    """Addresses of `count` rows; from `live` on, the last one again."""
    last = builder.sub(live, _I64(1))
    numbers = [builder.select(builder.icmp_signed("<", _I64(i), live), _I64(i), last) for i in range(count)]
    return [builder.add(base, builder.mul(i, pitch)) for i in numbers]


def _sum(builder, vector):
    """The sum of the lanes, halves first."""
    width = LANES
    while width > 1:
        width //= 2
        order = ir.Constant(ir.VectorType(_I32, LANES), [(i + width) % LANES for i in range(LANES)])
        vector = builder.fadd(vector, builder.shuffle_vector(vector, vector, order))
    return builder.extract_element(vector, _I32(0))


def _narrow(rows: int, ranks: int):
    """The tile of x A: rows x ranks numbers."""

    @intrinsic
    def tile(typing, x, a, depth, to, live, columns):
        """Addresses of x, dense, and of A^T. `live` rows and `columns` columns exist; others repeat the last one. All
        rows x ranks numbers are stored, `RANK` apart."""

        def lower(context, builder, sig, args):
            x, a, depth, to, live, columns = args
            fma = declare(builder, f"llvm.{FMA}.v{LANES}f32", *[_VEC] * 4)
            pitch = builder.mul(depth, _I64(4))
            lines, weights = _starts(builder, x, rows, live, pitch), _starts(builder, a, ranks, columns, pitch)
            sums = [[cgutils.alloca_once_value(builder, _ZERO) for _ in range(ranks)] for _ in range(rows)]

            def add(at, mask=None):
                right = [emit_load(builder, _pointer(builder, w, at), mask) for w in weights]
                for line, totals in zip(lines, sums, strict=True):
                    left = emit_load(builder, _pointer(builder, line, at), mask)
                    for one, total in zip(right, totals, strict=True):
                        builder.store(builder.call(fma, [left, one, builder.load(total)]), total)

            whole = builder.udiv(depth, _I64(LANES))
            with cgutils.for_range(builder, whole, intp=_I64) as loop:
                add(builder.mul(loop.index, _I64(4 * LANES)))
            done = builder.mul(whole, _I64(LANES))
            with builder.if_then(builder.icmp_signed("<", done, depth), likely=False):
                add(builder.mul(done, _I64(4)), emit_mask(builder, builder.sub(depth, done)))
            for i, totals in enumerate(sums):
                for j, total in enumerate(totals):
                    builder.store(_sum(builder, builder.load(total)), _pointer(builder, to, 4 * (i * RANK + j)))
            return context.get_dummy_value()

        return types.void(*[types.int64] * 6), lower

    return tile


def _widen(rows: int, vectors: int, tail: bool):
    """The tile of base + T B: rows x (vectors * LANES) results."""

    @intrinsic
    def tile(typing, t, b, rank, pitch, base, out, live, columns):
        """Addresses of T, `RANK` apart, and of B. pitch: bytes between rows of B, base and out. `live` rows exist.
        tail: only `columns` columns are accessed."""

        def lower(context, builder, sig, args):
            t, b, rank, pitch, base, out, live, columns = args
            fma = declare(builder, f"llvm.{FMA}.v{LANES}f32", *[_VEC] * 4)
            sums = [[cgutils.alloca_once_value(builder, _ZERO) for _ in range(vectors)] for _ in range(rows)]
            mask = emit_mask(builder, columns) if tail else None
            lines = _starts(builder, t, rows, live, _I64(4 * RANK))
            with cgutils.for_range(builder, rank, intp=_I64) as loop:
                here, k = builder.mul(loop.index, pitch), builder.mul(loop.index, _I64(4))
                weights = [
                    emit_load(builder, _pointer(builder, builder.add(b, here), 4 * LANES * j), mask)
                    for j in range(vectors)
                ]
                for line, totals in zip(lines, sums, strict=True):
                    one = emit_splat(builder, builder.load(_pointer(builder, line, k), typ=_F32))
                    for weight, total in zip(weights, totals, strict=True):
                        builder.store(builder.call(fma, [one, weight, builder.load(total)]), total)
            for i, totals in enumerate(sums):
                with builder.if_then(builder.icmp_signed("<", _I64(i), live)):
                    line = builder.mul(pitch, _I64(i))
                    for j, total in enumerate(totals):
                        more = builder.add(line, _I64(4 * LANES * j))
                        term = emit_load(builder, _pointer(builder, base, more), mask)
                        value = builder.fadd(term, builder.load(total))
                        emit_store(builder, value, _pointer(builder, out, more), mask)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 8), lower

    return tile


_narrow_tall, _narrow_one = _narrow(TALL, RANKS), _narrow(1, 2 * RANKS)
_widen_tall, _widen_tall_tail = _widen(TALL, 2, False), _widen(TALL, 1, True)
_widen_one, _widen_one_tail = _widen(1, 4, False), _widen(1, 1, True)


@device
def _down(x, a, depth, rank, count, to):
    """`count` rows of x A."""
    if count == 1:
        for j in range(0, rank, 2 * RANKS):
            _narrow_one(x, a + 4 * j * depth, depth, to + 4 * j, 1, rank - j)
    else:
        for j in range(0, rank, RANKS):
            for i in range(0, count, TALL):
                here = to + 4 * (i * RANK + j)
                _narrow_tall(x + 4 * i * depth, a + 4 * j * depth, depth, here, count - i, rank - j)


@device
def _up(t, b, rank, pitch, base, out, count, columns):
    """base + T B of `count` rows."""
    if count == 1:
        done = 0
        while done + 4 * LANES <= columns:
            _widen_one(t, b + 4 * done, rank, pitch, base + 4 * done, out + 4 * done, 1, 0)
            done += 4 * LANES
        while done < columns:
            _widen_one_tail(t, b + 4 * done, rank, pitch, base + 4 * done, out + 4 * done, 1, columns - done)
            done += LANES
    else:
        for i in range(0, count, TALL):
            line, more, to = t + 4 * i * RANK, base + i * pitch, out + i * pitch
            done = 0
            while done + 2 * LANES <= columns:
                _widen_tall(line, b + 4 * done, rank, pitch, more + 4 * done, to + 4 * done, count - i, 0)
                done += 2 * LANES
            while done < columns:
                left = columns - done
                _widen_tall_tail(line, b + 4 * done, rank, pitch, more + 4 * done, to + 4 * done, count - i, left)
                done += LANES


@device
def _copy(source, target, columns):
    for j in range(0, columns, LANES):
        vstore_n(f32p(target + 4 * j), vload_n(f32p(source + 4 * j), columns - j), columns - j)


@kernel(Adapt)
def f32_adapt(step, bases, worker, workers):
    """y = base + (x A) B of each row's adapter."""
    x, base, adapters = ptr(step, bases, ADAPT.x), ptr(step, bases, ADAPT.base), ptr(step, bases, ADAPT.adapters)
    which, y = i32p(ptr(step, bases, ADAPT.which)), ptr(step, bases, ADAPT.y)
    rows, depth, columns = num(step, ADAPT.rows), num(step, ADAPT.depth), num(step, ADAPT.columns)
    rank, offset, slots, size = (
        num(step, ADAPT.rank),
        num(step, ADAPT.offset),
        num(step, ADAPT.slots),
        num(step, ADAPT.size),
    )
    held = address(stack_floats(_HELD))
    pitch = 4 * columns
    # With few rows, workers share the columns, and each computes x A for itself; otherwise they share the rows.
    if rows < 2 * workers:
        m, end = int64(0), rows
        begin, stop = first(columns, worker, workers, LANES), first(columns, worker + 1, workers, LANES)
    else:
        m, end = first(rows, worker, workers, 1), first(rows, worker + 1, workers, 1)
        begin, stop = int64(0), columns
    while m < end and begin < stop:
        slot = int64(which[m])
        count = int64(1)
        while m + count < end and count < BLOCK and int64(which[m + count]) == slot:
            count += 1
        here, to = base + m * pitch + 4 * begin, y + m * pitch + 4 * begin
        if slot >= slots:
            fault(step, bases)
        if slot < 0 or slot >= slots:
            if here != to:
                for i in range(count):
                    _copy(here + i * pitch, to + i * pitch, stop - begin)
        else:
            a = adapters + 4 * (slot * size + offset)
            b = a + 4 * (rank * depth + begin)
            _down(x + 4 * m * depth, a, depth, rank, count, held)
            _up(held, b, rank, pitch, here, to, count, stop - begin)
        m += count
