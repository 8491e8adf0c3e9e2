"""Exact reductions of integers over the middle axis of [outer, n, inner], and the step from a sum to a quantised mean.

`<stored>_<held>_sum`, `<type>_max`, `<type>_min`: `__rows`: inner is 1, the n elements of a result are contiguous;
`__columns`: strips of neighbouring results. Sums are returned as `held`, in which they wrap.

`<held>_<stored>_place`: y = clamp(round_half_even(float32(x) * factor + shift)), with product and sum rounded
separately. `<held>_<stored>_average`: y = x / n, halves away from zero.
"""

from __future__ import annotations

from lite_runtime.kernels._integers import BYTES, averaged, lengths, strips, words
from lite_runtime.native.simd import LANES, exact, first, kernel, num, ptr, real
from lite_runtime.steps.declaration import named
from lite_runtime.steps.qreduce import AverageSum, IntegerReduce, PlaceSum

PLACE = named(PlaceSum)
AVERAGE = named(AverageSum)
REDUCE = named(IntegerReduce)

_WIDE, _SHORT = 4 * LANES, 8
_GRAIN = 64
"""Results in a worker's smallest share: a cache line of bytes."""


def _rows(stored, held, pick, across, start):
    """One result at a time: strips in two chains, then short strips, then single elements."""
    size, held_size = BYTES[stored], BYTES[held]
    wide, short, one = (words(stored, held, count) for count in (_WIDE, _SHORT, 1))
    take, take_short, take_one = (getattr(w, pick) for w in (wide, short, one))
    join, join_short = getattr(wide, across), getattr(short, across)
    spread, spread_short, spread_one = wide.spread, short.spread, one.spread
    load, load_short, load_one = wide.load, short.load, one.load
    store = words(held, held, 1).store

    @kernel(IntegerReduce, fastmath=set(), unread=("inner", "finish", "divisor"))
    def rows(step, bases, worker, workers):
        x, y = ptr(step, bases, REDUCE.x), ptr(step, bases, REDUCE.y)
        outer, n = num(step, REDUCE.outer), num(step, REDUCE.n)
        for o in range(first(outer, worker, workers, 1), first(outer, worker + 1, workers, 1)):
            at, end = x + size * n * o, x + size * n * (o + 1)
            a, b, c = spread(start), spread(start), spread_short(start)
            while at + 2 * size * _WIDE <= end:
                a = take(a, load(at))
                b = take(b, load(at + size * _WIDE))
                at += 2 * size * _WIDE
            while at + size * _SHORT <= end:
                c = take_short(c, load_short(at))
                at += size * _SHORT
            total = take_one(spread_one(join(take(a, b))), spread_one(join_short(c)))
            while at < end:
                total = take_one(total, load_one(at))
                at += size
            store(y + held_size * o, total)

    return rows


def _columns(stored, held, pick, start):
    size, held_size = BYTES[stored], BYTES[held]

    def body(count):
        strip, out = words(stored, held, count), words(held, held, count)
        take, spread, load, store = getattr(strip, pick), strip.spread, strip.load, out.store

        @exact
        def reduce(at, job):
            x, y, n, line = job
            total, source = spread(start), x + size * at
            for _ in range(n):
                total = take(total, load(source))
                source += line
            store(y + held_size * at, total)

        return reduce

    cover = strips(lengths(held), body)

    @kernel(IntegerReduce, fastmath=set(), unread=("finish", "divisor"))
    def columns(step, bases, worker, workers):
        x, y = ptr(step, bases, REDUCE.x), ptr(step, bases, REDUCE.y)
        outer, n, inner = num(step, REDUCE.outer), num(step, REDUCE.n), num(step, REDUCE.inner)
        at, end = first(outer * inner, worker, workers, _GRAIN), first(outer * inner, worker + 1, workers, _GRAIN)
        while at < end:
            o = at // inner
            count = min(end, (o + 1) * inner) - at
            source = x + size * (o * n * inner + at - o * inner)
            cover(count, (source, y + held_size * at, n, size * inner))
            at += count

    return columns


def _finish(declared, held, stored, numbers, word):
    """A kernel that computes results from sums. numbers(step): the arguments of word(count), which works on strips."""
    size, held_size = BYTES[stored], BYTES[held]

    def body(count):
        load, store, make = words(held, held, count).load, words(stored, held, count).store, word(count)

        @exact
        def finish(at, job):
            x, y, others = job
            store(y + size * at, make(load(x + held_size * at), *others))

        return finish

    cover = strips(lengths(held), body)

    @kernel(declared, fastmath=set())
    def finish(step, bases, worker, workers):
        x, y, elements = ptr(step, bases, PLACE.x), ptr(step, bases, PLACE.y), num(step, PLACE.elements)
        at, end = first(elements, worker, workers, _GRAIN), first(elements, worker + 1, workers, _GRAIN)
        cover(end - at, (x + held_size * at, y + size * at, numbers(step)))

    return finish


@exact
def _placing(step):
    return real(step, PLACE.factor), real(step, PLACE.shift), real(step, PLACE.low), real(step, PLACE.high)


@exact
def _averaging(step):
    return num(step, AVERAGE.n), real(step, AVERAGE.low), real(step, AVERAGE.high)


def _place(held, stored):
    return _finish(PlaceSum, held, stored, _placing, lambda count: words(held, held, count).placed)


def _average(held, stored):
    return _finish(AverageSum, held, stored, _averaging, lambda count: averaged(held, count))


def _sums(stored, held):
    return _rows(stored, held, "add", "total", 0), _columns(stored, held, "add", 0)


int8_int32_sum__rows, int8_int32_sum__columns = _sums("int8", "int32")
uint8_int32_sum__rows, uint8_int32_sum__columns = _sums("uint8", "int32")
int16_int32_sum__rows, int16_int32_sum__columns = _sums("int16", "int32")
int32_int32_sum__rows, int32_int32_sum__columns = _sums("int32", "int32")
int8_int64_sum__rows, int8_int64_sum__columns = _sums("int8", "int64")
uint8_int64_sum__rows, uint8_int64_sum__columns = _sums("uint8", "int64")
int16_int64_sum__rows, int16_int64_sum__columns = _sums("int16", "int64")
int64_int64_sum__rows, int64_int64_sum__columns = _sums("int64", "int64")

int32_int8_place, int64_int8_place = _place("int32", "int8"), _place("int64", "int8")
int32_int8_average, int64_int8_average = _average("int32", "int8"), _average("int64", "int8")
int32_uint8_place, int64_uint8_place = _place("int32", "uint8"), _place("int64", "uint8")
int32_uint8_average, int64_uint8_average = _average("int32", "uint8"), _average("int64", "uint8")
int32_int16_place, int64_int16_place = _place("int32", "int16"), _place("int64", "int16")
int32_int16_average, int64_int16_average = _average("int32", "int16"), _average("int64", "int16")


def _extremes(stored, pick, across, start):
    return _rows(stored, stored, pick, across, start), _columns(stored, stored, pick, start)


int8_max__rows, int8_max__columns = _extremes("int8", "larger", "largest", -128)
int8_min__rows, int8_min__columns = _extremes("int8", "smaller", "smallest", 127)
uint8_max__rows, uint8_max__columns = _extremes("uint8", "larger", "largest", 0)
uint8_min__rows, uint8_min__columns = _extremes("uint8", "smaller", "smallest", 255)
