"""Depthwise convolution, float32, channels last: each channel has a window of its own, vectors run over channels.

Weights are packed [taps][channels rounded up to LANES]; taps_at gives every tap's byte offset from the first element of
an output pixel's window, as in the products (gemm.py); the image carries its border of zeros already.
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
_WORDS = types.CPointer(types.int64)


@intrinsic
def _tile(typing, x, column_step, taps_at, taps, w, tap_step, out, stride, bias, residual, low, high, live, channels):
    """PIXELS pixels x LANES channels. x: address of the first window; the rest are column_step bytes apart; windows of
    dead pixels repeat the last live one."""
    sig = types.void(
        types.int64, types.int64, _WORDS, *[types.int64] * 7, types.float32, types.float32, types.int64, types.int64
    )

    def lower(context, builder, sig, args):
        x, column_step, taps_at, taps, w, tap_step, out, stride, bias, residual, low, high, live, channels = args
        vector = ir.VectorType(_F32, LANES)
        fma = declare(builder, f"llvm.{FMA}.v{LANES}f32", vector, vector, vector, vector)
        mask = emit_mask(builder, channels)

        def at(where):
            return builder.inttoptr(where, _F32.as_pointer())

        start = cgutils.alloca_once_value(builder, ir.Constant(vector, [0.0] * LANES))
        with builder.if_then(builder.icmp_signed("!=", bias, _I64(0))):
            builder.store(emit_load(builder, at(bias), mask), start)
        sums = [cgutils.alloca_once(builder, vector) for _ in range(PIXELS)]
        for one in sums:
            builder.store(builder.load(start), one)
        windows = []
        for i in range(PIXELS):
            inside = builder.icmp_signed("<", _I64(i), live)
            pixel = builder.select(inside, _I64(i), builder.sub(live, _I64(1)))
            windows.append(builder.add(x, builder.mul(pixel, column_step)))
        with cgutils.for_range(builder, taps, intp=_I64) as tap:
            offset = builder.load(builder.gep(taps_at, [tap.index]))
            weight = emit_load(builder, at(builder.add(w, builder.mul(tap.index, tap_step))))
            for window, one in zip(windows, sums, strict=True):
                value = emit_load(builder, at(builder.add(window, offset)), mask)
                builder.store(builder.call(fma, [value, weight, builder.load(one)]), one)
        bounds = emit_splat(builder, low), emit_splat(builder, high)
        for i, one in enumerate(sums):
            with builder.if_then(builder.icmp_signed("<", _I64(i), live)):
                row = builder.mul(stride, _I64(i))
                with builder.if_then(builder.icmp_signed("!=", residual, _I64(0))):
                    more = emit_load(builder, at(builder.add(residual, row)), mask)
                    builder.store(builder.fadd(builder.load(one), more), one)
                value = emit_max(builder, bounds[1], emit_max(builder, bounds[0], builder.load(one)), "<")
                emit_store(builder, value, at(builder.add(out, row)), mask)
        return context.get_dummy_value()

    return sig, lower


@kernel()
def f32_depthwise(step, bases, worker, workers):
    """Operands x (with its border), w (packed), taps_at, bias?, R?, y.

    numbers: 0 images, 1 output height, 2 output width, 3 channels, 4 taps, 5 image step, 6 line step, 7 column step of
    the windows (bytes), 8 low, 9 high, 10 activation, 11, 12 its parameters.
    """
    ops = 6
    x, w, taps_at = ptr(step, bases, 0), ptr(step, bases, 1), i64p(ptr(step, bases, 2))
    bias, residual, y = ptr(step, bases, 3), ptr(step, bases, 4), ptr(step, bases, 5)
    images, height, width, channels = num(step, ops, 0), num(step, ops, 1), num(step, ops, 2), num(step, ops, 3)
    taps, image_step = num(step, ops, 4), num(step, ops, 5)
    line_step, column_step = num(step, ops, 6), num(step, ops, 7)
    low, high, activation = real(step, ops, 8), real(step, ops, 9), num(step, ops, 10)
    alpha, beta = real(step, ops, 11), real(step, ops, 12)
    stride = 4 * channels
    tap_step = (channels + LANES - 1) // LANES * LANES * 4
    for line in range(images * height * worker // workers, images * height * (worker + 1) // workers):
        image = line // height
        source = x + image * image_step + (line - image * height) * line_step
        for column in range(0, width, PIXELS):
            here = source + column * column_step
            place = (line * width + column) * stride
            live = min(PIXELS, width - column)
            for channel in range(0, channels, LANES):
                at = 4 * channel
                _tile(
                    here + at,
                    column_step,
                    taps_at,
                    taps,
                    w + at,
                    tap_step,
                    y + place + at,
                    stride,
                    bias + at if bias != 0 else 0,
                    residual + place + at if residual != 0 else 0,
                    low,
                    high,
                    live,
                    channels - channel,
                )
            if activation > 2:
                activate(activation, alpha, beta, f32p(y + place), live * channels)
