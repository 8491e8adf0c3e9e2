"""Contractions of int16 activations, summed exactly in int64.

Weights of 8 bits are int16 with their zero point subtracted (9 bits); a dword holds two neighbours of the reduction.
Products of pairs are summed in int32 while the sum fits, PAIRS at a time, then in int64; products by weights of 16 bits
are summed in int64 one by one. Steps have the words of x8_gemm and
x8_depthwise, so that the planner binds both in the same way; biases are int64.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from lite_runtime.kernels._dot import (
    FLOATS,
    INTS,
    at,
    emit_fixed,
    emit_pair_dot,
    emit_rounded,
    emit_store_narrow,
    load_floats,
    load_ints,
    variable,
)
from lite_runtime.kernels.gemm import BLOCK, locate
from lite_runtime.kernels.qgemm import FIXED, FLOAT, REAL, padder
from lite_runtime.native.simd import (
    LANES,
    address,
    declare,
    emit_mask,
    emit_max,
    emit_splat,
    emit_store,
    exact,
    first,
    i16p,
    i64p,
    kernel,
    num,
    ptr,
    real,
    stack_words,
)
from lite_runtime.steps.declaration import named
from lite_runtime.steps.qwide import X16Depthwise, X16Gemm, X16GemmDeep, X16Pack, X16Pad

GEMM = named(X16Gemm)
DEPTHWISE = named(X16Depthwise)
PACK = named(X16Pack)

ROWS, VECTORS = 4, 2
PAIRS = 127
"""Pairs of products of 16 and 9 bits whose sum always fits an int32: 127 * 2 * 2**15 * 255 < 2**31."""
_F32, _I64, _I32, _I16 = ir.FloatType(), ir.IntType(64), ir.IntType(32), ir.IntType(16)
_LONGS = ir.VectorType(_I64, LANES)


def _load_longs(builder, where):
    return builder.load(at(builder, where, _LONGS), align=8, typ=_LONGS)


def _emit_scaled(builder, total, kind, tables):
    """LANES sums as float32 multiples of y's scale; whole numbers that float32 rounds are out of y's range."""
    _, scale, shift = tables
    value = cgutils.alloca_once(builder, FLOATS)

    def is_kind(which):
        return builder.icmp_signed("==", kind, _I64(which))

    def keep(whole):
        builder.store(builder.sitofp(whole, FLOATS), value)

    with builder.if_else(is_kind(FIXED)) as (fixed, other):
        with fixed:
            keep(_emit_once(builder, total, load_ints(builder, scale), load_ints(builder, shift)))
        with other, builder.if_else(builder.icmp_signed(">", kind, _I64(FIXED))) as (rare, scaled):
            with rare:
                words = load_ints(builder, scale), load_ints(builder, shift)
                with builder.if_else(is_kind(REAL)) as (real, twice):
                    with real:
                        builder.store(_emit_real(builder, total, *words), value)
                    with twice:
                        keep(_emit_twice(builder, total, *words))
            with scaled:
                builder.store(builder.fmul(builder.sitofp(total, FLOATS), load_floats(builder, scale)), value)
    return builder.load(value)


def _emit_once(builder, total, multiplier, shift):
    """By multipliers and shifts, halves up."""
    bits, one = builder.sext(shift, _LONGS), ir.Constant(_LONGS, [1] * LANES)
    product = builder.mul(total, builder.sext(multiplier, _LONGS))
    return builder.ashr(builder.add(product, builder.shl(one, builder.sub(bits, one))), bits)


def _emit_twice(builder, total, multiplier, shift):
    """By multipliers and shifts, rounded twice; sums wrap around to 32 bits."""
    total = builder.sext(builder.trunc(total, INTS), _LONGS)
    multiplier, bits = builder.sext(multiplier, _LONGS), builder.sext(shift, _LONGS)
    return emit_fixed(builder, total, multiplier, bits)


def _emit_real(builder, total, low, high):
    """By float64 factors whose words are in both tables, halves away from zero."""
    thirty_two, ones = ir.Constant(_LONGS, [32] * LANES), ir.Constant(_LONGS, [(1 << 32) - 1] * LANES)
    bits = builder.or_(
        builder.shl(builder.zext(high, _LONGS), thirty_two), builder.and_(builder.zext(low, _LONGS), ones)
    )
    doubles = ir.VectorType(ir.DoubleType(), LANES)
    value = builder.fmul(builder.sitofp(total, doubles), builder.bitcast(bits, doubles))
    # Without llvm.trunc, which is a call of libm on 32-bit Arm: a sum with 2**52 leaves no bits for a fraction, and
    # rounds halves to even.
    size = builder.call(declare(builder, f"llvm.fabs.v{LANES}f64", doubles, doubles), [value])
    big, half, one, none = (ir.Constant(doubles, [number] * LANES) for number in (2.0**52, 0.5, 1.0, 0.0))
    near = builder.fsub(builder.fadd(size, big), big)
    down = builder.fcmp_ordered("==", builder.fsub(size, near), half)
    near = builder.fadd(near, builder.select(down, one, none))
    near = builder.select(builder.fcmp_ordered("<", size, big), near, size)
    copysign = declare(builder, f"llvm.copysign.v{LANES}f64", doubles, doubles, doubles)
    return builder.fptrunc(builder.call(copysign, [near, value]), FLOATS)


def _emit_result(builder, total, out, live, kind, tables, bounds, zero):
    """Turn LANES sums into results, of which `live` are stored from `out` on."""
    shift, real_result = tables[2], builder.icmp_signed("==", kind, _I64(FLOAT))
    value = _emit_scaled(builder, total, kind, tables)
    low, high = (emit_splat(builder, builder.extract_value(bounds, i)) for i in range(2))
    with builder.if_else(real_result) as (whole, narrow):
        with whole:
            moved = builder.fadd(value, load_floats(builder, shift))
            moved = emit_max(builder, high, emit_max(builder, low, moved), "<")
            emit_store(builder, moved, at(builder, out, _F32), emit_mask(builder, live))
        with narrow:
            point = emit_splat(builder, builder.trunc(zero, _I32), INTS)
            emit_store_narrow(builder, emit_rounded(builder, value, low, high, point), out, 16, live)


def _tile(deep):
    """The tile for weights of 8 bits, or of 16 if `deep`."""

    @intrinsic
    def tile(typing, rows_at, places, dwords, panel, width, out, stride, columns, live, kind, bounds, zero, tables):
        """ROWS x LANES results of one vector of a panel, in which dwords are `width` bytes apart. rows_at: addresses of
        rows; live rows and columns are stored. tables: addresses of the columns' bias, scale and real bias."""
        words, pair = types.CPointer(types.int64), types.UniTuple(types.float32, 2)
        sig = types.void(words, words, *[types.int64] * 8, pair, types.int64, types.UniTuple(types.int64, 3))
        return sig, _tile_lowering(deep)

    return tile


def _tile_lowering(deep):
    add_up = _emit_deep if deep else _emit_pairs

    def lower(context, builder, sig, args):
        rows_at, places, dwords, panel, width, out, stride, columns, live, kind, bounds, zero, tables = args
        tables = [builder.extract_value(tables, i) for i in range(3)]
        bias = _load_longs(builder, tables[0])
        wholes = [variable(builder, bias) for _ in range(ROWS)]
        bases = [builder.load(builder.gep(rows_at, [_I64(i)])) for i in range(ROWS)]
        add_up(builder, wholes, bases, places, dwords, panel, width)
        for i, whole in enumerate(wholes):
            with builder.if_then(builder.icmp_signed("<", _I64(i), live)):
                to = builder.add(out, builder.mul(stride, _I64(i)))
                _emit_result(builder, builder.load(whole), to, columns, kind, tables, bounds, zero)
        return context.get_dummy_value()

    return lower


def _emit_dword(builder, places, index, panel, width):
    """The place of a dword in rows, and the weights of LANES columns."""
    here = builder.load(builder.gep(places, [index]))
    return here, load_ints(builder, builder.add(panel, builder.mul(index, width)))


def _emit_two(builder, base, here):
    two = builder.load(at(builder, builder.add(base, here), _I32), align=2, typ=_I32)
    return emit_splat(builder, two, INTS)


def _emit_widened(builder, whole, more):
    builder.store(builder.add(builder.load(whole), builder.sext(more, _LONGS)), whole)


def _emit_pairs(builder, wholes, bases, places, dwords, panel, width):
    """Adds all products to the int64 sums, PAIRS dwords at a time in int32."""
    none = ir.Constant(INTS, [0] * LANES)
    sums = [cgutils.alloca_once(builder, INTS) for _ in wholes]
    blocks = builder.sdiv(builder.add(dwords, _I64(PAIRS - 1)), _I64(PAIRS))
    with cgutils.for_range(builder, blocks, intp=_I64) as block:
        begin = builder.mul(block.index, _I64(PAIRS))
        left = builder.sub(dwords, begin)
        count = builder.select(builder.icmp_signed("<", left, _I64(PAIRS)), left, _I64(PAIRS))
        for one in sums:
            builder.store(none, one)
        with cgutils.for_range(builder, count, intp=_I64) as loop:
            here, w = _emit_dword(builder, places, builder.add(begin, loop.index), panel, width)
            for base, one in zip(bases, sums, strict=True):
                builder.store(emit_pair_dot(builder, builder.load(one), _emit_two(builder, base, here), w), one)
        for one, whole in zip(sums, wholes, strict=True):
            _emit_widened(builder, whole, builder.load(one))


def _emit_deep(builder, wholes, bases, places, dwords, panel, width):
    """Adds each product of 16 by 16 bits to the int64 sums; a product of pairs could leave int32."""
    none = ir.Constant(INTS, [0] * LANES)
    halves = [ir.Constant(INTS, [mask] * LANES) for mask in (0xFFFF, -0x10000)]
    with cgutils.for_range(builder, dwords, intp=_I64) as loop:
        here, w = _emit_dword(builder, places, loop.index, panel, width)
        parts = [builder.and_(w, half) for half in halves]
        for base, whole in zip(bases, wholes, strict=True):
            two = _emit_two(builder, base, here)
            for part in parts:
                _emit_widened(builder, whole, emit_pair_dot(builder, none, two, part))


def _gemm(deep):
    tile = _tile(deep)

    @exact
    def gemm(step, bases, worker, workers):
        a, w, places = ptr(step, bases, GEMM.a), ptr(step, bases, GEMM.w), i64p(ptr(step, bases, GEMM.places))
        bias, scale, shift, c = (
            ptr(step, bases, GEMM.bias),
            ptr(step, bases, GEMM.scale),
            ptr(step, bases, GEMM.shift),
            ptr(step, bases, GEMM.c),
        )
        rows, columns, dwords, full = (
            num(step, GEMM.rows),
            num(step, GEMM.columns),
            num(step, GEMM.dwords),
            num(step, GEMM.vectors),
        )
        size, out_row = num(step, GEMM.size), num(step, GEMM.c_row)
        per_image, per_row = num(step, GEMM.per_image), num(step, GEMM.per_line)
        image_step, row_step, column_step = (
            num(step, GEMM.image_step),
            num(step, GEMM.line_step),
            num(step, GEMM.row_step),
        )
        groups, group_a, group_w = num(step, GEMM.groups), num(step, GEMM.group_a), num(step, GEMM.group_w)
        batches, batch_a, batch_w = num(step, GEMM.batches), num(step, GEMM.batch_a), num(step, GEMM.batch_w)
        batch_c, batch_bias = num(step, GEMM.batch_c), num(step, GEMM.batch_bias)
        kind, zero, bounds = num(step, GEMM.kind), num(step, GEMM.zero), (real(step, GEMM.low), real(step, GEMM.high))
        rows_at = stack_words(BLOCK)
        padded = (columns + LANES - 1) // LANES * LANES
        vectors = padded // LANES
        m, last = first(rows * batches, worker, workers, ROWS), first(rows * batches, worker + 1, workers, ROWS)
        while m < last:
            batch = m // rows
            inside = m - batch * rows
            count = min(BLOCK, last - m, rows - inside)
            locate(rows_at, count, inside, a + batch * batch_a, per_image, per_row, image_step, row_step, column_step)
            for job in range(groups * vectors):
                group = job // vectors
                column = (job - group * vectors) * LANES
                start = column // (full * LANES) * full * LANES
                width = min(full * LANES, padded - start)
                panel = w + batch * batch_w + group * group_w + 4 * (dwords * start + column - start)
                out = c + batch * batch_c + size * (inside * out_row + group * columns + column)
                place = group * padded + column
                tables = (bias + batch * batch_bias + 8 * place, scale + 4 * place, shift + 4 * place)
                live = min(LANES, columns - column)
                for i in range(BLOCK):
                    rows_at[i] += group * group_a
                i = 0
                while i < count:
                    here, to = i64p(address(rows_at) + 8 * i), out + size * i * out_row
                    now = count - i
                    tile(
                        here,
                        places,
                        dwords,
                        panel,
                        4 * width,
                        to,
                        size * out_row,
                        live,
                        now,
                        kind,
                        bounds,
                        zero,
                        tables,
                    )
                    i += ROWS
                for i in range(BLOCK):
                    rows_at[i] -= group * group_a
            m += count

    return gemm


_plain, _deep = _gemm(False), _gemm(True)
_UNREAD = ("zeros", "scales", "flip", "weight_sum", "weight_zero", "rows_a_scale", "turn", "wild", "quick")


@kernel(X16Gemm, fastmath=set(), unread=_UNREAD)
def x16_gemm(step, bases, worker, workers):
    """Like x8_gemm. A dword of weights holds two int16; bias is int64; no weight sums, no zero points computed in a
    run."""
    _plain(step, bases, worker, workers)


@kernel(X16GemmDeep, fastmath=set(), unread=_UNREAD)
def x16_gemm_deep(step, bases, worker, workers):
    """Like x16_gemm, for weights of 16 bits."""
    _deep(step, bases, worker, workers)


@kernel(X16Pack)
def x16_pack(step, bases, worker, workers):
    """B of int16 -> panels, for products of two computed matrices."""
    b, packed = ptr(step, bases, PACK.b), ptr(step, bases, PACK.packed)
    depth, columns, full, batches = (
        num(step, PACK.depth),
        num(step, PACK.columns),
        num(step, PACK.vectors),
        num(step, PACK.batches),
    )
    row_step, column_step = num(step, PACK.row_step), num(step, PACK.column_step)
    batch_b, batch_packed = num(step, PACK.batch_b), num(step, PACK.batch_packed)
    width = full * LANES
    panels = (columns + width - 1) // width
    dwords = (depth + 1) // 2
    for job in range(batches * panels * worker // workers, batches * panels * (worker + 1) // workers):
        batch = job // panels
        column = (job - batch * panels) * width
        live = min(width, columns - column)
        padded = (live + LANES - 1) // LANES * LANES
        source = i16p(b + batch * batch_b + 2 * column * column_step)
        for g in range(dwords):
            target = i16p(packed + batch * batch_packed + 4 * (dwords * column + g * padded))
            # The second half of the last dword of an odd depth is what is left; its first half was in the one before.
            single = 2 * g + 1 == depth
            first_row = 2 * g - 1 if single and g > 0 else 2 * g
            for j in range(padded):
                inside = j < live
                here = first_row * row_step + j * column_step
                alone = single and g > 0
                target[2 * j] = source[here] if inside and not alone else np.int16(0)
                target[2 * j + 1] = source[here + row_step] if inside and not (single and g == 0) else np.int16(0)


@intrinsic
def _channels(typing, window, taps_at, taps, w, w_step, out, live, kind, bounds, zero, tables):
    """LANES channels of one pixel; weights of a tap are `w_step` bytes after those of the previous one."""
    words, pair = types.CPointer(types.int64), types.UniTuple(types.float32, 2)
    sig = types.void(types.int64, words, *[types.int64] * 6, pair, types.int64, types.UniTuple(types.int64, 3))

    def lower(context, builder, sig, args):
        window, taps_at, taps, w, w_step, out, live, kind, bounds, zero, tables = args
        tables = [builder.extract_value(tables, i) for i in range(3)]
        narrow = ir.VectorType(_I16, LANES)

        def load(where):
            return builder.sext(builder.load(at(builder, where, narrow), align=2, typ=narrow), INTS)

        total = variable(builder, ir.Constant(INTS, [0] * LANES))
        with cgutils.for_range(builder, taps, intp=_I64) as loop:
            offset = builder.load(builder.gep(taps_at, [loop.index]))
            product = builder.mul(
                load(builder.add(window, offset)), load(builder.add(w, builder.mul(loop.index, w_step)))
            )
            builder.store(builder.add(builder.load(total), product), total)
        whole = builder.add(_load_longs(builder, tables[0]), builder.sext(builder.load(total), _LONGS))
        _emit_result(builder, whole, out, live, kind, tables, bounds, zero)
        return context.get_dummy_value()

    return sig, lower


@kernel(X16Depthwise, fastmath=set(), unread=("zeros", "scales", "flip", "ones", "weight_sum", "weight_zero", "apart"))
def x16_depthwise(step, bases, worker, workers):
    """Like x8_depthwise, with tables in the order of channels; weights: int16 [taps][channels, in whole vectors]. At
    most 2 * PAIRS taps."""
    x, w, taps_at = (
        ptr(step, bases, DEPTHWISE.x),
        ptr(step, bases, DEPTHWISE.w),
        i64p(ptr(step, bases, DEPTHWISE.taps_at)),
    )
    bias, scale, shift, y = (
        ptr(step, bases, DEPTHWISE.bias),
        ptr(step, bases, DEPTHWISE.scale),
        ptr(step, bases, DEPTHWISE.shift),
        ptr(step, bases, DEPTHWISE.y),
    )
    images, height, width, channels = (
        num(step, DEPTHWISE.images),
        num(step, DEPTHWISE.height),
        num(step, DEPTHWISE.width),
        num(step, DEPTHWISE.channels),
    )
    taps, image_step, line_step, pixel_step = (
        num(step, DEPTHWISE.groups),
        num(step, DEPTHWISE.image_step),
        num(step, DEPTHWISE.line_step),
        num(step, DEPTHWISE.pixel_step),
    )
    line, size, kind, zero = (
        num(step, DEPTHWISE.line),
        num(step, DEPTHWISE.size),
        num(step, DEPTHWISE.kind),
        num(step, DEPTHWISE.zero),
    )
    bounds = (real(step, DEPTHWISE.low), real(step, DEPTHWISE.high))
    padded = (channels + LANES - 1) // LANES * LANES
    for row in range(images * height * worker // workers, images * height * (worker + 1) // workers):
        picture = row // height
        source = x + picture * image_step + (row - picture * height) * line_step
        for column in range(width):
            for channel in range(0, channels, LANES):
                tables = (bias + 8 * channel, scale + 4 * channel, shift + 4 * channel)
                window = source + column * pixel_step + 2 * channel
                out = y + size * (row * line + column * channels + channel)
                live = channels - channel
                _channels(window, taps_at, taps, w + 2 * channel, 2 * padded, out, live, kind, bounds, zero, tables)


_pad = padder(i16p, 2)


@kernel(X16Pad)
def x16_pad(step, bases, worker, workers):
    """Like x8_pad, for int16."""
    _pad(step, bases, worker, workers)
