"""Windowed maxima and means of float32 over one to three spatial axes (fewer than three: leading axes of size 1).

`__nhwc`: channels last, LANES channels at a time. `__nchw`: a row of windows at a time. A window is clipped to the
elements inside the image, so padding costs nothing. A NaN makes the maximum of every window that contains it NaN.
"""

from __future__ import annotations

import numpy as np

from lite_runtime.kernels._vmath import vlarger, vload_even, vnote_nan
from lite_runtime.native.simd import (
    LANES,
    SHAPE,
    address,
    device,
    f32p,
    first,
    kernel,
    num,
    ptr,
    splat,
    stack_floats,
    vload,
    vload_n,
    vmax,
    vstore,
    vstore_n,
)
from lite_runtime.steps.declaration import named
from lite_runtime.steps.pool import Pool

POOL = named(Pool)

_ZERO, _INF = np.float32(0), np.float32(np.inf)
SPAN = 256 if SHAPE.small else 2048
"""The most floats that a row of windows may span for `__nchw`, padding included."""
_LINE = SPAN + 4 * LANES


@device
def tap_low(start, dilation):
    """The first tap at a position of at least 0; the window starts at `start`."""
    return (dilation - 1 - start) // dilation if start < 0 else 0


@device
def tap_high(start, dilation, taps, size):
    """One past the last tap at a position below `size`."""
    if start + (taps - 1) * dilation < size:
        return taps
    return max(0, (size - start + dilation - 1) // dilation)


@device
def counted(step, axis, start, low, high):
    """Along an axis: the number of taps that a mean divides by."""
    if num(step, POOL.counts_padding) == 0:
        return max(0, high - low)
    dilation, taps = num(step, POOL.dilation + axis), num(step, POOL.window + axis)
    return tap_high(start, dilation, taps, num(step, POOL.counted + axis))


@device
def _largest(total, v):
    return vlarger(v, total)


@device
def _plus(total, v):
    return total + v


@device
def _larger(total, v):
    return vmax(v, total)


@device
def _note_nothing(v, seen):
    return seen


@device
def _or_nan(total, seen, count):
    return vnote_nan(seen, total)


@device
def _mean(total, seen, count):
    return total / splat(np.float32(count))


def _channels_last(take, note, finish, start):
    @kernel(Pool)
    def pool(step, bases, worker, workers):
        x, y = ptr(step, bases, POOL.x), ptr(step, bases, POOL.y)
        batch, channels = num(step, POOL.batch), num(step, POOL.channels)
        depth, height, width = (num(step, POOL.size), num(step, POOL.size + 1), num(step, POOL.size + 2))
        out_d, out_h, out_w = num(step, POOL.out), num(step, POOL.out + 1), num(step, POOL.out + 2)
        k_d, k_h, k_w = num(step, POOL.window), num(step, POOL.window + 1), num(step, POOL.window + 2)
        s_d, s_h, s_w = num(step, POOL.stride), num(step, POOL.stride + 1), num(step, POOL.stride + 2)
        g_d, g_h, g_w = (
            num(step, POOL.dilation),
            num(step, POOL.dilation + 1),
            num(step, POOL.dilation + 2),
        )
        p_d, p_h, p_w = num(step, POOL.pad), num(step, POOL.pad + 1), num(step, POOL.pad + 2)
        items = batch * out_d * out_h * out_w
        lo, hi = first(items, worker, workers, 1), first(items, worker + 1, workers, 1)
        o_w, rest = lo % out_w, lo // out_w
        o_h, rest = rest % out_h, rest // out_h
        o_d, n = rest % out_d, rest // out_d
        pixel, row, plane = 4 * channels, 4 * channels * width, 4 * channels * width * height
        for item in range(lo, hi):
            d, h, w = o_d * s_d - p_d, o_h * s_h - p_h, o_w * s_w - p_w
            d0, d1 = tap_low(d, g_d), tap_high(d, g_d, k_d, depth)
            h0, h1 = tap_low(h, g_h), tap_high(h, g_h, k_h, height)
            w0, w1 = tap_low(w, g_w), tap_high(w, g_w, k_w, width)
            count = counted(step, 0, d, d0, d1) * counted(step, 1, h, h0, h1) * counted(step, 2, w, w0, w1)
            corner = x + n * depth * plane + (d + d0 * g_d) * plane + (h + h0 * g_h) * row + (w + w0 * g_w) * pixel
            c = 0
            while c < channels:
                left = channels - c
                out, a, b = y + item * pixel + 4 * c, splat(start), splat(start)
                seen_a, seen_b = splat(_ZERO), splat(_ZERO)
                if left >= 2 * LANES:
                    for td in range(d1 - d0):
                        for th in range(h1 - h0):
                            at = corner + td * g_d * plane + th * g_h * row + 4 * c
                            for _ in range(w1 - w0):
                                u = vload(f32p(at))
                                a, seen_a = take(a, u), note(u, seen_a)
                                v = vload(f32p(at + 4 * LANES))
                                b, seen_b = take(b, v), note(v, seen_b)
                                at += g_w * pixel
                    vstore(f32p(out), finish(a, seen_a, count))
                    vstore(f32p(out + 4 * LANES), finish(b, seen_b, count))
                    c += 2 * LANES
                elif left > LANES:
                    for td in range(d1 - d0):
                        for th in range(h1 - h0):
                            at = corner + td * g_d * plane + th * g_h * row + 4 * c
                            for _ in range(w1 - w0):
                                u = vload(f32p(at))
                                a, seen_a = take(a, u), note(u, seen_a)
                                v = vload_n(f32p(at + 4 * LANES), left - LANES)
                                b, seen_b = take(b, v), note(v, seen_b)
                                at += g_w * pixel
                    vstore(f32p(out), finish(a, seen_a, count))
                    vstore_n(f32p(out + 4 * LANES), finish(b, seen_b, count), left - LANES)
                    c += 2 * LANES
                else:
                    for td in range(d1 - d0):
                        for th in range(h1 - h0):
                            at = corner + td * g_d * plane + th * g_h * row + 4 * c
                            for _ in range(w1 - w0):
                                u = vload_n(f32p(at), left)
                                a, seen_a = take(a, u), note(u, seen_a)
                                at += g_w * pixel
                    vstore_n(f32p(out), finish(a, seen_a, count), left)
                    c += LANES
            o_w += 1
            if o_w == out_w:
                o_w = 0
                o_h += 1
                if o_h == out_h:
                    o_h = 0
                    o_d += 1
                    if o_d == out_d:
                        o_d = 0
                        n += 1

    return pool


@device
def _largest1(total, v):
    return v if v > total or v != v else total


def _channels_first(take, take1, start, mean):
    """One row of windows at a time: first along every column into a line on the stack, then along the line."""

    @kernel(Pool)
    def pool(step, bases, worker, workers):
        x, y = ptr(step, bases, POOL.x), ptr(step, bases, POOL.y)
        planes = num(step, POOL.batch) * num(step, POOL.channels)
        depth, height, width = (num(step, POOL.size), num(step, POOL.size + 1), num(step, POOL.size + 2))
        out_d, out_h, out_w = num(step, POOL.out), num(step, POOL.out + 1), num(step, POOL.out + 2)
        k_d, k_h, k_w = num(step, POOL.window), num(step, POOL.window + 1), num(step, POOL.window + 2)
        s_d, s_h, s_w = num(step, POOL.stride), num(step, POOL.stride + 1), num(step, POOL.stride + 2)
        g_d, g_h, g_w = (
            num(step, POOL.dilation),
            num(step, POOL.dilation + 1),
            num(step, POOL.dilation + 2),
        )
        p_d, p_h, p_w = num(step, POOL.pad), num(step, POOL.pad + 1), num(step, POOL.pad + 2)
        line, counts = address(stack_floats(_LINE)), stack_floats(_LINE)
        span = (out_w - 1) * s_w + (k_w - 1) * g_w + 1
        used = max(0, min(width, span - p_w))
        for i in range(0, span + 2 * LANES, LANES):
            vstore(f32p(line + 4 * i), splat(start))
        for o_w in range(out_w):
            w = o_w * s_w - p_w
            counts[o_w] = np.float32(counted(step, 2, w, tap_low(w, g_w), tap_high(w, g_w, k_w, width)))
        items = planes * out_d * out_h
        lo, hi = first(items, worker, workers, 1), first(items, worker + 1, workers, 1)
        o_h, rest = lo % out_h, lo // out_h
        o_d, n = rest % out_d, rest // out_d
        row, plane = 4 * width, 4 * width * height
        for item in range(lo, hi):
            d, h = o_d * s_d - p_d, o_h * s_h - p_h
            d0, d1 = tap_low(d, g_d), tap_high(d, g_d, k_d, depth)
            h0, h1 = tap_low(h, g_h), tap_high(h, g_h, k_h, height)
            around = np.float32(counted(step, 0, d, d0, d1) * counted(step, 1, h, h0, h1))
            corner = x + n * depth * plane + (d + d0 * g_d) * plane + (h + h0 * g_h) * row
            for j in range(0, used, LANES):
                total = splat(start)
                for td in range(d1 - d0):
                    for th in range(h1 - h0):
                        at = corner + td * g_d * plane + th * g_h * row + 4 * j
                        total = take(total, vload_n(f32p(at), used - j))
                vstore_n(f32p(line + 4 * (p_w + j)), total, used - j)
            out = y + 4 * item * out_w
            if s_w <= 2:
                for o_w in range(0, out_w, LANES):
                    total = splat(start)
                    at = line + 4 * o_w * s_w
                    for _ in range(k_w):
                        total = take(total, vload(f32p(at)) if s_w == 1 else vload_even(f32p(at)))
                        at += 4 * g_w
                    if mean:
                        count = vload_n(f32p(address(counts) + 4 * o_w), out_w - o_w)
                        total = total / (count * splat(around))
                    vstore_n(f32p(out + 4 * o_w), total, out_w - o_w)
            else:
                for o_w in range(out_w):
                    values, one = f32p(line + 4 * o_w * s_w), start
                    for tw in range(k_w):
                        one = take1(one, values[tw * g_w])
                    if mean:
                        one = one / (counts[o_w] * around)
                    f32p(out)[o_w] = one
            o_h += 1
            if o_h == out_h:
                o_h = 0
                o_d += 1
                if o_d == out_d:
                    o_d = 0
                    n += 1

    return pool


f32_max__nhwc = _channels_last(_larger, vnote_nan, _or_nan, -_INF)
f32_mean__nhwc = _channels_last(_plus, _note_nothing, _mean, _ZERO)
f32_max__nchw = _channels_first(_largest, _largest1, -_INF, False)
f32_mean__nchw = _channels_first(_plus, _plus, _ZERO, True)
