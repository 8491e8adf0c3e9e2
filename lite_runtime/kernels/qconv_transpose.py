"""A quantised transposed convolution's result from the contributions of every pixel, channels last.

spreads: the contributions, int32 (images, pixels, taps, channels). For every row and column of y, a table gives the
offset of the first pixel and tap that contribute to it and their number; the distance between them in bytes is fixed.
"""

from __future__ import annotations

from numba import int32

from lite_runtime.kernels._integers import BYTES, lengths, strips, words
from lite_runtime.native.simd import exact, first, i64p, kernel, num, ptr, real
from lite_runtime.steps.declaration import named
from lite_runtime.steps.qconv_transpose import SpreadSums

SUMS = named(SpreadSums)


def _gathered(count):
    strip = words("int32", "int32", count)
    load, add = strip.load, strip.add

    @exact
    def gathered(at, bias, down, across, steps):
        total = load(bias + 4 * at)
        for i in range(down[1]):
            source = down[0] + across[0] + i * steps[0] + 4 * at
            for _ in range(across[1]):
                total = add(total, load(source))
                source += steps[1]
        return total

    return gathered


def _gather(size, body):
    cover = strips(lengths("int32"), body)

    @kernel(SpreadSums, fastmath=set())
    def gather(step, bases, worker, workers):
        spreads, rows, columns = (
            ptr(step, bases, SUMS.spreads),
            i64p(ptr(step, bases, SUMS.rows)),
            i64p(ptr(step, bases, SUMS.columns)),
        )
        tables = (ptr(step, bases, SUMS.bias), ptr(step, bases, SUMS.scale), ptr(step, bases, SUMS.shift))
        y = ptr(step, bases, SUMS.y)
        images, high, wide, channels = (
            num(step, SUMS.images),
            num(step, SUMS.y_height),
            num(step, SUMS.y_width),
            num(step, SUMS.channels),
        )
        image_bytes, steps = num(step, SUMS.image_bytes), (num(step, SUMS.down), num(step, SUMS.across))
        finish = (int32(num(step, SUMS.zero)), real(step, SUMS.low), real(step, SUMS.high))
        lines = images * high
        for line in range(first(lines, worker, workers, 1), first(lines, worker + 1, workers, 1)):
            image, row = line // high, line % high
            down = (spreads + image * image_bytes + rows[2 * row], rows[2 * row + 1])
            for column in range(wide):
                across = (columns[2 * column], columns[2 * column + 1])
                out = y + size * channels * (line * wide + column)
                cover(channels, (down, across, steps, tables, out, finish))

    return gather


def _to_integers(stored):
    size = BYTES[stored]

    def body(count):
        gathered, store = _gathered(count), words(stored, "int32", count).store
        rescaled_by = words("int32", "int32", count).rescaled_by

        @exact
        def one(at, job):
            down, across, steps, tables, out, finish = job
            total = gathered(at, tables[0], down, across, steps)
            store(out + size * at, rescaled_by(total, tables[1] + 4 * at, finish[1], finish[2], finish[0]))

        return one

    return _gather(size, body)


def _to_reals():
    def body(count):
        gathered, store_real = _gathered(count), words("int32", "int32", count).store_real

        @exact
        def one(at, job):
            down, across, steps, tables, out, finish = job
            total = gathered(at, tables[0], down, across, steps)
            store_real(out + 4 * at, total, tables[1] + 4 * at, tables[2] + 4 * at, finish[1], finish[2])

        return one

    return _gather(4, body)


int8_gather, uint8_gather, float32_gather = _to_integers("int8"), _to_integers("uint8"), _to_reals()
