"""The sums of transposed convolutions, float32, channels last: lines of results, into which pixels of the image go.

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

_ZERO = np.float32(0)
OPS = 4


@device
def _begin(out, bias, wide, channels):
    """A line of the result before its sums."""
    for column in range(wide):
        for c in range(0, channels, LANES):
            start = vload_n(f32p(bias + 4 * c), channels - c) if bias != 0 else splat(_ZERO)
            vstore_n(f32p(out + 4 * (column * channels + c)), start, channels - c)


@device
def _finish(step, out, count):
    """Clamp, then the activation of a line."""
    low, high = splat(real(step, OPS, 14)), splat(real(step, OPS, 15))
    activation, alpha, beta = num(step, OPS, 16), real(step, OPS, 17), real(step, OPS, 18)
    for i in range(0, count, LANES):
        value = vmax(low, vload_n(f32p(out + 4 * i), count - i))
        vstore_n(f32p(out + 4 * i), vmin(high, value), count - i)
    if activation > 2:
        activate(activation, alpha, beta, f32p(out), count)


def _sums(depthwise: bool):
    def sums(step, bases, worker, workers):
        x, w, bias, y = ptr(step, bases, 0), ptr(step, bases, 1), ptr(step, bases, 2), ptr(step, bases, 3)
        images, height, width, channels = num(step, OPS, 0), num(step, OPS, 1), num(step, OPS, 2), num(step, OPS, 3)
        high, wide, kernel_h, kernel_w = num(step, OPS, 4), num(step, OPS, 5), num(step, OPS, 6), num(step, OPS, 7)
        stride_h, stride_w = num(step, OPS, 8), num(step, OPS, 9)
        dilation_h, dilation_w, top, left = (
            num(step, OPS, 10),
            num(step, OPS, 11),
            num(step, OPS, 12),
            num(step, OPS, 13),
        )
        groups = num(step, OPS, 19)
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

    operands = "taps column by column, channels rounded up to LANES" if depthwise else "left out"
    spread = "channels" if depthwise else "groups, window, channels of a group"
    sums.__doc__ = f"""Operands x (images, height, width, {spread}), w ({operands}), bias?, y.

    numbers: 0 images, 1 height, 2 width, 3 channels, 4, 5 sizes of y, 6, 7 window, 8, 9 strides, 10, 11 dilations,
    12, 13 border before, 14 low, 15 high, 16 activation, 17, 18 its parameters, 19 groups.
    """
    return sums


f32_depthwise, f32_gather = (kernel()(_sums(depthwise)) for depthwise in (True, False))
