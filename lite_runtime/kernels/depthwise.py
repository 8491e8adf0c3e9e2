"""Depthwise convolution, float32, channels last: each channel has a window of its own, vectors run over channels.

Weights are packed [taps][channels rounded up to LANES]. Taps are added up column by column of the window, as XNNPACK
does: what hangs on the last bit, such as a result that is quantised at run time, then comes out as LiteRT's.
"""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from lite_runtime.kernels._math import activate
from lite_runtime.simd import (
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
    i64p,
    kernel,
    num,
    ptr,
    real,
)

PIXELS = 8
"""Pixels side by side that share a load of the weights: 9 loads for 8 multiply-adds."""
_I64, _F32 = ir.IntType(64), ir.FloatType()


def _tile(count: int, masked: bool):
    """`count` pixels by LANES channels, or, `masked`, by fewer."""

    @intrinsic
    def tile(typing, first, step, taps_at, taps, w, w_step, out, stride, bias, residual, bounds, live, channels):
        """first: address of the first pixel's window; the other pixels' are `step` bytes apart, dead ones repeat the
        last live one. taps_at: byte offsets of the taps from there; taps: (runs, taps a run, taps from one run to the
        next) in that list and, w_step bytes a tap, in the weights. bounds: lowest and highest result."""
        triple, pair = types.UniTuple(types.int64, 3), types.UniTuple(types.float32, 2)
        words = types.CPointer(types.int64)
        address, number = types.int64, types.int64
        sig = types.void(
            *(address, number, words, triple, address, number, address, number, address, address, pair, number, number)
        )

        def lower(context, builder, sig, args):
            first, step, taps_at, taps, w, w_step, out, stride, bias, residual, bounds, live, channels = args
            vector = ir.VectorType(_F32, LANES)
            fma = declare(builder, f"llvm.{FMA}.v{LANES}f32", vector, vector, vector, vector)
            mask = emit_mask(builder, channels) if masked else None

            def load(where):
                return emit_load(builder, builder.inttoptr(where, _F32.as_pointer()), mask)

            start = cgutils.alloca_once_value(builder, ir.Constant(vector, [0.0] * LANES))
            with builder.if_then(builder.icmp_signed("!=", bias, _I64(0))):
                builder.store(load(bias), start)
            sums = [cgutils.alloca_once(builder, vector) for _ in range(count)]
            pixels = []
            for i, one in enumerate(sums):
                builder.store(builder.load(start), one)
                inside = builder.icmp_signed("<", _I64(i), live)
                pixel = builder.select(inside, _I64(i), builder.sub(live, _I64(1)))
                pixels.append(builder.add(first, builder.mul(pixel, step)))
            runs, length, apart = (builder.extract_value(taps, i) for i in range(3))
            with cgutils.for_range(builder, runs, intp=_I64) as run:
                begin = builder.mul(run.index, apart)
                with cgutils.for_range(builder, length, intp=_I64) as one_tap:
                    tap = builder.add(begin, one_tap.index)
                    offset = builder.load(builder.gep(taps_at, [tap]))
                    weight = load(builder.add(w, builder.mul(tap, w_step)))
                    for pixel, one in zip(pixels, sums, strict=True):
                        value = load(builder.add(pixel, offset))
                        builder.store(builder.call(fma, [value, weight, builder.load(one)]), one)
            with builder.if_then(builder.icmp_signed("!=", residual, _I64(0))):
                for i, one in enumerate(sums):
                    with builder.if_then(builder.icmp_signed("<", _I64(i), live)):
                        more = load(builder.add(residual, builder.mul(stride, _I64(i))))
                        builder.store(builder.fadd(builder.load(one), more), one)
            low, high = (emit_splat(builder, builder.extract_value(bounds, i)) for i in range(2))
            for i, one in enumerate(sums):
                with builder.if_then(builder.icmp_signed("<", _I64(i), live)):
                    value = emit_max(builder, high, emit_max(builder, low, builder.load(one)), "<")
                    to = builder.inttoptr(builder.add(out, builder.mul(stride, _I64(i))), _F32.as_pointer())
                    emit_store(builder, value, to, mask)
            return context.get_dummy_value()

        return sig, lower

    return tile


_whole, _part = _tile(PIXELS, False), _tile(PIXELS, True)
_one, _one_part = _tile(1, False), _tile(1, True)


@device
def inside(start, step, count, size):
    """The taps [first, end) of `count` that lie in 0..size-1, the first at `start`, the others `step` apart."""
    low = 0
    if start < 0:
        low = min(count, (step - 1 - start) // step)
    high = count
    if start + (count - 1) * step >= size:
        high = max(low, (size - start + step - 1) // step) if size > start else low
    return low, high


@kernel()
def f32_depthwise(step, bases, worker, workers):
    """Operands x, w (packed), taps_at, bias?, R?, y. What lies outside the image is never read: it would add nothing.

    numbers: 0 images, 1, 2 size of y, 3 channels, 4, 5 window, 6, 7 size of x, 8, 9 strides, 10, 11 dilations,
    12, 13 border before, 14 low, 15 high, 16 activation, 17, 18 its parameters. taps_at: every tap's byte offset from
    a window's first, column by column.
    """
    ops = 6
    x, w, taps_at = ptr(step, bases, 0), ptr(step, bases, 1), ptr(step, bases, 2)
    bias, residual, y = ptr(step, bases, 3), ptr(step, bases, 4), ptr(step, bases, 5)
    images, height, width, channels = num(step, ops, 0), num(step, ops, 1), num(step, ops, 2), num(step, ops, 3)
    kernel_h, kernel_w, high, wide = num(step, ops, 4), num(step, ops, 5), num(step, ops, 6), num(step, ops, 7)
    stride_h, stride_w = num(step, ops, 8), num(step, ops, 9)
    dilation_h, dilation_w = num(step, ops, 10), num(step, ops, 11)
    top, left = num(step, ops, 12), num(step, ops, 13)
    bounds = (real(step, ops, 14), real(step, ops, 15))
    activation, alpha, beta = num(step, ops, 16), real(step, ops, 17), real(step, ops, 18)
    pixel = 4 * channels
    apart = stride_w * pixel
    w_step = (channels + LANES - 1) // LANES * LANES * 4
    # Columns [whole, narrow) see all taps of a line and are computed side by side; the others go one by one.
    whole = min(width, (left + stride_w - 1) // stride_w)
    room = wide - 1 - (kernel_w - 1) * dilation_w + left
    narrow = max(whole, min(width, room // stride_w + 1)) if room >= 0 else whole
    for line in range(images * height * worker // workers, images * height * (worker + 1) // workers):
        image = line // height
        row = (line - image * height) * stride_h - top
        i, i_end = inside(row, dilation_h, kernel_h, high)
        source = x + (image * high + row) * wide * pixel
        column = 0
        while column < width:
            across = column * stride_w - left
            if whole <= column < narrow:
                live = min(PIXELS, narrow - column)
                j, j_end = 0, kernel_w
            else:
                live = 1
                j, j_end = inside(across, dilation_w, kernel_w, wide)
            start = j * kernel_h + i
            merged = i_end - i == kernel_h  # columns follow each other
            taps = (1, (j_end - j) * kernel_h, 0) if merged else (j_end - j, i_end - i, kernel_h)
            list_at = i64p(taps_at + 8 * start)
            place = (line * width + column) * pixel
            for channel in range(0, channels, LANES):
                at = 4 * channel
                here, there, to = source + across * pixel + at, w + start * w_step + at, y + place + at
                shift = bias + at if bias != 0 else 0
                more = residual + place + at if residual != 0 else 0
                rest = channels - channel
                if rest < LANES and live == 1:
                    _one_part(here, apart, list_at, taps, there, w_step, to, pixel, shift, more, bounds, live, rest)
                elif rest < LANES:
                    _part(here, apart, list_at, taps, there, w_step, to, pixel, shift, more, bounds, live, rest)
                elif live == 1:
                    _one(here, apart, list_at, taps, there, w_step, to, pixel, shift, more, bounds, live, rest)
                else:
                    _whole(here, apart, list_at, taps, there, w_step, to, pixel, shift, more, bounds, live, rest)
            column += live
        # Not in the loop above: its constants would crowd the tile's registers.
        if activation > 2:
            activate(activation, alpha, beta, f32p(y + line * width * pixel), width * channels)
