"""Sums and products of two quantised tensors of bytes, broadcast.

In a run, `a` advances element by element; so does `b`, or (`__spread`) it is one element for the whole run.
"""

from __future__ import annotations

from numba import int32

from lite_runtime.kernels._integers import lengths, strips, words
from lite_runtime.native.simd import exact, first, kernel, num, ptr, real
from lite_runtime.steps.declaration import named, row
from lite_runtime.steps.qelementwise import ByteProduct, ByteSum, Group

_GRAIN = 64
"""Elements in a worker's smallest share: a cache line."""
SUM, PRODUCT, GROUP = named(ByteSum), named(ByteProduct), row(Group)
_WORDS = len(Group.names())


def _walk(declared, prepare, cover):
    """The runs of a worker's share. prepare(step, a, b): a job without its addresses, at the start of a run;
    cover(count, job)."""
    places = named(declared)

    @kernel(declared, fastmath=set())
    def walk(step, bases, worker, workers):
        a, b, y = ptr(step, bases, places.a), ptr(step, bases, places.b), ptr(step, bases, places.y)
        total, run = num(step, places.total), num(step, places.run)
        groups = num(step, places.group_count)
        at, end = first(total, worker, workers, _GRAIN), first(total, worker + 1, workers, _GRAIN)
        while at < end:
            rest = at // run
            column = at - rest * run
            left, right = a + column, b
            for g in range(groups):
                group = _WORDS * g
                extent = num(step, places.groups + group + GROUP.extent)
                outer = rest // extent
                index = rest - outer * extent
                left += index * num(step, places.groups + group + GROUP.a_step)
                right += index * num(step, places.groups + group + GROUP.b_step)
                rest = outer
            count = min(end - at, run - column)
            cover(count, prepare(step, left, right, column, y + at))
            at += count

    return walk


def _sum(stored, spread_out):
    one = words(stored, "int32", 1)
    load_one, value = one.load, one.total

    @exact
    def prepare(step, a, b, column, y):
        ma, mb, start = num(step, SUM.a_factor), num(step, SUM.b_factor), num(step, SUM.start)
        shift, zero = num(step, SUM.shift), int32(num(step, SUM.zero))
        low, high = int32(num(step, SUM.low)), int32(num(step, SUM.high))
        if spread_out:
            start += mb * value(load_one(b))
        return a, b + column, y, int32(ma), int32(mb), int32(start), shift, zero, low, high

    def body(count):
        strip = words(stored, "int32", count)
        load, store, spread = strip.load, strip.store, strip.spread
        plus, times, moved, larger, smaller = strip.add, strip.multiply, strip.shift, strip.larger, strip.smaller

        @exact
        def add(at, job):
            a, b, y, ma, mb, start, shift, zero, low, high = job
            total = plus(times(load(a + at), spread(ma)), spread(start))
            if not spread_out:
                total = plus(total, times(load(b + at), spread(mb)))
            result = plus(moved(total, shift), spread(zero))
            store(y + at, larger(smaller(result, spread(high)), spread(low)))

        return add

    return _walk(ByteSum, prepare, strips(lengths("int32"), body))


def _product(stored, spread_out):
    one = words(stored, "int32", 1)
    load_one, value = one.load, one.total

    @exact
    def prepare(step, a, b, column, y):
        za, zb, zero = num(step, PRODUCT.a_zero), num(step, PRODUCT.b_zero), int32(num(step, PRODUCT.zero))
        factor, low, high = real(step, PRODUCT.factor), real(step, PRODUCT.low), real(step, PRODUCT.high)
        # if b is one element, the factor of every a; otherwise the initial value for b
        other = value(load_one(b)) - zb if spread_out else -zb
        return a, b + column, y, int32(-za), int32(other), factor, low, high, zero

    def body(count):
        strip = words(stored, "int32", count)
        load, store, spread, rescaled = strip.load, strip.store, strip.spread, strip.rescaled
        plus, times = strip.add, strip.multiply

        @exact
        def multiply(at, job):
            a, b, y, minus_za, other, factor, low, high, zero = job
            left, right = plus(load(a + at), spread(minus_za)), spread(other)
            if not spread_out:
                right = plus(load(b + at), right)
            store(y + at, rescaled(times(left, right), factor, low, high, zero))

        return multiply

    return _walk(ByteProduct, prepare, strips(lengths("int32"), body))


int8_sum, int8_sum__spread = _sum("int8", False), _sum("int8", True)
uint8_sum, uint8_sum__spread = _sum("uint8", False), _sum("uint8", True)
int8_product, int8_product__spread = _product("int8", False), _product("int8", True)
uint8_product, uint8_product__spread = _product("uint8", False), _product("uint8", True)
