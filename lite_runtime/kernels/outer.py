"""Sums of outer products over pixels, float32, channels last: gradients of weights.

dW[tap][i][j] is the sum over images and results of X[the pixel that the tap reads][i] * dY[result][j]. Both operands
are read in place: a register tile holds some rows i by some vectors of columns j of one tap and goes over lines of
pixels, with one load of each column vector and one broadcast of each row per pixel. Positions outside the image are
skipped, so no border is copied.

Pixels are processed in blocks that stay in cache while all tiles of a worker go over them; between blocks, sums are
stored in the result. Workers share tiles, never a sum, and blocks depend only on sizes: results are bit-identical for
any number of workers.

A product A^T B is the case of one image with one tap. For depthwise convolutions a tile is one vector of channels, in
four partial sums.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from lite_runtime.native.simd import (
    FMA,
    LANES,
    SHAPE,
    declare,
    device,
    emit_load,
    emit_mask,
    emit_splat,
    emit_store,
    f32p,
    first,
    kernel,
    num,
    ptr,
    splat,
    vfma,
    vload_n,
    vstore_n,
)
from lite_runtime.steps.declaration import named
from lite_runtime.steps.outer import Outer, Unpack

OUTER = named(Outer)
UNPACK = named(Unpack)

ROWS = {1: (16, 8, 4, 2, 1), 2: (12, 8, 4, 2, 1)} if LANES == 16 else {1: (12, 8, 4, 2, 1), 2: (6, 4, 2, 1, 1)}
if SHAPE.small:
    ROWS = {1: (2, 1, 1, 1, 1), 2: (2, 1, 1, 1, 1)}
"""Heights of register tiles by their width in vectors; rows are split into these, the tallest first."""
_F32, _I64 = ir.FloatType(), ir.IntType(64)


def _tile(rows: int, vectors: int, masked: bool):
    """rows x (vectors * LANES) sums; if `masked`, of `columns` columns only."""

    @intrinsic
    def tile(typing, a, b, walk, c, c_step, columns):
        """a, b: addresses of the first pixel's first row and column; walk: lines, bytes between lines of a and b,
        pixels per line, bytes between pixels of both; c: address of the sums so far, with rows c_step apart."""
        number = types.int64
        sig = types.void(number, number, types.UniTuple(number, 6), number, number, number)

        def lower(context, builder, sig, args):
            a, b, walk, c, c_step, columns = args
            lines, a_line, b_line, count, a_step, b_step = (builder.extract_value(walk, i) for i in range(6))
            vector = ir.VectorType(_F32, LANES)
            fma = declare(builder, f"llvm.{FMA}.v{LANES}f32", vector, vector, vector, vector)

            def float_at(where):
                return builder.inttoptr(where, _F32.as_pointer())

            live = [emit_mask(builder, builder.sub(columns, _I64(j * LANES))) for j in range(vectors)]
            sums = [[cgutils.alloca_once(builder, vector) for _ in range(vectors)] for _ in range(rows)]
            places = [
                [builder.add(builder.add(c, builder.mul(c_step, _I64(i))), _I64(4 * LANES * j)) for j in range(vectors)]
                for i in range(rows)
            ]
            for i in range(rows):
                for j in range(vectors):
                    builder.store(emit_load(builder, float_at(places[i][j]), live[j]), sums[i][j])
            here_a, here_b = cgutils.alloca_once(builder, _I64), cgutils.alloca_once(builder, _I64)
            with cgutils.for_range(builder, lines, intp=_I64) as line:
                builder.store(builder.add(a, builder.mul(line.index, a_line)), here_a)
                builder.store(builder.add(b, builder.mul(line.index, b_line)), here_b)
                with cgutils.for_range(builder, count, intp=_I64):
                    left, right = builder.load(here_a), builder.load(here_b)
                    across = [
                        emit_load(
                            builder, float_at(builder.add(right, _I64(4 * LANES * j))), live[j] if masked else None
                        )
                        for j in range(vectors)
                    ]
                    for i in range(rows):
                        value = builder.load(float_at(builder.add(left, _I64(4 * i))), typ=_F32)
                        down = emit_splat(builder, value)
                        for j in range(vectors):
                            so_far = builder.load(sums[i][j])
                            builder.store(builder.call(fma, [down, across[j], so_far]), sums[i][j])
                    builder.store(builder.add(left, a_step), here_a)
                    builder.store(builder.add(right, b_step), here_b)
            for i in range(rows):
                for j in range(vectors):
                    emit_store(builder, builder.load(sums[i][j]), float_at(places[i][j]), live[j])
            return context.get_dummy_value()

        return sig, lower

    return tile


def _strip(vectors: int):
    """Split rows into tiles, with the largest height first, then the smaller ones."""
    tall, high, half, pair, one = ([_tile(rows, vectors, masked) for masked in (False, True)] for rows in ROWS[vectors])
    (tall_f, tall_m), (high_f, high_m), (half_f, half_m), (pair_f, pair_m), (one_f, one_m) = tall, high, half, pair, one
    most, second, third, fourth, _ = ROWS[vectors]

    @device
    def strip(a, b, walk, c, c_step, columns, rows):
        full = columns >= vectors * LANES
        i = 0
        while i < rows:
            left = rows - i
            here, to = a + 4 * i, c + i * c_step
            if left >= most:
                if full:
                    tall_f(here, b, walk, to, c_step, columns)
                else:
                    tall_m(here, b, walk, to, c_step, columns)
                i += most
            elif left >= second:
                if full:
                    high_f(here, b, walk, to, c_step, columns)
                else:
                    high_m(here, b, walk, to, c_step, columns)
                i += second
            elif left >= third:
                if full:
                    half_f(here, b, walk, to, c_step, columns)
                else:
                    half_m(here, b, walk, to, c_step, columns)
                i += third
            elif left >= fourth:
                if full:
                    pair_f(here, b, walk, to, c_step, columns)
                else:
                    pair_m(here, b, walk, to, c_step, columns)
                i += fourth
            else:
                if full:
                    one_f(here, b, walk, to, c_step, columns)
                else:
                    one_m(here, b, walk, to, c_step, columns)
                i += 1

    return strip


_strip_1, _strip_2 = _strip(1), _strip(2)
WIDE, NARROW = ROWS[2][0], ROWS[1][0]
_ZERO = np.float32(0)


@device
def _met(start, stride, count, size):
    """The results [low, high) of `count`, the first at `start`, `stride` apart, whose positions are in 0..size-1."""
    low = 0
    if start < 0:
        low = min(count, (stride - 1 - start) // stride)
    high = low
    if size > start:
        high = max(low, min(count, (size - 1 - start) // stride + 1))
    return low, high


@kernel(Outer)
def f32_outer(step, bases, worker, workers):
    """Tiles of every tap, one block of lines at a time."""
    a, b, c = ptr(step, bases, OUTER.a), ptr(step, bases, OUTER.b), ptr(step, bases, OUTER.c)
    images, height, width, deep = (
        num(step, OUTER.images),
        num(step, OUTER.height),
        num(step, OUTER.width),
        num(step, OUTER.deep),
    )
    high, wide, b_deep = num(step, OUTER.high), num(step, OUTER.wide), num(step, OUTER.b_deep)
    kernel_h, kernel_w, stride_h, stride_w = (
        num(step, OUTER.kernel_h),
        num(step, OUTER.kernel_w),
        num(step, OUTER.stride_h),
        num(step, OUTER.stride_w),
    )
    dilation_h, dilation_w, top, left = (
        num(step, OUTER.dilation_h),
        num(step, OUTER.dilation_w),
        num(step, OUTER.top),
        num(step, OUTER.left),
    )
    groups, rows, columns, block = (
        num(step, OUTER.groups),
        num(step, OUTER.rows),
        num(step, OUTER.columns),
        num(step, OUTER.block),
    )
    batches, batch_a, batch_b, batch_c = (
        num(step, OUTER.batches),
        num(step, OUTER.batch_a),
        num(step, OUTER.batch_b),
        num(step, OUTER.batch_c),
    )
    strips, tall = (columns + 2 * LANES - 1) // (2 * LANES), NARROW if columns <= LANES else WIDE
    bands, taps = (rows + tall - 1) // tall, kernel_h * kernel_w
    a_step, b_step = 4 * deep * stride_w, 4 * b_deep
    a_line, b_line = 4 * deep * width * stride_h, 4 * b_deep * wide
    joined = kernel_h * kernel_w == 1 and wide * a_step == a_line
    jobs, total = groups * taps * bands * strips, images * high
    lo, hi = batches * jobs * worker // workers, batches * jobs * (worker + 1) // workers
    for batch in range(batches):
        begin, end = max(lo, batch * jobs), min(hi, (batch + 1) * jobs)
        if begin >= end:
            continue
        from_a, from_b, to = a + batch * batch_a, b + batch * batch_b, c + batch * batch_c
        for start in range(0, total, block):
            stop = min(total, start + block)
            for job in range(begin - batch * jobs, end - batch * jobs):
                strip, rest = job % strips, job // strips
                band, rest = rest % bands, rest // bands
                tap, group = rest % taps, rest // taps
                tap_y, tap_x = tap // kernel_w, tap % kernel_w
                up, across = tap_y * dilation_h - top, tap_x * dilation_w - left
                y0, y1 = _met(up, stride_h, high, height)
                x0, x1 = _met(across, stride_w, wide, width)
                row, column = band * tall, strip * 2 * LANES
                depth, live = min(tall, rows - row), min(2 * LANES, columns - column)
                place = to + 4 * (((group * taps + tap) * rows + row) * columns + column)
                if start == 0:
                    for i in range(depth):
                        for j in range(0, live, LANES):
                            vstore_n(f32p(place + 4 * (i * columns + j)), splat(_ZERO), live - j)
                line = start
                while line < stop:
                    image = line // high
                    y = max(line - image * high, y0)
                    lines, count = min(y1, stop - image * high) - y, x1 - x0
                    line = (image + 1) * high
                    if lines <= 0 or count <= 0:
                        continue
                    pixel = (image * height + y * stride_h + up) * width + x0 * stride_w + across
                    here = from_a + 4 * (pixel * deep + group * rows + row)
                    there = from_b + 4 * (((image * high + y) * wide + x0) * b_deep + group * columns + column)
                    if joined and count == wide:
                        count, lines = count * lines, min(lines, 1)
                    walk = (lines, a_line, b_line, count, a_step, b_step)
                    if live > LANES:
                        _strip_2(here, there, walk, place, 4 * columns, live, depth)
                    else:
                        _strip_1(here, there, walk, place, 4 * columns, live, depth)


@device
def _lane_sums(a, b, lines, a_line, b_line, count, a_step, b_step, live, start):
    """The sum over pixels of A's channels times B's, for `live` channels of one vector, added to `start`."""
    p, q, r, s = start, splat(_ZERO), splat(_ZERO), splat(_ZERO)
    for line in range(lines):
        left, right = a + line * a_line, b + line * b_line
        k = 0
        while k + 4 <= count:
            p = vfma(vload_n(f32p(left), live), vload_n(f32p(right), live), p)
            q = vfma(vload_n(f32p(left + a_step), live), vload_n(f32p(right + b_step), live), q)
            r = vfma(vload_n(f32p(left + 2 * a_step), live), vload_n(f32p(right + 2 * b_step), live), r)
            s = vfma(vload_n(f32p(left + 3 * a_step), live), vload_n(f32p(right + 3 * b_step), live), s)
            left += 4 * a_step
            right += 4 * b_step
            k += 4
        while k < count:
            p = vfma(vload_n(f32p(left), live), vload_n(f32p(right), live), p)
            left += a_step
            right += b_step
            k += 1
    return (p + q) + (r + s)


@device
def _three_sums(a, b, lines, a_line, b_line, count, a_step, b_step, apart, live, sums):
    """Like `_lane_sums` for three taps, `apart` bytes from one to the next, which share the loads of B."""
    p, q, r = sums
    p2, q2, r2 = splat(_ZERO), splat(_ZERO), splat(_ZERO)
    for line in range(lines):
        left, right = a + line * a_line, b + line * b_line
        k = 0
        while k + 2 <= count:
            y, z, more = vload_n(f32p(right), live), vload_n(f32p(right + b_step), live), left + a_step
            p, p2 = vfma(vload_n(f32p(left), live), y, p), vfma(vload_n(f32p(more), live), z, p2)
            q = vfma(vload_n(f32p(left + apart), live), y, q)
            q2 = vfma(vload_n(f32p(more + apart), live), z, q2)
            r = vfma(vload_n(f32p(left + 2 * apart), live), y, r)
            r2 = vfma(vload_n(f32p(more + 2 * apart), live), z, r2)
            left += 2 * a_step
            right += 2 * b_step
            k += 2
        if k < count:
            y = vload_n(f32p(right), live)
            p, q = vfma(vload_n(f32p(left), live), y, p), vfma(vload_n(f32p(left + apart), live), y, q)
            r = vfma(vload_n(f32p(left + 2 * apart), live), y, r)
    return p + p2, q + q2, r + r2


@kernel(Outer, unread=("b_deep", "groups", "rows", "columns", "batches", "batch_a", "batch_b", "batch_c"))
def f32_depthwise(step, bases, worker, workers):
    """Depthwise: workers share lines of taps."""
    a, b, c = ptr(step, bases, OUTER.a), ptr(step, bases, OUTER.b), ptr(step, bases, OUTER.c)
    images, height, width, channels = (
        num(step, OUTER.images),
        num(step, OUTER.height),
        num(step, OUTER.width),
        num(step, OUTER.deep),
    )
    high, wide = num(step, OUTER.high), num(step, OUTER.wide)
    kernel_h, kernel_w, stride_h, stride_w = (
        num(step, OUTER.kernel_h),
        num(step, OUTER.kernel_w),
        num(step, OUTER.stride_h),
        num(step, OUTER.stride_w),
    )
    dilation_h, dilation_w, top, left = (
        num(step, OUTER.dilation_h),
        num(step, OUTER.dilation_w),
        num(step, OUTER.top),
        num(step, OUTER.left),
    )
    block = num(step, OUTER.block)
    strips, total, pixel = (channels + LANES - 1) // LANES, images * high, 4 * channels
    a_step, a_line, b_line, apart = pixel * stride_w, pixel * width * stride_h, pixel * wide, pixel * dilation_w
    lo, hi = first(strips * kernel_h, worker, workers, 1), first(strips * kernel_h, worker + 1, workers, 1)
    for start in range(0, total, block):
        stop = min(total, start + block)
        for job in range(lo, hi):
            channel, up = job // kernel_h * LANES, job % kernel_h * dilation_h - top
            live = min(LANES, channels - channel)
            y0, y1 = _met(up, stride_h, high, height)
            place = c + 4 * (job % kernel_h * kernel_w * channels + channel)
            if start == 0:
                for tap in range(kernel_w):
                    vstore_n(f32p(place + tap * pixel), splat(_ZERO), live)
            line = start
            while line < stop:
                image = line // high
                y = max(line - image * high, y0)
                lines = min(y1, stop - image * high) - y
                line = (image + 1) * high
                if lines <= 0:
                    continue
                # Where all three taps are inside the image they are computed together, elsewhere one by one.
                here = a + pixel * ((image * height + y * stride_h + up) * width - left) + 4 * channel
                there = b + pixel * (image * high + y) * wide + 4 * channel
                low, far = 0, 0
                if kernel_w == 3:
                    low, _ = _met(-left, stride_w, wide, width)
                    _, far = _met(2 * dilation_w - left, stride_w, wide, width)
                    far = max(low, far)
                if far > low:
                    sums = (
                        vload_n(f32p(place), live),
                        vload_n(f32p(place + pixel), live),
                        vload_n(f32p(place + 2 * pixel), live),
                    )
                    p, q, r = _three_sums(
                        here + low * a_step, there + low * pixel, lines, a_line, b_line, far - low, a_step, pixel,
                        apart, live, sums,
                    )  # fmt: skip
                    vstore_n(f32p(place), p, live)
                    vstore_n(f32p(place + pixel), q, live)
                    vstore_n(f32p(place + 2 * pixel), r, live)
                for tap in range(kernel_w):
                    x0, x1 = _met(tap * dilation_w - left, stride_w, wide, width)
                    to, from_a = f32p(place + tap * pixel), here + tap * apart
                    for side in range(2):
                        begin = x0 if side == 0 else max(x0, far)
                        count = (min(x1, low) if side == 0 else x1) - begin
                        if count > 0:
                            one = _lane_sums(
                                from_a + begin * a_step, there + begin * pixel, lines, a_line, b_line, count, a_step,
                                pixel, live, vload_n(to, live),
                            )  # fmt: skip
                            vstore_n(to, one, live)


@kernel(Unpack)
def f32_unpack(step, bases, worker, workers):
    """(groups, taps, rows, columns) -> (groups, columns, rows, taps)."""
    x, y = ptr(step, bases, UNPACK.x), ptr(step, bases, UNPACK.y)
    groups, taps, rows, columns = (
        num(step, UNPACK.groups),
        num(step, UNPACK.taps),
        num(step, UNPACK.rows),
        num(step, UNPACK.columns),
    )
    for job in range(groups * columns * worker // workers, groups * columns * (worker + 1) // workers):
        group = job // columns
        source = f32p(x + 4 * (group * taps * rows * columns + job - group * columns))
        target = f32p(y + 4 * job * rows * taps)
        for row in range(rows):
            for tap in range(taps):
                target[row * taps + tap] = source[(tap * rows + row) * columns]
