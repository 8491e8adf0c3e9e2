"""Products with weights of 4 or 8 bits in blocks, read in place from a bundle's file.

Weights lie in the panels of `reference.blocked`: words of four bytes, sixteen columns next to one another, so that a
word of a row's activations times a vector of words is one dot product of four in every column. The sum of a block of
32, or of 16 where blocks of weights are smaller, is an integer; times the scale of the activations' block and the scale
of the weights' block it is added to a float32. The weights' offsets are added with the sums of the activations' blocks,
which `quantize` made. The order of the float32 sums is that of the blocks for every tile, so results do not depend on
rows, workers or vectors.

With few rows, reading the weights limits the speed. With float32 activations, pieces of a panel are widened into a
buffer and `gemm`'s tiles run over it.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import float32, int64, types
from numba.core import cgutils
from numba.extending import intrinsic

from lite_runtime.kernels._bytes import store_bytes
from lite_runtime.kernels._dot import BYTES, FLOATS, INTS, at, load_floats, load_ints
from lite_runtime.kernels._halves import emit_halves, from_half
from lite_runtime.kernels._map import rolled
from lite_runtime.kernels._math import activate
from lite_runtime.kernels._memory import FIRST, SECOND, emit_prefetch
from lite_runtime.kernels._results import emit_results
from lite_runtime.kernels._vmath import across_max, across_sum, vlane0
from lite_runtime.kernels.gemm import BLOCK, TILES, _sweep_1, _sweep_2, _sweep_4
from lite_runtime.kernels.indexing import index_at
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
    fault,
    first,
    i16p,
    kernel,
    num,
    ptr,
    real,
    splat,
    stack_floats,
    stack_words,
    u8p,
    vabs,
    vec,
    vfma,
    vload,
    vmax,
    vrint,
    vstore,
)
from lite_runtime.operators.language import ACTIVATIONS as UNIT
from lite_runtime.operators.language import PANEL, SMALLER
from lite_runtime.steps.blocked import BlockGemm, EmbedBlocks, FloatBlockGemm, GatedBlocks, QuantizeBlocks
from lite_runtime.steps.declaration import named

GEMM = named(BlockGemm)
WIDE = named(FloatBlockGemm)
EMBED = named(EmbedBlocks)
QUANTIZE = named(QuantizeBlocks)
GATED = named(GatedBlocks)

VECTORS = PANEL // LANES
"""Vectors of a panel."""
PANELS = 2 if LANES == 16 else 1
"""Panels of a tile."""
MANY = 6 if LANES == 16 else 3 if SHAPE.vectors == 32 else 2
"""Rows of the largest tile: its integer sums and its float sums are in registers."""
SOME = 4 if MANY == 6 else (MANY + 1) // 2
"""Rows of the smaller tile: up to so many take as long as one, where reading the weights limits the speed."""
HALVES = 2 * SOME if 2 * SOME > MANY else 0
"""Rows that two smaller tiles divide better than a large one and a rest."""
AHEAD = 4096
"""Prefetch distance in bytes, of a single row."""
NEAR = {4: FIRST, 8: SECOND}
"""The cache that following panels are prefetched into, by bits: two of 18 KB and their rows do not fit the first."""
_LINE = 64
"""Bytes of a cache line."""
CHUNK = 128
"""Depth of a panel that is widened at a time."""
_PIECE = CHUNK * PANEL
_GATES = MANY * UNIT
"""Results of a tile's rows in a block of 32."""
_HELD = BLOCK + max(TILES.values())
"""Addresses of rows: those of a block, and those that its last tile reads beyond them."""

_F32, _I64, _I32 = ir.FloatType(), ir.IntType(64), ir.IntType(32)
_ZERO, _LEAST, _MOST = np.float32(0), np.float32(-np.inf), np.float32(np.inf)


def _plus(builder, base, index, size):
    """base + index * size."""
    return builder.add(base, builder.mul(index, size if isinstance(size, ir.Value) else _I64(size)))


def _scalar(builder, where):
    return builder.load(at(builder, where, _F32), align=4, typ=_F32)


def _table(builder, base, index, wide):
    """LANES scales or offsets, from element `index` of a table of float16, or of float32 where `wide` is set."""
    found = cgutils.alloca_once(builder, FLOATS)
    with builder.if_else(wide, likely=False) as (floats, halves):
        with floats:
            builder.store(load_floats(builder, _plus(builder, base, index, 4)), found)
        with halves:
            builder.store(emit_halves(builder, _plus(builder, base, index, 2)), found)
    return builder.load(found)


# -- the register tile ------------------------------------------------------------------------------------------------


def _words(builder, bits, where):
    """The vectors of bytes in a vector of words at an address: one of values 0 to 255, or two of 0 to 15."""
    words = load_ints(builder, where)
    if bits == 8:
        return [words]
    low = ir.Constant(INTS, [0x0F0F0F0F] * LANES)
    return [builder.and_(words, low), builder.and_(builder.lshr(words, ir.Constant(INTS, [4] * LANES)), low)]


def _tile(bits: int, rows: int, unit: int):
    """rows x PANELS * PANEL results; the integers of `unit` neighbours, then their share of the float sums."""
    loads = unit * bits // 32
    """Vectors of words in a block."""
    together = 8 // bits

    @intrinsic
    def tile(
        typing, a, a_scales, a_sums, pitch, depth, w, scales, offsets, block, wide, zero, out, stride, bias, residual,
        live, columns, ahead,
    ):  # fmt: skip
        """Addresses of the first row and of the first panel; pitch: bytes between rows of a; stride: between those of
        out and residual. `live` rows and `columns` columns are stored; other rows repeat the last live one.
        ahead: where the cache lines are that a tile of several rows prefetches, one for each vector of words."""
        sig = types.void(*[types.int64] * 10, types.float32, *[types.int64] * 7)

        def lower(context, builder, sig, args):
            (
                a, a_scales, a_sums, pitch, depth, w, scales, offsets, block, wide, zero, out, stride, bias, residual,
                live, columns, ahead,
            ) = args  # fmt: skip
            fma = declare(builder, f"llvm.{FMA}.v{LANES}f32", *[FLOATS] * 4)
            nothing = ir.Constant(FLOATS, [0.0] * LANES)
            vectors = PANELS * VECTORS
            totals = [[cgutils.alloca_once_value(builder, nothing) for _ in range(vectors)] for _ in range(rows)]
            units = builder.udiv(depth, _I64(unit))
            last = builder.sub(live, _I64(1))
            numbers = [builder.select(builder.icmp_signed("<", _I64(i), last), _I64(i), last) for i in range(rows)]
            starts = [_plus(builder, a, i, pitch) for i in numbers]
            tables = [builder.mul(builder.mul(i, builder.udiv(pitch, _I64(unit))), _I64(4)) for i in numbers]
            # A second panel that has no columns is the first one again.
            second = builder.icmp_signed(">", columns, _I64(PANEL))
            apart = [builder.select(second, builder.mul(depth, _I64(PANEL * bits // 8)), _I64(0))]
            blocks = builder.udiv(depth, block)
            entries = [builder.select(second, builder.mul(blocks, _I64(PANEL)), _I64(0))]
            panels = [_I64(0), *apart][:PANELS]
            places = [_I64(0), *entries][:PANELS]
            is_wide = builder.icmp_signed("!=", wide, _I64(0))
            shifted = builder.icmp_signed("!=", offsets, _I64(0))
            minus = emit_splat(builder, builder.fneg(zero))
            none = ir.Constant(INTS, [0] * LANES)

            sums = [[cgutils.alloca_once(builder, INTS) for _ in range(vectors)] for _ in range(rows)]
            index, left_in_block = (cgutils.alloca_once_value(builder, value) for value in (_I64(0), block))
            everywhere = [(p, j) for p in range(PANELS) for j in range(VECTORS)]

            def add(number, load):
                """Vectors of words `load` of block `number` of activations times the rows' bytes."""
                here = _plus(builder, _plus(builder, w, number, 4 * PANEL * loads), load, 4 * PANEL)
                if rows == 1:
                    for p in range(PANELS):
                        emit_prefetch(builder, builder.add(builder.add(here, panels[p]), _I64(AHEAD)), FIRST)
                else:
                    line = _plus(builder, builder.mul(number, _I64(loads)), load, 1)
                    emit_prefetch(builder, _plus(builder, ahead, line, _LINE), NEAR[bits])
                lines = [builder.add(builder.add(here, panels[p]), _I64(4 * LANES * j)) for p, j in everywhere]
                weights = [_words(builder, bits, line) for line in lines]
                for half in range(together):
                    for i in range(rows):
                        here = _plus(builder, _plus(builder, starts[i], number, unit), load, 4 * together)
                        word = builder.load(at(builder, builder.add(here, _I64(4 * half)), _I32), align=1, typ=_I32)
                        left = builder.bitcast(emit_splat(builder, word, INTS), BYTES)
                        for j in range(vectors):
                            right = builder.bitcast(weights[j][half], BYTES)
                            name = "small_dot" if bits == 4 else "dot"
                            more = call(builder, name, LANES, builder.load(sums[i][j]), right, left)
                            builder.store(more, sums[i][j])

            def settle(number):
                """A block's integers, scaled, to the totals."""
                factors, terms = [], []
                for p, j in everywhere:
                    entry = builder.add(builder.add(builder.load(index), places[p]), _I64(LANES * j))
                    factor = _table(builder, scales, entry, is_wide)
                    term = cgutils.alloca_once_value(builder, builder.fmul(factor, minus))
                    with builder.if_then(shifted):
                        given = _table(builder, offsets, entry, is_wide)
                        builder.store(builder.fadd(builder.load(term), given), term)
                    factors.append(factor)
                    terms.append(builder.load(term))
                for i in range(rows):
                    entry = builder.add(tables[i], builder.mul(number, _I64(4)))
                    scale = emit_splat(builder, _scalar(builder, builder.add(a_scales, entry)))
                    total = emit_splat(builder, _scalar(builder, builder.add(a_sums, entry)))
                    for j in range(vectors):
                        product = builder.fmul(builder.sitofp(builder.load(sums[i][j]), FLOATS), scale)
                        so_far = builder.call(fma, [product, factors[j], builder.load(totals[i][j])])
                        builder.store(builder.call(fma, [total, terms[j], so_far]), totals[i][j])
                rest = builder.sub(builder.load(left_in_block), _I64(unit))
                done = builder.icmp_signed("<=", rest, _I64(0))
                builder.store(builder.select(done, block, rest), left_in_block)
                step = builder.select(done, _I64(PANEL), _I64(0))
                builder.store(builder.add(builder.load(index), step), index)

            with cgutils.for_range(builder, units, intp=_I64) as loop:
                for row in sums:
                    for one in row:
                        builder.store(none, one)
                if rows == 1:
                    for load in range(loads):
                        add(loop.index, _I64(load))
                else:  # unrolled, LLVM would move all loads of a block to its beginning, and out of registers again
                    rolled(builder, loads, lambda load, number=loop.index: add(number, load))
                settle(loop.index)

            emit_results(builder, totals, out, stride, bias, residual, live, columns, w)
            return context.get_dummy_value()

        return sig, lower

    return tile


@device
def _ahead(following, tile, depth, bits, here):
    """What tile number `tile` prefetches of the panels at `following`, which lie as those at `here` do; of the latter,
    which are in the cache, if others did all or there is nothing to come (0)."""
    reach = _LINE * depth * bits // 32 * tile
    return following + reach if following != 0 and reach < PANELS * PANEL * depth * bits // 8 else here


def sweeper(bits: int, unit: int = UNIT):
    """sweep(...): all rows with PANELS panels of weights; activations in blocks of `unit`. following: the address of
    the panels that come next, 0 for none; the first tiles prefetch them, from tile number `tile` on."""
    one, some, many = (_tile(bits, rows, unit) for rows in (1, SOME, MANY))

    @device
    def sweep(
        a, a_scales, a_sums, rows, pitch, depth, w, scales, offsets, block, wide, zero, out, stride, bias, residual,
        live, following, tile,
    ):  # fmt: skip
        units, m = pitch // unit, 0
        while m < rows:
            ahead = _ahead(following, tile, depth, bits, w)
            tile += 1
            x, xs, xt = a + m * pitch, a_scales + 4 * m * units, a_sums + 4 * m * units
            y, more, here = out + m * stride, residual + m * stride if residual != 0 else 0, rows - m
            if here > SOME and here != HALVES:
                many(
                    x, xs, xt, pitch, depth, w, scales, offsets, block, wide, zero, y, stride, bias, more, here, live,
                    ahead,
                )  # fmt: skip
                m += MANY
            elif here > 1:
                some(
                    x, xs, xt, pitch, depth, w, scales, offsets, block, wide, zero, y, stride, bias, more, here, live,
                    ahead,
                )  # fmt: skip
                m += SOME
            else:
                one(
                    x, xs, xt, pitch, depth, w, scales, offsets, block, wide, zero, y, stride, bias, more, here, live,
                    ahead,
                )  # fmt: skip
                m += 1

    return sweep


def _driver(bits: int, unit: int = UNIT):
    sweep = sweeper(bits, unit)

    @device
    def drive(step, bases, worker, workers):
        a, a_scales, a_sums = ptr(step, bases, GEMM.a), ptr(step, bases, GEMM.a_scales), ptr(step, bases, GEMM.a_sums)
        w, scales, offsets = ptr(step, bases, GEMM.w), ptr(step, bases, GEMM.scales), ptr(step, bases, GEMM.offsets)
        bias, residual, c = ptr(step, bases, GEMM.bias), ptr(step, bases, GEMM.residual), ptr(step, bases, GEMM.c)
        rows, columns, depth = num(step, GEMM.rows), num(step, GEMM.columns), num(step, GEMM.depth)
        block, wide, zero = num(step, GEMM.block), num(step, GEMM.wide), real(step, GEMM.zero)
        width = PANELS * PANEL
        groups = (columns + width - 1) // width
        each, stride = 4 if wide != 0 else 2, 4 * columns
        for group in range(groups * worker // workers, groups * (worker + 1) // workers):
            column = group * width
            live = min(width, columns - column)
            panel = w + column * depth * bits // 8
            place = column * (depth // block) * each
            factors, terms = scales + place, offsets + place if offsets != 0 else 0
            shift = bias + 4 * column if bias != 0 else 0
            more = residual + 4 * column if residual != 0 else 0
            sweep(
                a, a_scales, a_sums, rows, depth, depth, panel, factors, terms, block, wide, zero, c + 4 * column,
                stride, shift, more, live, panel + width * depth * bits // 8, 0,
            )  # fmt: skip

    return drive


_gemm4, _gemm8, _gemm4_16, _gemm8_16 = (_driver(bits, unit) for unit in (UNIT, SMALLER) for bits in (4, 8))


@kernel(BlockGemm)
def i4_gemm(step, bases, worker, workers):
    """C = A W + bias + R; weights of 4 bits, activations of 8."""
    _gemm4(step, bases, worker, workers)


@kernel(BlockGemm)
def i8_gemm(step, bases, worker, workers):
    """Like i4_gemm, weights of 8 bits."""
    _gemm8(step, bases, worker, workers)


@kernel(BlockGemm)
def i4_gemm__16(step, bases, worker, workers):
    """Like i4_gemm, activations in blocks of 16."""
    _gemm4_16(step, bases, worker, workers)


@kernel(BlockGemm)
def i8_gemm__16(step, bases, worker, workers):
    """Like i8_gemm, activations in blocks of 16."""
    _gemm8_16(step, bases, worker, workers)


# -- activations ------------------------------------------------------------------------------------------------------


def _rounder(unit: int):
    """round(x, q, scale, sum): one block."""

    @device
    def block(x, q, scales, sums):
        most = splat(_ZERO)
        for j in range(0, unit, LANES):
            most = vmax(vabs(vload(f32p(x + 4 * j))), most)
        largest = vlane0(across_max(most))
        scale = largest * np.float32(1 / 127)
        inverse = splat(np.float32(127) / largest if largest > _ZERO else _ZERO)
        total = splat(_ZERO)
        for j in range(0, unit, LANES):
            value = vrint(vload(f32p(x + 4 * j)) * inverse)
            store_bytes(value, q + j)
            total = total + value
        f32p(scales)[0] = scale
        f32p(sums)[0] = vlane0(across_sum(total)) * scale

    return block


_round, _round_16 = _rounder(UNIT), _rounder(SMALLER)


def _quantizer(unit: int, block):
    @device
    def drive(step, bases, worker, workers):
        x, q = ptr(step, bases, QUANTIZE.x), ptr(step, bases, QUANTIZE.q)
        scales, sums = ptr(step, bases, QUANTIZE.scales), ptr(step, bases, QUANTIZE.sums)
        blocks = num(step, QUANTIZE.blocks)
        for i in range(first(blocks, worker, workers, 16), first(blocks, worker + 1, workers, 16)):
            block(x + 4 * unit * i, q + unit * i, scales + 4 * i, sums + 4 * i)

    return drive


_quantize, _quantize_16 = _quantizer(UNIT, _round), _quantizer(SMALLER, _round_16)


@kernel(QuantizeBlocks)
def quantize(step, bases, worker, workers):
    """Blocks of 32 float32 -> int8, scale, scale times sum."""
    _quantize(step, bases, worker, workers)


@kernel(QuantizeBlocks)
def quantize__16(step, bases, worker, workers):
    """Like quantize, blocks of 16."""
    _quantize_16(step, bases, worker, workers)


# -- gated products ---------------------------------------------------------------------------------------------------


def _gate_driver(bits: int):
    sweep = sweeper(bits)

    @device
    def drive(step, bases, worker, workers):
        a, a_scales, a_sums = (
            ptr(step, bases, GATED.a),
            ptr(step, bases, GATED.a_scales),
            ptr(step, bases, GATED.a_sums),
        )
        w, scales, offsets = ptr(step, bases, GATED.w), ptr(step, bases, GATED.scales), ptr(step, bases, GATED.offsets)
        v, v_scales, v_offsets = (
            ptr(step, bases, GATED.v),
            ptr(step, bases, GATED.v_scales),
            ptr(step, bases, GATED.v_offsets),
        )
        q, q_scales, q_sums = (
            ptr(step, bases, GATED.q),
            ptr(step, bases, GATED.q_scales),
            ptr(step, bases, GATED.q_sums),
        )
        rows, columns, depth = num(step, GATED.rows), num(step, GATED.columns), num(step, GATED.depth)
        block, wide, zero = num(step, GATED.block), num(step, GATED.wide), real(step, GATED.zero)
        code, width, blocks = num(step, GATED.activation), PANELS * PANEL, columns // UNIT
        each, units, panel = 4 if wide != 0 else 2, depth // UNIT, UNIT * depth * bits // 8
        gates, ups = address(stack_floats(_GATES)), address(stack_floats(_GATES))
        for group in range(blocks * worker // workers, blocks * (worker + 1) // workers):
            for m in range(0, rows, MANY):
                here = min(MANY, rows - m)
                x, xs, xt = a + m * depth, a_scales + 4 * m * units, a_sums + 4 * m * units
                for part in range(0, UNIT, width):
                    column = group * UNIT + part
                    place, at = column * (depth // block) * each, column * depth * bits // 8
                    terms, more = offsets + place if offsets != 0 else 0, v_offsets + place if v_offsets != 0 else 0
                    sweep(
                        x, xs, xt, here, depth, depth, w + at, scales + place, terms, block, wide, zero,
                        gates + 4 * part, 4 * UNIT, 0, 0, width, w + at + panel, m // MANY,
                    )  # fmt: skip
                    sweep(
                        x, xs, xt, here, depth, depth, v + at, v_scales + place, more, block, wide, zero,
                        ups + 4 * part, 4 * UNIT, 0, 0, width, v + at + panel, m // MANY,
                    )  # fmt: skip
                activate(code, _ZERO, _ZERO, f32p(gates), here * UNIT)
                for i in range(here):
                    for j in range(0, UNIT, LANES):
                        gate = f32p(gates + 4 * (i * UNIT + j))
                        vstore(gate, vload(gate) * vload(f32p(ups + 4 * (i * UNIT + j))))
                    at = (m + i) * blocks + group
                    _round(gates + 4 * i * UNIT, q + UNIT * at, q_scales + 4 * at, q_sums + 4 * at)

    return drive


_gated4, _gated8 = _gate_driver(4), _gate_driver(8)


@kernel(GatedBlocks)
def i4_gated(step, bases, worker, workers):
    """Q(act(A W) * (A V)) in blocks of 32; weights of 4 bits, activations of 8."""
    _gated4(step, bases, worker, workers)


@kernel(GatedBlocks)
def i8_gated(step, bases, worker, workers):
    """Like i4_gated, weights of 8 bits."""
    _gated8(step, bases, worker, workers)


# -- rows of a table, and products of float32 -------------------------------------------------------------------------


@device
def _entry(table, index, wide):
    """An element of a table of float16 or float32."""
    if wide != 0:
        return f32p(table)[index]
    return from_half(i16p(table)[index])


def _embedder(bits: int):
    run = 32 // bits

    @device
    def embed(step, bases, worker, workers):
        w, indices, y = ptr(step, bases, EMBED.w), ptr(step, bases, EMBED.indices), ptr(step, bases, EMBED.y)
        scales, offsets = ptr(step, bases, EMBED.scales), ptr(step, bases, EMBED.offsets)
        count, columns, depth = num(step, EMBED.count), num(step, EMBED.columns), num(step, EMBED.depth)
        block, wide, zero, width = (
            num(step, EMBED.block),
            num(step, EMBED.wide),
            real(step, EMBED.zero),
            num(step, EMBED.width),
        )
        for i in range(first(count, worker, workers, 1), first(count, worker + 1, workers, 1)):
            at = index_at(indices, i, width)
            if at < 0 or at >= columns:
                fault(step, bases)
                at = int64(0)
            panel, column = at // PANEL, at % PANEL
            words = w + panel * (depth * bits // 8 * PANEL) + 4 * column
            place = panel * (depth // block) * PANEL + column
            out = f32p(y + 4 * i * depth)
            for b in range(depth // block):
                scale = _entry(scales, place + b * PANEL, wide)
                shift = scale * -zero
                if offsets != 0:
                    shift += _entry(offsets, place + b * PANEL, wide)
                for k in range(b * block, (b + 1) * block):
                    group = k // run
                    within = k - group * run
                    byte = int64(u8p(words + 4 * PANEL * group)[within & 3])
                    if bits == 4:
                        byte = (byte >> 4) if within > 3 else byte & 15
                    out[k] = float32(byte) * scale + shift

    return embed


_embed4, _embed8 = _embedder(4), _embedder(8)


@kernel(EmbedBlocks)
def i4_embed(step, bases, worker, workers):
    """Rows of a table of 4 bits as float32."""
    _embed4(step, bases, worker, workers)


@kernel(EmbedBlocks)
def i8_embed(step, bases, worker, workers):
    """Rows of a table of 8 bits as float32."""
    _embed8(step, bases, worker, workers)


@intrinsic
def entries(typing, table, index, wide):
    """LANES scales or offsets as float32, from element `index` of a table."""

    def lower(context, builder, sig, args):
        return _table(builder, args[0], args[1], builder.icmp_signed("!=", args[2], _I64(0)))

    return vec(types.int64, types.int64, types.int64), lower


def _widener(bits: int):
    """widen(panel, begin, end, block, wide, zero, scales, offsets, to): depths [begin, end) of a panel as float32."""
    run = 32 // bits

    @intrinsic
    def value(typing, where, which):
        """Bits `which` to `which` + bits of LANES words, as float32."""

        def lower(context, builder, sig, args):
            words = load_ints(builder, args[0])
            by = emit_splat(builder, builder.trunc(args[1], _I32), INTS)
            part = builder.and_(builder.lshr(words, by), ir.Constant(INTS, [2**bits - 1] * LANES))
            return builder.uitofp(part, FLOATS)

        return vec(types.int64, types.int64), lower

    @device
    def widen(panel, begin, end, block, wide, zero, scales, offsets, to):
        for j in range(VECTORS):
            k = begin
            while k < end:
                number = k // block
                stop = min(end, (number + 1) * block)
                scale = entries(scales, number * PANEL + LANES * j, wide)
                shift = scale * splat(-zero)
                if offsets != 0:
                    shift = shift + entries(offsets, number * PANEL + LANES * j, wide)
                while k < stop:
                    group = k // run
                    within = k - group * run
                    which = 8 * (within & 3) + (4 if within > 3 else 0)
                    wide_value = value(panel + 4 * (PANEL * group + LANES * j), which)
                    vstore(f32p(to + 4 * (PANEL * (k - begin) + LANES * j)), vfma(wide_value, scale, shift))
                    k += 1

    return widen


def _float_driver(bits: int):
    widen = _widener(bits)

    @device
    def drive(step, bases, worker, workers):
        a, w, scales, offsets = (
            ptr(step, bases, WIDE.a),
            ptr(step, bases, WIDE.w),
            ptr(step, bases, WIDE.scales),
            ptr(step, bases, WIDE.offsets),
        )
        bias, residual, c = ptr(step, bases, WIDE.bias), ptr(step, bases, WIDE.residual), ptr(step, bases, WIDE.c)
        rows, columns, depth = num(step, WIDE.rows), num(step, WIDE.columns), num(step, WIDE.depth)
        block, wide, zero = num(step, WIDE.block), num(step, WIDE.wide), real(step, WIDE.zero)
        panels, each = (columns + PANEL - 1) // PANEL, 4 if wide != 0 else 2
        buffer = address(stack_floats(_PIECE))
        at, taps_at, no_bias = stack_words(_HELD), stack_words(1), address(stack_floats(PANEL))
        taps_at[0] = 0
        for j in range(VECTORS):
            vstore(f32p(no_bias + 4 * LANES * j), splat(_ZERO))
        for p in range(panels * worker // workers, panels * (worker + 1) // workers):
            column = p * PANEL
            live = min(PANEL, columns - column)
            panel = w + column * depth * bits // 8
            place = column * (depth // block) * each
            terms = offsets + place if offsets != 0 else 0
            for begin in range(0, depth, CHUNK):
                count = min(CHUNK, depth - begin)
                widen(panel, begin, begin + count, block, wide, zero, scales + place, terms, buffer)
                shift = bias + 4 * column if bias != 0 and begin + count == depth else no_bias
                for m in range(0, rows, BLOCK):
                    here = min(BLOCK, rows - m)
                    for i in range(_HELD):
                        at[i] = a + 4 * ((m + min(i, here - 1)) * depth + begin)
                    out = c + 4 * (m * columns + column)
                    # The sum of earlier pieces is one more term.
                    more = out if begin > 0 else residual + 4 * (m * columns + column) if residual != 0 else 0
                    if VECTORS == 1:
                        _sweep_1(
                            at, here, taps_at, 1, count, buffer, out, 4 * columns, shift, more, _LEAST, _MOST, live
                        )
                    elif VECTORS == 2:
                        _sweep_2(
                            at, here, taps_at, 1, count, buffer, out, 4 * columns, shift, more, _LEAST, _MOST, live
                        )
                    else:
                        _sweep_4(
                            at, here, taps_at, 1, count, buffer, out, 4 * columns, shift, more, _LEAST, _MOST, live
                        )

    return drive


_float4, _float8 = _float_driver(4), _float_driver(8)


@kernel(FloatBlockGemm)
def i4_float(step, bases, worker, workers):
    """C = A W + bias + R; weights of 4 bits, activations of float32."""
    _float4(step, bases, worker, workers)


@kernel(FloatBlockGemm)
def i8_float(step, bases, worker, workers):
    """Like i4_float, weights of 8 bits."""
    _float8(step, bases, worker, workers)
