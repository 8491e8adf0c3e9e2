"""Products whose right operand is chosen for each row, float32: x @ table[slot], for rows of many owners in one batch.

Neighbouring rows of one slot are multiplied by its matrix together, in register tiles; a single row reads the matrix
once, which reaches the memory bandwidth: 42 GB/s with matrices that are not in any cache. Prefetching the next matrix
lost 15 to 25 %. Matrices are stored in the table row-major, so that writing one is a copy. Each result is one chain of
fused multiply-adds in ascending k, as in `gemm`, for every tile: results do not depend on the other rows of a batch or
on the number of workers.
"""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from lite_runtime.kernels._math import activate
from lite_runtime.kernels.gemm import TILES
from lite_runtime.native.simd import (
    FMA,
    LANES,
    declare,
    device,
    emit_load,
    emit_mask,
    emit_max,
    emit_splat,
    emit_store,
    f32p,
    fault,
    first,
    i64p,
    kernel,
    num,
    ptr,
    real,
)
from lite_runtime.steps.declaration import named
from lite_runtime.steps.grouped import F32Grouped

GROUPED = named(F32Grouped)

PANEL = 4 * LANES
_F32, _I64 = ir.FloatType(), ir.IntType(64)
_VEC = ir.VectorType(_F32, LANES)


def _tile(rows: int, vectors: int):
    """The register tile: up to rows x (vectors * LANES) results."""

    @intrinsic
    def tile(typing, x, depth, w, pitch, out, bias, residual, low, high, live, columns):
        """x, w, out, bias, residual: addresses; the last two may be 0. pitch: bytes between rows of w, out and
        residual; x is dense. Rows from `live` on repeat the last one and are dropped; columns from `columns` on are not
        accessed."""
        sig = types.void(*[types.int64] * 7, types.float32, types.float32, types.int64, types.int64)

        def lower(context, builder, sig, args):
            x, depth, w, pitch, out, bias, residual, low, high, live, columns = args
            fma = declare(builder, f"llvm.{FMA}.v{LANES}f32", _VEC, _VEC, _VEC, _VEC)
            zero, nothing = ir.Constant(_VEC, [0.0] * LANES), ir.Constant(ir.VectorType(ir.IntType(1), LANES), None)
            sums = [[cgutils.alloca_once_value(builder, zero) for _ in range(vectors)] for _ in range(rows)]
            masks = [emit_mask(builder, builder.sub(columns, _I64(j * LANES))) for j in range(vectors)]
            reading = [None] * (vectors - 1) + masks[-1:]
            last, wide = builder.sub(live, _I64(1)), builder.mul(depth, _I64(4))
            bases = []
            for i in range(rows):
                row = builder.select(builder.icmp_signed("<", _I64(i), live), _I64(i), last)
                bases.append(builder.add(x, builder.mul(wide, row)))
            at = cgutils.alloca_once_value(builder, w)
            with cgutils.for_range(builder, depth, intp=_I64) as loop:
                here, k = builder.load(at), builder.mul(loop.index, _I64(4))
                weights = [emit_load(builder, _pointer(builder, here, j), reading[j]) for j in range(vectors)]
                for base, row in zip(bases, sums, strict=True):
                    one = emit_splat(builder, builder.load(_pointer(builder, builder.add(base, k)), typ=_F32))
                    for weight, total in zip(weights, row, strict=True):
                        builder.store(builder.call(fma, [one, weight, builder.load(total)]), total)
                builder.store(builder.add(here, pitch), at)
            held = builder.icmp_signed("!=", bias, _I64(0))
            # The masked load of an absent bias reads nothing, but from a mapped address: with an unmapped one the
            # processor needs hundreds of cycles, even if no lane is selected.
            there = builder.select(held, bias, w)
            shift = [
                emit_load(builder, _pointer(builder, there, j), builder.select(held, masks[j], nothing))
                for j in range(vectors)
            ]
            bounds = emit_splat(builder, low), emit_splat(builder, high)

            def finish(add):
                for i, row in enumerate(sums):
                    with builder.if_then(builder.icmp_signed("<", _I64(i), live)):
                        line = builder.mul(pitch, _I64(i))
                        for j, total in enumerate(row):
                            value = builder.fadd(builder.load(total), shift[j])
                            if add:
                                more = _pointer(builder, builder.add(residual, line), j)
                                value = builder.fadd(value, emit_load(builder, more, masks[j]))
                            value = emit_max(builder, bounds[0], value)
                            value = emit_max(builder, bounds[1], value, "<")
                            emit_store(builder, value, _pointer(builder, builder.add(out, line), j), masks[j])

            with builder.if_else(builder.icmp_signed("!=", residual, _I64(0))) as (with_residual, without):
                with with_residual:
                    finish(True)
                with without:
                    finish(False)
            return context.get_dummy_value()

        return sig, lower

    return tile


def _pointer(builder, where, j=0):
    return builder.inttoptr(builder.add(where, _I64(4 * LANES * j)), _F32.as_pointer())


def _sweep(vectors: int):
    size = TILES[vectors]
    tall, thin = _tile(size, vectors), _tile(1, vectors)

    @device
    def sweep(x, rows, depth, w, pitch, out, bias, residual, low, high, columns):
        """Multiply rows of one slot by a panel of its matrix."""
        if rows == 1:
            thin(x, depth, w, pitch, out, bias, residual, low, high, 1, columns)
        else:
            for i in range(0, rows, size):
                more = residual + i * pitch if residual != 0 else 0
                here = out + i * pitch
                tall(x + 4 * i * depth, depth, w, pitch, here, bias, more, low, high, rows - i, columns)

    return sweep


_sweep_1, _sweep_2, _sweep_3, _sweep_4 = (_sweep(n) for n in (1, 2, 3, 4))


@kernel(F32Grouped)
def f32_grouped(step, bases, worker, workers):
    """y = clamp(x table[slot] + bias[slot] + R), then an activation."""
    x, table, slots = (
        ptr(step, bases, GROUPED.x),
        ptr(step, bases, GROUPED.table),
        i64p(ptr(step, bases, GROUPED.slots)),
    )
    biases, residual, y = (
        ptr(step, bases, GROUPED.biases),
        ptr(step, bases, GROUPED.residual),
        ptr(step, bases, GROUPED.y),
    )
    rows, each, depth, columns = (
        num(step, GROUPED.rows),
        num(step, GROUPED.each),
        num(step, GROUPED.depth),
        num(step, GROUPED.columns),
    )
    matrices, low, high = num(step, GROUPED.matrices), real(step, GROUPED.low), real(step, GROUPED.high)
    activation, alpha, beta = num(step, GROUPED.activation), real(step, GROUPED.alpha), real(step, GROUPED.beta)
    panels = (columns + PANEL - 1) // PANEL
    pitch = 4 * columns
    # With few rows, workers share the columns; otherwise the rows.
    if rows < 2 * workers:
        m, end = 0, rows
        lo, hi = panels * worker // workers, panels * (worker + 1) // workers
    else:
        m, end = first(rows, worker, workers, 1), first(rows, worker + 1, workers, 1)
        lo, hi = 0, panels
    while m < end:
        group = m // each
        slot = slots[group]
        stop = (group + 1) * each
        while stop < end and slots[stop // each] == slot:
            stop += each
        count = min(stop, end) - m
        if slot < 0 or slot >= matrices:
            fault(step, bases)
            slot = 0
        for panel in range(lo, hi):
            column = panel * PANEL
            live = min(PANEL, columns - column)
            vectors = (live + LANES - 1) // LANES
            w = table + 4 * (slot * depth * columns + column)
            out = y + m * pitch + 4 * column
            bias = biases + 4 * (slot * columns + column) if biases != 0 else 0
            more = residual + m * pitch + 4 * column if residual != 0 else 0
            here = x + 4 * m * depth
            if vectors == 4:
                _sweep_4(here, count, depth, w, pitch, out, bias, more, low, high, live)
            elif vectors == 3:
                _sweep_3(here, count, depth, w, pitch, out, bias, more, low, high, live)
            elif vectors == 2:
                _sweep_2(here, count, depth, w, pitch, out, bias, more, low, high, live)
            else:
                _sweep_1(here, count, depth, w, pitch, out, bias, more, low, high, live)
        # Not in the loop above, where its constants would use up registers that the tile needs.
        if activation > 2 and hi > lo:
            wide = min(columns, hi * PANEL) - lo * PANEL
            for i in range(count):
                activate(activation, alpha, beta, f32p(y + (m + i) * pitch + 4 * lo * PANEL), wide)
        m += count
