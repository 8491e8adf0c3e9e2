"""Linear resizing of integers over two axes by whole weights; halves are rounded up.

y[i, j, :] = floor(sum of row weight * column weight * x / 2**22 + 1/2), x at the four pairs of a row's and a column's
two offsets. Operands x, rows, columns (int64 each: two byte offsets, two weights that sum to 2**11), y.
Numbers: rows, columns, elements of a run.
"""

from __future__ import annotations

from numba import int32, int64

from lite_runtime.kernels._integers import BYTES, lengths, strips, words
from lite_runtime.native.simd import exact, first, i64p, kernel, num, ptr

OPERANDS = 4
_BITS = 22


def _linear(stored, held, scalar):
    size = BYTES[stored]

    def body(count):
        strip = words(stored, held, count)
        load, store, spread = strip.load, strip.store, strip.spread
        add, multiply, shift = strip.add, strip.multiply, strip.shift

        @exact
        def blend(at, job):
            (a, b, c, d), (wa, wb, wc, wd), out = job
            top = add(multiply(load(a + size * at), spread(wa)), multiply(load(b + size * at), spread(wb)))
            bottom = add(multiply(load(c + size * at), spread(wc)), multiply(load(d + size * at), spread(wd)))
            total = add(add(top, bottom), spread(scalar(1 << (_BITS - 1))))
            store(out + size * at, shift(total, _BITS))

        return blend

    cover = strips(lengths(held), body)

    @kernel(fastmath=set())
    def linear(step, bases, worker, workers):
        x, y = ptr(step, bases, 0), ptr(step, bases, 3)
        rows, columns = i64p(ptr(step, bases, 1)), i64p(ptr(step, bases, 2))
        high, wide, run = num(step, OPERANDS, 0), num(step, OPERANDS, 1), num(step, OPERANDS, 2)
        for i in range(first(high, worker, workers, 1), first(high, worker + 1, workers, 1)):
            up, down, weight_up, weight_down = rows[4 * i], rows[4 * i + 1], rows[4 * i + 2], rows[4 * i + 3]
            for j in range(wide):
                left, right = x + columns[4 * j], x + columns[4 * j + 1]
                weight_left, weight_right = columns[4 * j + 2], columns[4 * j + 3]
                weights = (
                    scalar(weight_up * weight_left),
                    scalar(weight_up * weight_right),
                    scalar(weight_down * weight_left),
                    scalar(weight_down * weight_right),
                )
                corners = (up + left, up + right, down + left, down + right)
                cover(run, (corners, weights, y + size * run * (i * wide + j)))

    return linear


int8_linear, uint8_linear = _linear("int8", "int32", int32), _linear("uint8", "int32", int32)
int16_linear = _linear("int16", "int64", int64)
