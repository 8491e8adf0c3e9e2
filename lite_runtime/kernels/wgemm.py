"""Products of float32 with constant weights stored in a narrow type: float16, int8 or int4, widened in registers.

Panels are as in `gemm`, with narrower elements: [columns / (NV * LANES)][depth][NV * LANES], and for int4 [depth / 8]
[NV * LANES] dwords, each with the next eight values of a column, the first in the lowest bits. A weight is its element
times the scale of its block (a number of neighbours in a column), plus the block's offset if there are zero points;
scales and offsets are also stored in panels, [blocks][NV * LANES]. float16 needs neither.

With few rows, reading the weights limits the speed: a tile of one row widens them in registers; a block's products are
summed first and scaled together. More rows share the work of widening: a piece of a panel that fits the L1 cache is
converted to float32 there, and `gemm`'s tile runs over it.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import float32, types
from numba.core import cgutils
from numba.extending import intrinsic

from lite_runtime.kernels._halves import emit_halves
from lite_runtime.kernels._map import block_stack
from lite_runtime.kernels._math import activate
from lite_runtime.kernels._memory import FIRST, emit_prefetch
from lite_runtime.kernels._results import emit_results
from lite_runtime.kernels.gemm import BLOCK, TILES, _sweep_1, _sweep_2, _sweep_3, _sweep_4
from lite_runtime.native.codegen.operations import call
from lite_runtime.native.simd import (
    FMA,
    LANES,
    SHAPE,
    address,
    declare,
    device,
    emit_splat,
    f32p,
    first,
    kernel,
    num,
    ptr,
    real,
    splat,
    stack_floats,
    stack_words,
    vec,
    vfma,
    vload,
    vstore,
)
from lite_runtime.steps.declaration import named
from lite_runtime.steps.wgemm import NarrowGemm

GEMM = named(NarrowGemm)

CHUNK = 128
"""Rows of a panel converted to float32 at a time: 32 KB with 16 lanes, and a multiple of int4's 8."""
_WIDEST = 4 * LANES
_PIECE = 4 * CHUNK * _WIDEST
ROWS = 4 if SHAPE.vectors == 32 else 2
"""Rows of the tile that widens in registers, if there are several rows."""
_HELD = BLOCK + max(TILES.values())
"""Addresses of rows: those of a block, and those that its last tile reads beyond them."""
FEW = 2 * ROWS
"""Up to this many rows are widened in registers; they are never split between workers."""
AHEAD = 8192
"""Prefetch distance in bytes: the processor's own prefetching is too slow for bytes that are widened to several times
their size. int4, 4096 x 14336: 31 GB/s without, 35, 37, 41 and 46 at 1, 2, 4 and 8 KB."""
_LEAST, _MOST = np.float32(-np.inf), np.float32(np.inf)

_F32, _I64, _I32, _I16, _I8 = ir.FloatType(), ir.IntType(64), ir.IntType(32), ir.IntType(16), ir.IntType(8)
_FLOATS, _INTS = ir.VectorType(_F32, LANES), ir.VectorType(_I32, LANES)


def _vector(builder, where, element, nbytes):
    """LANES elements at an address."""
    kind = ir.VectorType(element, LANES)
    return builder.load(builder.inttoptr(where, kind.as_pointer()), align=nbytes, typ=kind)


# -- one vector of weights as float32: (builder, address, which of eight) -> vector ----------------------------------


def _emit_int8(builder, where, _):
    return builder.sitofp(builder.sext(_vector(builder, where, _I8, 1), _INTS), _FLOATS)


def _emit_float16(builder, where, _):
    return emit_halves(builder, where)


def _emit_int4(builder, where, which):
    return call(builder, "nibbles", LANES, _vector(builder, where, _I32, 4), which)


class _Form:
    """A kind of element: `wide` as above, its bytes in eight rows of a column, the rows in one load."""

    def __init__(self, wide, eight: int, together: int, scaled: bool) -> None:
        self.wide, self.eight, self.together, self.scaled = wide, eight, together, scaled


_INT4, _INT8 = _Form(_emit_int4, 4, 8, True), _Form(_emit_int8, 8, 1, True)
_FLOAT16 = _Form(_emit_float16, 16, 1, False)


# -- few rows ---------------------------------------------------------------------------------------------------------


def _tile(form: _Form, rows: int, vectors: int, shifted: bool):
    """The register tile: rows x (vectors * LANES) results; `shifted`: blocks have offsets."""
    chains = 2 if rows == 1 else 1

    @intrinsic
    def tile(typing, a, depth, block, panel, scales, offsets, out, stride, bias, residual, low, high, live, columns):
        """a, panel, scales, offsets, out, bias, residual: addresses, the last two or 0; stride: bytes between rows of
        out and residual. Live rows and columns are stored; other rows repeat the last live one."""
        sig = types.void(*[types.int64] * 10, types.float32, types.float32, types.int64, types.int64)

        def lower(context, builder, sig, args):
            a, depth, block, panel, scales, offsets, out, stride, bias, residual, low, high, live, columns = args
            fma = declare(builder, f"llvm.{FMA}.v{LANES}f32", *[_FLOATS] * 4)
            zeros = ir.Constant(_FLOATS, [0.0] * LANES)

            def variables(count):
                return [cgutils.alloca_once(builder, _FLOATS) for _ in range(count)]

            def clear(them):
                for one in them:
                    builder.store(zeros, one)

            def add(into, x, y):
                builder.store(builder.call(fma, [x, y, builder.load(into)]), into)

            totals = [variables(vectors) for _ in range(rows)]
            parts = [[variables(vectors) for _ in range(rows)] for _ in range(chains)]
            inputs = variables(rows)
            for row in totals:
                clear(row)
            last = builder.sub(live, _I64(1))
            starts = [_address(builder, a, _smaller(builder, _I64(i), last), depth, 4) for i in range(rows)]
            weights, k = (cgutils.alloca_once(builder, _I64) for _ in range(2))
            builder.store(panel, weights)
            builder.store(_I64(0), k)

            def products(at, which, chain):
                """The inputs at `at` times their weights; `which`: index of a weight within its load."""
                here = builder.load(weights)
                place = [builder.add(here, _I64(LANES * form.eight * form.together // 8 * j)) for j in range(vectors)]
                wide = [form.wide(builder, one, _I64(which)) for one in place]
                for i in range(rows):
                    where = builder.inttoptr(_address(builder, starts[i], at, _I64(1), 4), _F32.as_pointer())
                    left = emit_splat(builder, builder.load(where, typ=_F32))
                    for j in range(vectors):
                        add(parts[chain][i][j], left, wide[j])
                    if shifted:
                        builder.store(builder.fadd(builder.load(inputs[i]), left), inputs[i])

            def advance():
                here, step = builder.load(weights), LANES * vectors * form.eight * form.together // 8
                for line in range(0, step, 64):
                    emit_prefetch(builder, builder.add(here, _I64(AHEAD + line)), FIRST)
                builder.store(builder.add(here, _I64(step)), weights)
                builder.store(builder.add(builder.load(k), _I64(form.together)), k)

            blocks = builder.sdiv(builder.sub(builder.add(depth, block), _I64(1)), block)
            with cgutils.for_range(builder, blocks, intp=_I64) as loop:
                for chain in parts:
                    for row in chain:
                        clear(row)
                clear(inputs)
                here = _smaller(builder, builder.sub(depth, builder.load(k)), block)
                at_once = max(chains, form.together)
                with cgutils.for_range(builder, builder.sdiv(here, _I64(at_once)), intp=_I64):
                    for n in range(at_once):
                        products(builder.add(builder.load(k), _I64(n % form.together)), n % form.together, n % chains)
                        if (n + 1) % form.together == 0:
                            advance()
                if at_once > form.together:
                    with builder.if_then(builder.icmp_signed("!=", builder.srem(here, _I64(at_once)), _I64(0))):
                        products(builder.load(k), 0, 0)
                        advance()
                for j in range(vectors):
                    place = _address(builder, _I64(4 * LANES * j), loop.index, _I64(vectors), 4 * LANES)
                    if form.scaled:
                        scale = _vector(builder, builder.add(scales, place), _F32, 4)
                        offset = _vector(builder, builder.add(offsets, place), _F32, 4) if shifted else None
                    for i in range(rows):
                        part = builder.load(parts[0][i][j])
                        for chain in parts[1:]:
                            part = builder.fadd(part, builder.load(chain[i][j]))
                        if not form.scaled:
                            builder.store(part, totals[i][j])
                            continue
                        add(totals[i][j], part, scale)
                        if shifted:
                            add(totals[i][j], builder.load(inputs[i]), offset)

            emit_results(builder, totals, out, stride, bias, residual, live, columns, panel, (low, high))
            return context.get_dummy_value()

        return sig, lower

    return tile


def _address(builder, base, index, step, size):
    """base + index * step * size."""
    return builder.add(base, builder.mul(builder.mul(index, step), _I64(size)))


def _smaller(builder, a, b):
    return builder.select(builder.icmp_signed("<", a, b), a, b)


def _few(form: _Form, shifted: bool):
    """Multiply rows by one panel: `ROWS` at a time if the panel is wide and there are several rows."""
    one_1, one_2, one_3, one_4 = (_tile(form, 1, n, shifted) for n in (1, 2, 3, 4))
    some_4 = _tile(form, ROWS, 4, shifted)

    @device
    def few(rows, a, depth, block, panel, scales, offsets, out, stride, bias, residual, low, high, columns):
        vectors = (columns + LANES - 1) // LANES
        step = ROWS if vectors == 4 and rows > 1 else 1
        m = 0
        while m < rows:
            x, y = a + 4 * m * depth, out + m * stride
            more = residual + m * stride if residual != 0 else 0
            if step > 1:
                some_4(x, depth, block, panel, scales, offsets, y, stride, bias, more, low, high, rows - m, columns)
            elif vectors == 4:
                one_4(x, depth, block, panel, scales, offsets, y, stride, bias, more, low, high, 1, columns)
            elif vectors == 3:
                one_3(x, depth, block, panel, scales, offsets, y, stride, bias, more, low, high, 1, columns)
            elif vectors == 2:
                one_2(x, depth, block, panel, scales, offsets, y, stride, bias, more, low, high, 1, columns)
            else:
                one_1(x, depth, block, panel, scales, offsets, y, stride, bias, more, low, high, 1, columns)
            m += step

    return few


# -- more rows --------------------------------------------------------------------------------------------------------


def _widener(form: _Form):
    """widen(panel, vectors, begin, end, block, scales, offsets, to): rows of a panel as float32."""

    @intrinsic
    def wide(typing, where, which):
        return vec(types.int64, types.int64), lambda context, builder, sig, args: form.wide(builder, *args)

    scaled, row_bytes, together = form.scaled, LANES * form.eight * form.together // 8, form.together

    @device
    def widen(panel, vectors, begin, end, block, scales, offsets, to):
        for j in range(vectors):
            k = begin
            while k < end:
                stop = end
                scale, offset = splat(float32(1)), splat(float32(0))
                if scaled:
                    index = k // block
                    stop = min(end, (index + 1) * block)
                    place = 4 * LANES * (index * vectors + j)
                    scale = vload(f32p(scales + place))
                    if offsets != 0:
                        offset = vload(f32p(offsets + place))
                while k < stop:
                    group = k // together
                    value = wide(panel + row_bytes * (group * vectors + j), k - group * together)
                    if scaled:
                        value = vfma(value, scale, offset)
                    vstore(f32p(to + 4 * LANES * ((k - begin) * vectors + j)), value)
                    k += 1

    return widen


def _driver(form: _Form):
    few = _few(form, False)
    few_shifted = _few(form, True) if form.scaled else few
    widen, eight = _widener(form), form.eight

    @device
    def drive(step, bases, worker, workers):
        a, w, scales, offsets = (
            ptr(step, bases, GEMM.a),
            ptr(step, bases, GEMM.w),
            ptr(step, bases, GEMM.scales),
            ptr(step, bases, GEMM.offsets),
        )
        bias, residual, c = ptr(step, bases, GEMM.bias), ptr(step, bases, GEMM.residual), ptr(step, bases, GEMM.c)
        rows, columns, depth, full = (
            num(step, GEMM.rows),
            num(step, GEMM.columns),
            num(step, GEMM.depth),
            num(step, GEMM.vectors),
        )
        block, low, high, activation = (
            num(step, GEMM.block),
            real(step, GEMM.low),
            real(step, GEMM.high),
            num(step, GEMM.activation),
        )
        alpha, beta = real(step, GEMM.alpha), real(step, GEMM.beta)
        blocks = (depth + block - 1) // block
        width = full * LANES
        panels = (columns + width - 1) // width
        lo_m, hi_m, lo_p, hi_p = 0, rows, 0, panels
        # Workers share the columns, so that each weight is widened once; with too few columns they share the rows.
        if panels >= workers or rows < BLOCK:
            lo_p, hi_p = panels * worker // workers, panels * (worker + 1) // workers
        else:
            lo_m, hi_m = first(rows, worker, workers, 24), first(rows, worker + 1, workers, 24)
        buffer = block_stack(_PIECE)
        at, taps_at, no_bias = stack_words(_HELD), stack_words(1), stack_floats(_WIDEST)
        taps_at[0] = 0
        for j in range(4):
            vstore(f32p(address(no_bias) + 4 * LANES * j), splat(float32(0)))
        for p in range(lo_p, hi_p):
            column = p * width
            live = min(width, columns - column)
            vectors = (live + LANES - 1) // LANES
            panel = w + column * depth * eight // 8
            factors, added = scales + 4 * column * blocks, offsets + 4 * column * blocks if offsets != 0 else 0
            shift = bias + 4 * column if bias != 0 else 0
            if rows <= FEW:
                out, more = c + 4 * column, residual + 4 * column if residual != 0 else 0
                if added == 0:
                    few(rows, a, depth, block, panel, factors, 0, out, 4 * columns, shift, more, low, high, live)
                else:
                    few_shifted(
                        rows, a, depth, block, panel, factors, added, out, 4 * columns, shift, more, low, high, live
                    )
            else:
                for begin in range(0, depth, CHUNK):
                    count = min(CHUNK, depth - begin)
                    last = begin + count == depth
                    widen(panel, vectors, begin, begin + count, block, factors, added, buffer)
                    least, most = low if last else _LEAST, high if last else _MOST
                    shift_now = shift if last and shift != 0 else address(no_bias)
                    for m in range(lo_m, hi_m, BLOCK):
                        here = min(BLOCK, hi_m - m)
                        for i in range(_HELD):
                            at[i] = a + 4 * ((m + min(i, here - 1)) * depth + begin)
                        out = c + 4 * (m * columns + column)
                        more = residual + 4 * (m * columns + column) if residual != 0 else 0
                        # The sum of earlier pieces is one more term.
                        so_far = more if begin == 0 else out
                        if vectors == 4:
                            _sweep_4(
                                at, here, taps_at, 1, count, buffer, out, 4 * columns, shift_now, so_far, least, most,
                                live,
                            )  # fmt: skip
                        elif vectors == 3:
                            _sweep_3(
                                at, here, taps_at, 1, count, buffer, out, 4 * columns, shift_now, so_far, least, most,
                                live,
                            )  # fmt: skip
                        elif vectors == 2:
                            _sweep_2(
                                at, here, taps_at, 1, count, buffer, out, 4 * columns, shift_now, so_far, least, most,
                                live,
                            )  # fmt: skip
                        else:
                            _sweep_1(
                                at, here, taps_at, 1, count, buffer, out, 4 * columns, shift_now, so_far, least, most,
                                live,
                            )  # fmt: skip
        # Not in the loop above, where its constants would use up registers that the tile needs.
        if activation > 2:
            start, end = lo_p * width, min(columns, hi_p * width)
            for m in range(lo_m, hi_m):
                if start < end:
                    activate(activation, alpha, beta, f32p(c + 4 * (m * columns + start)), end - start)

    return drive


_int4, _int8, _float16 = _driver(_INT4), _driver(_INT8), _driver(_FLOAT16)


@kernel(NarrowGemm)
def i8_gemm(step, bases, worker, workers):
    """C = clamp(A W + bias + R), then an activation; W from int8."""
    _int8(step, bases, worker, workers)


@kernel(NarrowGemm)
def i4_gemm(step, bases, worker, workers):
    """Like i8_gemm, for weights of 4 bits; depth and blocks are multiples of 8."""
    _int4(step, bases, worker, workers)


@kernel(NarrowGemm)
def f16_gemm(step, bases, worker, workers):
    """Like i8_gemm, for weights of float16, without scales and offsets."""
    _float16(step, bases, worker, workers)
