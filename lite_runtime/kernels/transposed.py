"""The sums of transposed convolutions, float32, channels last: pixels of the image are added to lines of results.

A result is a sum in ascending order of the window's rows, then of the image's columns.
"""

from __future__ import annotations

import numpy as np

from lite_runtime.kernels._math import activate
from lite_runtime.native.simd import (
    LANES,
    device,
    f32p,
    kernel,
    num,
    ptr,
    real,
    splat,
    vfma,
    vload,
    vload_n,
    vmax,
    vmin,
    vstore_n,
)
from lite_runtime.steps.declaration import named
from lite_runtime.steps.transposed import TransposedSums

SUMS = named(TransposedSums)

_ZERO = np.float32(0)


@device
def _begin(out, bias, wide, channels):
    """Initialise a line of the result before its sums."""
    for column in range(wide):
        for c in range(0, channels, LANES):
            start = vload_n(f32p(bias + 4 * c), channels - c) if bias != 0 else splat(_ZERO)
            vstore_n(f32p(out + 4 * (column * channels + c)), start, channels - c)


@device
def _finish(step, out, count):
    """Clamp a line, then apply the activation."""
    low, high = splat(real(step, SUMS.low)), splat(real(step, SUMS.high))
    activation, alpha, beta = num(step, SUMS.activation), real(step, SUMS.alpha), real(step, SUMS.beta)
    for i in range(0, count, LANES):
        value = vmax(low, vload_n(f32p(out + 4 * i), count - i))
        vstore_n(f32p(out + 4 * i), vmin(high, value), count - i)
    if activation > 2:
        activate(activation, alpha, beta, f32p(out), count)


def _sums(depthwise: bool):
    def sums(step, bases, worker, workers):
        x, w, bias, y = (
            ptr(step, bases, SUMS.x),
            ptr(step, bases, SUMS.w),
            ptr(step, bases, SUMS.bias),
            ptr(step, bases, SUMS.y),
        )
        images, height, width, channels = (
            num(step, SUMS.images),
            num(step, SUMS.height),
            num(step, SUMS.width),
            num(step, SUMS.channels),
        )
        high, wide, kernel_h, kernel_w = (
            num(step, SUMS.y_height),
            num(step, SUMS.y_width),
            num(step, SUMS.kernel_h),
            num(step, SUMS.kernel_w),
        )
        stride_h, stride_w = num(step, SUMS.stride_h), num(step, SUMS.stride_w)
        dilation_h, dilation_w, top, left = (
            num(step, SUMS.dilation_h),
            num(step, SUMS.dilation_w),
            num(step, SUMS.top),
            num(step, SUMS.left),
        )
        groups = num(step, SUMS.groups)
        part = channels // groups
        pixel, padded = 4 * channels, (channels + LANES - 1) // LANES * LANES * 4
        for line in range(images * high * worker // workers, images * high * (worker + 1) // workers):
            image = line // high
            row = line - image * high + top
            out = y + line * wide * pixel
            _begin(out, bias, wide, channels)
            for i in range(kernel_h):
                up = row - i * dilation_h
                if up < 0 or up % stride_h != 0 or up // stride_h >= height:
                    continue
                source = (image * height + up // stride_h) * width
                for at in range(width):
                    for j in range(kernel_w):
                        column = at * stride_w + j * dilation_w - left
                        if column < 0 or column >= wide:
                            continue
                        to = out + column * pixel
                        if depthwise:
                            here, weights = x + (source + at) * pixel, w + (j * kernel_h + i) * padded
                            for c in range(0, channels, LANES):
                                value = vload_n(f32p(here + 4 * c), channels - c)
                                so_far = vload_n(f32p(to + 4 * c), channels - c)
                                so_far = vfma(value, vload(f32p(weights + 4 * c)), so_far)
                                vstore_n(f32p(to + 4 * c), so_far, channels - c)
                        else:
                            tap = i * kernel_w + j
                            for group in range(groups):
                                here = x + (((source + at) * groups + group) * kernel_h * kernel_w + tap) * 4 * part
                                for c in range(0, part, LANES):
                                    so_far = vload_n(f32p(to + 4 * c), part - c)
                                    so_far = so_far + vload_n(f32p(here + 4 * c), part - c)
                                    vstore_n(f32p(to + 4 * c), so_far, part - c)
                                to += 4 * part
            _finish(step, out, wide * channels)

    return sums


f32_depthwise, f32_gather = (kernel(TransposedSums)(_sums(depthwise)) for depthwise in (True, False))
