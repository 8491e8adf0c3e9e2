"""Linear resizing of integers over two axes with integer weights; halves are rounded up.

y[i, j, :] = floor(sum of row weight * column weight * x / 2**22 + 1/2), with x at the four pairs of a row's two and a
column's two offsets.
"""

from __future__ import annotations

from numba import int32, int64

from lite_runtime.kernels._integers import BYTES, lengths, strips, words
from lite_runtime.native.simd import exact, first, i64p, kernel, num, ptr
from lite_runtime.steps.declaration import named
from lite_runtime.steps.qresize import IntegerLinear

LINEAR = named(IntegerLinear)

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

    @kernel(IntegerLinear, fastmath=set())
    def linear(step, bases, worker, workers):
        x, y = ptr(step, bases, LINEAR.x), ptr(step, bases, LINEAR.y)
        rows, columns = i64p(ptr(step, bases, LINEAR.rows)), i64p(ptr(step, bases, LINEAR.columns))
        high, wide, run = num(step, LINEAR.high), num(step, LINEAR.wide), num(step, LINEAR.run)
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
