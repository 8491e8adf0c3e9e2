"""Depthwise convolution of bytes, channels last: each channel has its own window, vectors run over channels.

A block is 4 * LANES channels in four vectors of int32 sums. Interleaving bytes and then words turns four taps into
dwords of one channel each, which are multiplied by four weights in a dot product. Interleaving works within 16 bytes:
sum j holds channels 16 i + 4 j to 16 i + 4 j + 3 for every i. Weights and tables have the same order (`block_order` of
ops/_qpanels.py); packing the results to bytes restores the original one. Weights: [block][four taps][4][LANES][4]. The
image includes its border; if it has fewer channels than a block, up to a block of bytes after it may be read.
"""

from __future__ import annotations

from llvmlite import ir
from numba import int32, types
from numba.core import cgutils
from numba.extending import intrinsic

from lite_runtime.kernels._dot import (
    BYTES,
    FLOATS,
    INTS,
    at,
    emit_bytes,
    emit_input_dot,
    inputs_are_signed,
    load_floats,
    load_ints,
    load_repeated,
    narrowing,
    variable,
)
from lite_runtime.kernels.qgemm import BYTE, FLOAT, byte_numbers
from lite_runtime.native.simd import (
    LANES,
    SHAPE,
    emit_fused,
    emit_max,
    emit_splat,
    exact,
    f32p,
    i8p,
    i64p,
    kernel,
    num,
    ptr,
    real,
    u8p,
)
from lite_runtime.steps.declaration import named
from lite_runtime.steps.qdepthwise import X8Depthwise, X8DepthwiseShifted

DEPTHWISE = named(X8Depthwise)

BLOCK = 4 * LANES
"""Channels per tile."""
PIXELS = 4 if SHAPE.vectors == 32 else 1
"""Neighbouring pixels that share a load of the weights."""
_F32, _I64, _I32, _I8 = ir.FloatType(), ir.IntType(64), ir.IntType(32), ir.IntType(8)
_WORDS_16 = ir.VectorType(ir.IntType(16), 2 * LANES)


def _interleaved(builder, a, b, kind: ir.VectorType, high: bool):
    """Elements of a and b alternating, from the lower or higher half of every 16 bytes."""
    a, b = builder.bitcast(a, kind), builder.bitcast(b, kind)
    lane = kind.count // (LANES // 4)
    start = lane // 2 if high else 0
    order = [
        base + start + i + side
        for base in range(0, kind.count, lane)
        for i in range(lane // 2)
        for side in (0, kind.count)
    ]
    return builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(_I32, kind.count), order))


def _dwords(builder, taps):
    """Four vectors of bytes, one tap each -> four vectors of dwords, one channel per dword."""
    pairs = [[_interleaved(builder, taps[i], taps[i + 1], BYTES, high) for i in (0, 2)] for high in (False, True)]
    return [_interleaved(builder, *pair, _WORDS_16, high) for pair in pairs for high in (False, True)]


def _tile(count: int, shifted: bool):
    """`count` pixels by BLOCK channels; `shifted`: whether weights have zero points."""

    @intrinsic
    def tile(
        typing, first, step, taps_at, fours, w, ones, flip, out, pace, room, live, kind, bounds, narrow, image, tables
    ):
        """first: address of the first pixel's window; the others are `step` bytes apart, and unused ones repeat the
        last of the `live` ones. taps_at: byte offsets of taps, four at a time. Results go to `out`, those of the next
        pixel `pace` elements after them; `room`: elements from the first pixel's results to the end of the line.
        narrow: the numbers of `narrowing`. image: negated zero point, scale. tables: addresses of a block's bias,
        scale, real bias, sum of weights, zero point."""
        words, pair = types.CPointer(types.int64), types.UniTuple(types.float32, 2)
        sig = types.void(
            *(types.int64, types.int64, words, *[types.int64] * 9, pair, types.UniTuple(types.int64, 5)),
            types.Tuple((types.int32, types.float32)),
            types.UniTuple(types.int64, 5),
        )

        def lower(context, builder, sig, args):
            first, step, taps_at, fours, w, ones, flip, out, pace, room, live, *others = args
            kind, bounds, narrow, image, tables = others
            bias, scale, shift, weight_sum, weight_zero = (builder.extract_value(tables, i) for i in range(5))

            def table(where, j):
                return builder.add(where, _I64(4 * LANES * j))

            sums = [[variable(builder, load_ints(builder, table(bias, j))) for j in range(4)] for _ in range(count)]
            totals = [
                [variable(builder, ir.Constant(INTS, [0] * LANES)) for _ in range(4 if shifted else 0)]
                for _ in range(count)
            ]
            pixels = []
            for i in range(count):
                inside = builder.icmp_signed("<", _I64(i), live)
                pixel = builder.select(inside, _I64(i), builder.sub(live, _I64(1)))
                pixels.append(builder.add(first, builder.mul(pixel, step)))
            unsign = load_repeated(builder, flip)
            with cgutils.for_range(builder, fours, intp=_I64) as loop:
                begin = builder.mul(loop.index, _I64(4))
                offsets = [builder.load(builder.gep(taps_at, [builder.add(begin, _I64(t))])) for t in range(4)]
                here = builder.add(w, builder.mul(loop.index, _I64(16 * LANES)))
                weights = [load_ints(builder, table(here, j)) for j in range(4)]
                if shifted:
                    one = builder.load(at(builder, builder.add(ones, begin), _I32), typ=_I32)
                    one = emit_splat(builder, one, INTS)
                for i in range(count):
                    loads = (
                        builder.load(at(builder, builder.add(pixels[i], offset), INTS), align=1, typ=INTS)
                        for offset in offsets
                    )
                    dwords = _dwords(builder, [builder.xor(load, unsign) for load in loads])
                    for j, dword in enumerate(dwords):
                        builder.store(emit_input_dot(builder, builder.load(sums[i][j]), dword, weights[j]), sums[i][j])
                        if shifted:
                            builder.store(emit_input_dot(builder, builder.load(totals[i][j]), dword, one), totals[i][j])
            if shifted:
                for i in range(count):
                    for j in range(4):
                        less = builder.mul(builder.load(totals[i][j]), load_ints(builder, table(weight_zero, j)))
                        builder.store(builder.sub(builder.load(sums[i][j]), less), sums[i][j])

            def each_pixel(emit):
                for i in range(count):
                    with builder.if_then(builder.icmp_signed("<", _I64(i), live)):
                        emit(i, builder.mul(pace, _I64(i)))

            def stored(value, further, size):
                """Store a block to the line, or the part for which the line has room."""
                left = builder.sub(room, further)
                to = builder.add(out, builder.mul(further, _I64(size)))
                with builder.if_else(builder.icmp_signed(">=", left, _I64(BLOCK))) as (whole, part):
                    with whole:
                        for j, one in enumerate(value):
                            target = at(builder, builder.add(to, _I64(j * 4 * LANES)), one.type)
                            builder.store(one, target, align=size)
                    with part:
                        kind_of = _I8 if size == 1 else _I32
                        with builder.goto_entry_block():
                            block = builder.alloca(ir.ArrayType(kind_of, BLOCK))
                        block.align = 64
                        for j, one in enumerate(value):
                            held = builder.add(builder.ptrtoint(block, _I64), _I64(j * 4 * LANES))
                            builder.store(one, at(builder, held, one.type), align=size)
                        with cgutils.for_range(builder, left, intp=_I64) as loop:
                            one = builder.load(builder.gep(block, [_I64(0), loop.index]), typ=kind_of)
                            target = builder.add(to, builder.mul(loop.index, _I64(size)))
                            builder.store(one, at(builder, target, kind_of), align=size)

            with builder.if_else(builder.icmp_signed("==", kind, _I64(BYTE))) as (to_bytes, others):
                with to_bytes:
                    n = narrowing(builder, builder.extract_value(bounds, 1), *cgutils.unpack_tuple(builder, narrow))
                    factors = [load_floats(builder, table(scale, j)) for j in range(4)]

                    def bytes_of(i, further):
                        scaled = [
                            builder.fmul(builder.sitofp(builder.load(sums[i][j]), FLOATS), factors[j]) for j in range(4)
                        ]
                        stored([emit_bytes(builder, scaled, n)], further, 1)

                    each_pixel(bytes_of)
                with others:
                    low, high = (emit_splat(builder, builder.extract_value(bounds, i)) for i in range(2))
                    real_result = builder.icmp_signed("==", kind, _I64(FLOAT))
                    step_zero = emit_splat(builder, builder.extract_value(image, 0), INTS)
                    factor = emit_splat(builder, builder.extract_value(image, 1))

                    def words_of(i, further):
                        values = []
                        for j in range(4):
                            total = builder.mul(load_ints(builder, table(weight_sum, j)), step_zero)
                            total = builder.add(builder.load(sums[i][j]), total)
                            scaled = builder.fmul(builder.sitofp(total, FLOATS), factor)
                            moved = load_floats(builder, table(scale, j)), load_floats(builder, table(shift, j))
                            value = emit_fused(builder, scaled, *moved)
                            value = emit_max(builder, high, emit_max(builder, low, value), "<")
                            values.append(builder.select(real_result, value, builder.bitcast(total, FLOATS)))
                        stored(_straight(builder, values), further, 4)

                    each_pixel(words_of)
            return context.get_dummy_value()

        return sig, lower

    return tile


def _straight(builder, values):
    """Four vectors of sums -> four vectors in the order of channels."""
    lanes = LANES // 4
    whole = []
    for j in range(4):
        picked = []  # (vector, 16 bytes) of every 16 bytes of the result
        for chunk in range(j * lanes, (j + 1) * lanes):
            picked.append((chunk % 4, chunk // 4))
        result = ir.Constant(FLOATS, ir.Undefined)
        for place, (vector, lane) in enumerate(picked):
            order = list(range(LANES))
            order[4 * place : 4 * place + 4] = [LANES + 4 * lane + i for i in range(4)]
            mask = ir.Constant(ir.VectorType(_I32, LANES), order)
            result = builder.shuffle_vector(result, values[vector], mask)
        whole.append(result)
    return whole


def _driver(shifted: bool):
    many, single = _tile(2 if shifted and PIXELS > 1 else PIXELS, shifted), _tile(1, shifted)
    wide = 2 if shifted and PIXELS > 1 else PIXELS

    @exact
    def drive(step, bases, worker, workers):
        x, w, taps_at = (
            ptr(step, bases, DEPTHWISE.x),
            ptr(step, bases, DEPTHWISE.w),
            i64p(ptr(step, bases, DEPTHWISE.taps_at)),
        )
        bias, scale, shift = (
            ptr(step, bases, DEPTHWISE.bias),
            ptr(step, bases, DEPTHWISE.scale),
            ptr(step, bases, DEPTHWISE.shift),
        )
        weight_sum, weight_zero = ptr(step, bases, DEPTHWISE.weight_sum), ptr(step, bases, DEPTHWISE.weight_zero)
        zeros, scales, flip = (
            ptr(step, bases, DEPTHWISE.zeros),
            ptr(step, bases, DEPTHWISE.scales),
            ptr(step, bases, DEPTHWISE.flip),
        )
        ones, y = ptr(step, bases, DEPTHWISE.ones), ptr(step, bases, DEPTHWISE.y)
        images, height, width, channels = (
            num(step, DEPTHWISE.images),
            num(step, DEPTHWISE.height),
            num(step, DEPTHWISE.width),
            num(step, DEPTHWISE.channels),
        )
        fours, image_step, line_step, pixel_step = (
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
        bounds, moving = (real(step, DEPTHWISE.low), real(step, DEPTHWISE.high)), num(step, DEPTHWISE.apart)
        narrow = byte_numbers(kind, num(step, DEPTHWISE.wild), zero, num(step, DEPTHWISE.turn), bounds)
        blocks = (channels + BLOCK - 1) // BLOCK
        for row in range(images * height * worker // workers, images * height * (worker + 1) // workers):
            picture = row // height
            source = x + picture * image_step + (row - picture * height) * line_step
            negated = int32(0)
            if zeros != 0:
                is_int8 = (u8p(flip)[0] != 0) != inputs_are_signed()
                negated = -int32(i8p(zeros)[picture * moving] if is_int8 else u8p(zeros)[picture * moving])
            image = (negated, f32p(scales)[picture * moving])
            for block in range(blocks):
                channel = max(0, min(block * BLOCK, channels - BLOCK))
                place = 4 * block * BLOCK
                tables = (bias + place, scale + place, shift + place, weight_sum + place, weight_zero + place)
                weights = w + place * fours
                column = 0
                while column < width:
                    at_first = column * channels + channel
                    here, to, room = (
                        source + column * pixel_step + channel,
                        y + size * (row * line + at_first),
                        line - at_first,
                    )
                    live = min(wide, width - column)
                    if live == 1:
                        single(
                            here,
                            pixel_step,
                            taps_at,
                            fours,
                            weights,
                            ones,
                            flip,
                            to,
                            channels,
                            room,
                            live,
                            kind,
                            bounds,
                            narrow,
                            image,
                            tables,
                        )
                    else:
                        many(
                            here,
                            pixel_step,
                            taps_at,
                            fours,
                            weights,
                            ones,
                            flip,
                            to,
                            channels,
                            room,
                            live,
                            kind,
                            bounds,
                            narrow,
                            image,
                            tables,
                        )
                    column += live

    return drive


_plain, _shifted = _driver(False), _driver(True)


@kernel(X8Depthwise, fastmath=set())
def x8_depthwise(step, bases, worker, workers):
    """Weights without zero points."""
    _plain(step, bases, worker, workers)


@kernel(X8DepthwiseShifted, fastmath=set())
def x8_depthwise_shifted(step, bases, worker, workers):
    """Like x8_depthwise, for weights with zero points."""
    _shifted(step, bases, worker, workers)
