"""Windowed maxima of 8-bit integers and means of quantised ones, channels last, over one to three spatial axes.

`_mean`: with S the sum of x, with padding counted as x's zero point, m = factor *
float32(1 / counted elements): y = clamp(round_half_even(float32(S) * m + (y's zero point - float32(elements * x's zero
point) * m))), each operation rounded to float32. `_average`, for equal parameters: S / elements, halves away from zero.
"""

from __future__ import annotations

from numba import float32

from lite_runtime.kernels._integers import BYTES, averaged, lengths, strips, words
from lite_runtime.kernels.pool import counted, tap_high, tap_low
from lite_runtime.native.simd import LANES, SHAPE, exact, first, kernel, num, ptr, real
from lite_runtime.steps.declaration import named
from lite_runtime.steps.qpool import ByteMax, QuantisedMean

MEAN = named(QuantisedMean)


_MAX, _MEAN, _AVERAGE = range(3)
_STEPS = {
    _MAX: (ByteMax, ("counted", "counts_padding")),
    _MEAN: (QuantisedMean, ()),
    _AVERAGE: (QuantisedMean, ("y_zero", "factor")),
}
"""The step of each kernel, and words of it that the kernel does not read."""


def _pool(size, cover, what):
    """The loop over windows; cover(channels, job) computes the results of one window."""
    declared, unread = _STEPS[what]

    @kernel(declared, fastmath=set(), unread=unread)
    def pool(step, bases, worker, workers):
        x, y = ptr(step, bases, MEAN.x), ptr(step, bases, MEAN.y)
        batch, channels = num(step, MEAN.batch), num(step, MEAN.channels)
        depth, height, width = num(step, MEAN.size), num(step, MEAN.size + 1), num(step, MEAN.size + 2)
        out_d, out_h, out_w = num(step, MEAN.out), num(step, MEAN.out + 1), num(step, MEAN.out + 2)
        k_d, k_h, k_w = num(step, MEAN.window), num(step, MEAN.window + 1), num(step, MEAN.window + 2)
        s_d, s_h, s_w = num(step, MEAN.stride), num(step, MEAN.stride + 1), num(step, MEAN.stride + 2)
        g_d = num(step, MEAN.dilation)
        g_h, g_w = num(step, MEAN.dilation + 1), num(step, MEAN.dilation + 2)
        p_d, p_h, p_w = num(step, MEAN.pad), num(step, MEAN.pad + 1), num(step, MEAN.pad + 2)
        pixel = size * channels
        row, plane = pixel * width, pixel * width * height
        items = batch * out_d * out_h * out_w
        begin, end = first(items, worker, workers, 1), first(items, worker + 1, workers, 1)
        # Incremented from the first one: divisions took longer than a window of 3 x 3.
        rest, o_w = begin // out_w, begin % out_w
        rest, o_h = rest // out_h, rest % out_h
        n, o_d = rest // out_d, rest % out_d
        o_w -= 1
        for item in range(begin, end):
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
            d, h, w = o_d * s_d - p_d, o_h * s_h - p_h, o_w * s_w - p_w
            d0, d1 = tap_low(d, g_d), tap_high(d, g_d, k_d, depth)
            h0, h1 = tap_low(h, g_h), tap_high(h, g_h, k_h, height)
            w0, w1 = tap_low(w, g_w), tap_high(w, g_w, k_w, width)
            corner = x + (n * depth + d + d0 * g_d) * plane + (h + h0 * g_h) * row + (w + w0 * g_w) * pixel
            taps, steps = (d1 - d0, h1 - h0, w1 - w0), (g_d * plane, g_h * row, g_w * pixel)
            if what == _MAX:
                cover(channels, (corner, y + item * pixel, taps, steps))
            else:
                met = max(0, d1 - d0) * max(0, h1 - h0) * max(0, w1 - w0)
                count = counted(step, 0, d, d0, d1) * counted(step, 1, h, h0, h1) * counted(step, 2, w, w0, w1)
                zero, low, high = num(step, MEAN.x_zero), real(step, MEAN.low), real(step, MEAN.high)
                start = (count - met) * zero
                if what == _AVERAGE:
                    cover(channels, (corner, y + item * pixel, taps, steps, start, (count, low, high)))
                else:
                    factor = real(step, MEAN.factor) * (float32(1) / float32(count))
                    shift = float32(num(step, MEAN.y_zero)) - float32(count * zero) * factor
                    cover(channels, (corner, y + item * pixel, taps, steps, start, (factor, shift, low, high)))

    return pool


def _taken(stored, held, count, pick):
    """(total, corner, taps, steps) -> total with every tap of a strip added."""
    strip = words(stored, held, count)
    take, load = getattr(strip, pick), strip.load

    @exact
    def taken(total, corner, taps, steps):
        for i in range(taps[0]):
            for j in range(taps[1]):
                at = corner + i * steps[0] + j * steps[1]
                for _ in range(taps[2]):
                    total = take(total, load(at))
                    at += steps[2]
        return total

    return taken


def _max(stored, lowest):
    size = BYTES[stored]

    def body(count):
        strip, taken = words(stored, stored, count), _taken(stored, stored, count, "larger")
        spread, store = strip.spread, strip.store

        @exact
        def largest(at, job):
            corner, out, taps, steps = job
            store(out + size * at, taken(spread(lowest), corner + size * at, taps, steps))

        return largest

    register = 4 * LANES // size
    widths = lengths(stored) if SHAPE.small else (register, register // 4, 4 // size, 1)
    return _pool(size, strips(widths, body), _MAX)


def _mean(stored, held):
    size = BYTES[stored]

    def body(count):
        strip, taken = words(stored, held, count), _taken(stored, held, count, "add")
        spread, placed, store = strip.spread, strip.placed, strip.store

        @exact
        def mean(at, job):
            corner, out, taps, steps, start, (factor, shift, low, high) = job
            total = taken(spread(start), corner + size * at, taps, steps)
            store(out + size * at, placed(total, factor, shift, low, high))

        return mean

    return _pool(size, strips(lengths(held), body), _MEAN)


def _average(stored, held):
    size = BYTES[stored]

    def body(count):
        strip, taken = words(stored, held, count), _taken(stored, held, count, "add")
        spread, average, store = strip.spread, averaged(held, count), strip.store

        @exact
        def mean(at, job):
            corner, out, taps, steps, start, (n, low, high) = job
            total = taken(spread(start), corner + size * at, taps, steps)
            store(out + size * at, average(total, n, low, high))

        return mean

    return _pool(size, strips(lengths(held), body), _AVERAGE)


int8_max__nhwc, uint8_max__nhwc = _max("int8", -128), _max("uint8", 0)
int8_int32_mean__nhwc, int8_int64_mean__nhwc = _mean("int8", "int32"), _mean("int8", "int64")
uint8_int32_mean__nhwc, uint8_int64_mean__nhwc = _mean("uint8", "int32"), _mean("uint8", "int64")
int16_int32_mean__nhwc, int16_int64_mean__nhwc = _mean("int16", "int32"), _mean("int16", "int64")
int8_int32_average__nhwc, int8_int64_average__nhwc = _average("int8", "int32"), _average("int8", "int64")
uint8_int32_average__nhwc, uint8_int64_average__nhwc = _average("uint8", "int32"), _average("uint8", "int64")
int16_int32_average__nhwc, int16_int64_average__nhwc = _average("int16", "int32"), _average("int16", "int64")
