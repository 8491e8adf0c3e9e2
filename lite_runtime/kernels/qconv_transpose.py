"""A quantised transposed convolution's result from what every pixel spreads, channels last.

spreads: int32 (images, pixels, taps, channels). For every row and column of y a table says where the first pixel and
tap that reach it lie and how many do; from one to the next it is a fixed number of bytes.

Operands: spreads, rows, columns (int64 pairs: byte offset, count), bias (int32), scale, shift? (float32 each one a
channel), y. Numbers: images, height and width of y, channels, bytes of an image's spreads, bytes from one source to the
next down and across, y's zero point, low, high (float; less the zero point where y is an integer).
"""

from __future__ import annotations

from numba import int32

from lite_runtime.kernels._integers import BYTES, lengths, strips, words
from lite_runtime.native.simd import exact, first, i64p, kernel, num, ptr, real

OPERANDS = 7


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

    @kernel(fastmath=set())
    def gather(step, bases, worker, workers):
        spreads, rows, columns = ptr(step, bases, 0), i64p(ptr(step, bases, 1)), i64p(ptr(step, bases, 2))
        tables = (ptr(step, bases, 3), ptr(step, bases, 4), ptr(step, bases, 5))
        y = ptr(step, bases, 6)
        images, high, wide, channels = (
            num(step, OPERANDS, 0),
            num(step, OPERANDS, 1),
            num(step, OPERANDS, 2),
            num(step, OPERANDS, 3),
        )
        image_bytes, steps = num(step, OPERANDS, 4), (num(step, OPERANDS, 5), num(step, OPERANDS, 6))
        finish = (int32(num(step, OPERANDS, 7)), real(step, OPERANDS, 8), real(step, OPERANDS, 9))
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
