"""Gradients of pools, float32, channels last, over one to three spatial axes, from windows back to the image.

A worker processes whole images for some channels, so that windows may overlap. If a window has several maxima, the
first gets the whole gradient; a NaN is the maximum only if it is the window's first element.
"""

from __future__ import annotations

import numpy as np

from lite_runtime.kernels._vmath import vpick_eq, vpick_lt
from lite_runtime.kernels.pool import tap_high, tap_low
from lite_runtime.native.simd import LANES, device, f32p, first, kernel, num, ptr, splat, vload_n, vstore_n
from lite_runtime.steps.declaration import named
from lite_runtime.steps.poolgrad import PoolGrad

GRAD = named(PoolGrad)

_ZERO = np.float32(0)


@device
def _axis(step, axis, o):
    """For window o along an axis: its first position inside, the first tap inside, the taps inside, a mean's taps."""
    size, taps = num(step, GRAD.size + axis), num(step, GRAD.window + axis)
    dilation = num(step, GRAD.dilation + axis)
    start = o * num(step, GRAD.stride + axis) - num(step, GRAD.pad + axis)
    low, high = tap_low(start, dilation), tap_high(start, dilation, taps, size)
    divisor = max(0, high - low)
    if num(step, GRAD.counts_padding) != 0:
        divisor = tap_high(start, dilation, taps, num(step, GRAD.counted + axis))
    return start + low * dilation, dilation, max(0, high - low), divisor


@device
def _winner(x, window, lines, pixel, live):
    """For each lane the index of the first largest tap."""
    (_, g_d, n_d, _), (_, g_h, n_h, _), (_, g_w, n_w, _) = window
    plane, line = lines
    best, winner = vload_n(f32p(x), live), splat(_ZERO)
    tap = 0
    for d in range(n_d):
        for h in range(n_h):
            for w in range(n_w):
                value = vload_n(f32p(x + d * g_d * plane + h * g_h * line + w * g_w * pixel), live)
                winner = vpick_lt(best, value, splat(np.float32(tap)), winner)
                best = vpick_lt(best, value, value, best)
                tap += 1
    return winner


def _gradient(largest: bool):
    @kernel(PoolGrad)
    def gradient(step, bases, worker, workers):
        x, dy, dx = ptr(step, bases, GRAD.x), ptr(step, bases, GRAD.dy), ptr(step, bases, GRAD.dx)
        batch, channels = num(step, GRAD.batch), num(step, GRAD.channels)
        depth, height, width = num(step, GRAD.size), num(step, GRAD.size + 1), num(step, GRAD.size + 2)
        out_d, out_h, out_w = num(step, GRAD.out), num(step, GRAD.out + 1), num(step, GRAD.out + 2)
        strips, pixel = (channels + LANES - 1) // LANES, 4 * channels
        line, plane = pixel * width, pixel * width * height
        area = depth * height * width
        for job in range(first(batch * strips, worker, workers, 1), first(batch * strips, worker + 1, workers, 1)):
            image = job // strips
            channel = (job - image * strips) * LANES
            live = channels - channel
            corner = image * area * pixel + 4 * channel
            for i in range(area):
                vstore_n(f32p(dx + corner + i * pixel), splat(_ZERO), live)
            given = dy + image * out_d * out_h * out_w * pixel + 4 * channel
            for o_d in range(out_d):
                across_d = _axis(step, 0, o_d)
                for o_h in range(out_h):
                    across_h = _axis(step, 1, o_h)
                    for o_w in range(out_w):
                        across_w = _axis(step, 2, o_w)
                        at = corner + across_d[0] * plane + across_h[0] * line + across_w[0] * pixel
                        share = vload_n(f32p(given), live)
                        given += pixel
                        taps = across_d[2] * across_h[2] * across_w[2]
                        if taps == 0:
                            continue
                        if largest:
                            winner = _winner(x + at, (across_d, across_h, across_w), (plane, line), pixel, live)
                        else:
                            share = share / splat(np.float32(across_d[3] * across_h[3] * across_w[3]))
                        tap = 0
                        for d in range(across_d[2]):
                            for h in range(across_h[2]):
                                for w in range(across_w[2]):
                                    to = dx + at + d * across_d[1] * plane + h * across_h[1] * line
                                    to = f32p(to + w * across_w[1] * pixel)
                                    if largest:
                                        mine = vpick_eq(winner, splat(np.float32(tap)), share, splat(_ZERO))
                                        vstore_n(to, vload_n(to, live) + mine, live)
                                    else:
                                        vstore_n(to, vload_n(to, live) + share, live)
                                    tap += 1

    return gradient


f32_max__nhwc, f32_mean__nhwc = _gradient(True), _gradient(False)
