"""ArgMax, ArgMin and TopK along the middle axis of [outer, n, inner].

NaN counts as larger than infinity in both orders; equal elements are ordered by index.
"""

from __future__ import annotations

import numpy as np

from lite_runtime.kernels._vmath import vany_above, vdown, vlane0, vlarger, vload_or, vpick_as_good, vpick_better
from lite_runtime.native.simd import (
    LANES,
    address,
    device,
    f32p,
    first,
    i8p,
    i16p,
    i32p,
    i64p,
    kernel,
    num,
    ptr,
    splat,
    stack_floats,
    stack_words,
    u8p,
    vload,
    vload_n,
    vstore,
)
from lite_runtime.steps.declaration import named
from lite_runtime.steps.order import Arg, TopK

ARG = named(Arg)
TOP = named(TopK)

_ZERO, _INF = np.float32(0), np.float32(np.inf)


@device
def _beyond(a, b, sign):
    """a before b in the order: descending for sign 1, ascending for -1."""
    if a != a or b != b:
        return a != a and b == b if sign > 0 else a == a and b != b
    return a > b if sign > 0 else a < b


# -- ArgMax, ArgMin ---------------------------------------------------------------------------------------------------


@kernel(Arg)
def f32_arg__columns(step, bases, worker, workers):
    """Index of the first extreme (of the last one, if `last`); NaN counts as an extreme."""
    x, y = ptr(step, bases, ARG.x), ptr(step, bases, ARG.y)
    outer, n, inner = num(step, ARG.outer), num(step, ARG.n), num(step, ARG.inner)
    sign, last = num(step, ARG.sign), num(step, ARG.last)
    items = outer * inner
    for item in range(first(items, worker, workers, 16), first(items, worker + 1, workers, 16)):
        o, i = item // inner, item % inner
        row = f32p(x + 4 * (o * n * inner + i))
        best, at = row[0], 0
        for r in range(1, n):
            v = row[r * inner]
            better = best == best and (v != v or (v > best if sign > 0 else v < best))
            if better or (last != 0 and (v == best or (v != v and best != best))):
                best, at = v, r
        i64p(y + 8 * item)[0] = at


@kernel(Arg)
def f32_arg__strips(step, bases, worker, workers):
    """Like f32_arg__columns, LANES columns at a time; n is below 2^24, so that indices are exact in float32."""
    x, y = ptr(step, bases, ARG.x), ptr(step, bases, ARG.y)
    outer, n, inner = num(step, ARG.outer), num(step, ARG.n), num(step, ARG.inner)
    sign, last = splat(np.float32(num(step, ARG.sign))), num(step, ARG.last)
    strips = (inner + LANES - 1) // LANES
    lanes = stack_floats(LANES)
    for item in range(first(outer * strips, worker, workers, 1), first(outer * strips, worker + 1, workers, 1)):
        o, strip = item // strips, item % strips
        width = min(inner - strip * LANES, LANES)
        at = x + 4 * (o * n * inner + strip * LANES)
        best, place = vload_n(f32p(at), width) * sign, splat(_ZERO)
        for r in range(1, n):
            at += 4 * inner
            v, here = vload_n(f32p(at), width) * sign, splat(np.float32(r))
            if last != 0:
                place = vpick_as_good(v, best, here, place)
                best = vpick_as_good(v, best, v, best)
            else:
                place = vpick_better(v, best, here, place)
                best = vpick_better(v, best, v, best)
        vstore(lanes, place)
        out = i64p(y + 8 * (o * inner + strip * LANES))
        for i in range(width):
            out[i] = np.int64(lanes[i])


@kernel(Arg, unread=("inner", "last", "sign"))
def f32_arg_max__rows(step, bases, worker, workers):
    """Contiguous rows, first index of the largest element: its value is found by vectors, then its index."""
    x, y = ptr(step, bases, ARG.x), ptr(step, bases, ARG.y)
    outer, n = num(step, ARG.outer), num(step, ARG.n)
    low = splat(-_INF)
    for o in range(first(outer, worker, workers, 16), first(outer, worker + 1, workers, 16)):
        at = x + 4 * n * o
        a, b = low, low
        i = 0
        while i + 2 * LANES <= n:
            a = vlarger(vload(f32p(at + 4 * i)), a)
            b = vlarger(vload(f32p(at + 4 * (i + LANES))), b)
            i += 2 * LANES
        while i < n:
            a = vlarger(vload_or(f32p(at + 4 * i), n - i, low), a)
            i += LANES
        highest = vlane0(_across_nan(vlarger(a, b)))
        row = f32p(at)
        place = 0
        if highest == highest:
            while place < n - 1 and row[place] != highest:
                place += 1
        else:
            while place < n - 1 and row[place] == row[place]:
                place += 1
        i64p(y + 8 * o)[0] = place


@device
def _across_nan(v):
    if LANES >= 16:
        v = vlarger(v, vdown(v, 8))
    if LANES >= 8:
        v = vlarger(v, vdown(v, 4))
    v = vlarger(v, vdown(v, 2))
    return vlarger(v, vdown(v, 1))


# -- TopK -------------------------------------------------------------------------------------------------------------
# The k elements kept so far are a heap in the memory of the results, with the next one to be removed on top; at the end
# the heap is emptied, which fills the results from the back. n log k steps; only the results are written.


@device
def _worse(values, places, a, b, sign):
    """Whether kept element a is removed before kept element b: it comes later in the order."""
    if _beyond(values[b], values[a], sign):
        return True
    if _beyond(values[a], values[b], sign):
        return False
    return places[a] > places[b]


@device
def _sift(values, places, stride, size, sign):
    """Move the heap's top down to its position."""
    at = 0
    while 2 * at + 1 < size:
        child = 2 * at + 1
        if child + 1 < size and _worse(values, places, (child + 1) * stride, child * stride, sign):
            child += 1
        a, c = at * stride, child * stride
        if not _worse(values, places, c, a, sign):
            return
        values[a], values[c] = values[c], values[a]
        places[a], places[c] = places[c], places[a]
        at = child


@device
def _rise(values, places, stride, at, sign):
    """Move element `at` up to its position."""
    while at > 0:
        parent = (at - 1) // 2
        a, p = at * stride, parent * stride
        if not _worse(values, places, a, p, sign):
            return
        values[a], values[p] = values[p], values[a]
        places[a], places[p] = places[p], places[a]
        at = parent


@device
def _next_beyond(row, r, n, bound, sign):
    """The index, from r on, of the first element that may be beyond `bound` (a NaN may be); n if there is none."""
    at = address(row)
    edge, turn = splat(bound * np.float32(sign)), splat(np.float32(sign))
    while r + 2 * LANES <= n:
        a, b = vload(f32p(at + 4 * r)) * turn, vload(f32p(at + 4 * (r + LANES))) * turn
        if vany_above(a, edge) or vany_above(b, edge):
            break
        r += 2 * LANES
    while r < n:
        if not (row[r] <= bound if sign > 0 else row[r] >= bound):
            return r
        r += 1
    return n


@kernel(TopK)
def f32_top_k(step, bases, worker, workers):
    """The first k elements of the order, sorted."""
    x, y, z = ptr(step, bases, TOP.x), ptr(step, bases, TOP.values), ptr(step, bases, TOP.places)
    outer, n, inner = num(step, TOP.outer), num(step, TOP.n), num(step, TOP.inner)
    k, sign = num(step, TOP.k), num(step, TOP.sign)
    items = outer * inner
    for item in range(first(items, worker, workers, 1), first(items, worker + 1, workers, 1)):
        o, i = item // inner, item % inner
        row = f32p(x + 4 * (o * n * inner + i))
        values, places = f32p(y + 4 * (o * k * inner + i)), i64p(z + 8 * (o * k * inner + i))
        for r in range(k):
            values[r * inner] = row[r * inner]
            places[r * inner] = r
            _rise(values, places, inner, r, sign)
        r = k
        if inner == 1:  # most of a long row is skipped, in vectors
            while r < n:
                r = _next_beyond(row, r, n, values[0], sign)
                if r < n:
                    if _beyond(row[r], values[0], sign):
                        values[0] = row[r]
                        places[0] = r
                        _sift(values, places, 1, k, sign)
                    r += 1
        while r < n:
            v = row[r * inner]
            # Among equal elements the earliest is kept, so a later element must come strictly before the last one kept.
            if _beyond(v, values[0], sign):
                values[0] = v
                places[0] = r
                _sift(values, places, inner, k, sign)
            r += 1
        for size in range(k - 1, 0, -1):
            a = size * inner
            values[0], values[a] = values[a], values[0]
            places[0], places[a] = places[a], places[0]
            _sift(values, places, inner, size, sign)


# -- integers: the same steps -----------------------------------------------------------------------------------------

_COLUMNS = 64


def _arg_rows(pointer, size):
    def arg(step, bases, worker, workers):
        """Contiguous rows: the extreme is found by vectors, then its index."""
        x, y = ptr(step, bases, ARG.x), ptr(step, bases, ARG.y)
        outer, n = num(step, ARG.outer), num(step, ARG.n)
        sign, last = num(step, ARG.sign), num(step, ARG.last)
        for o in range(first(outer, worker, workers, 16), first(outer, worker + 1, workers, 16)):
            row = pointer(x + size * n * o)
            best = row[0]
            if sign > 0:
                for i in range(n):
                    best = max(best, row[i])
            else:
                for i in range(n):
                    best = min(best, row[i])
            place = n - 1 if last != 0 else 0
            step_by = -1 if last != 0 else 1
            while row[place] != best:
                place += step_by
            i64p(y + 8 * o)[0] = place

    return kernel(Arg, unread=("inner",))(arg)


def _arg_strips(pointer, size):
    def arg(step, bases, worker, workers):
        """Along an axis other than the innermost, a few neighbouring columns at a time."""
        x, y = ptr(step, bases, ARG.x), ptr(step, bases, ARG.y)
        outer, n, inner = num(step, ARG.outer), num(step, ARG.n), num(step, ARG.inner)
        sign, last = num(step, ARG.sign), num(step, ARG.last)
        bests, places = stack_words(_COLUMNS), stack_words(_COLUMNS)
        strips = (inner + _COLUMNS - 1) // _COLUMNS
        for item in range(first(outer * strips, worker, workers, 1), first(outer * strips, worker + 1, workers, 1)):
            o = item // strips
            column = (item - o * strips) * _COLUMNS
            width = min(inner - column, _COLUMNS)
            at = x + size * (o * n * inner + column)
            row = pointer(at)
            for i in range(width):
                bests[i], places[i] = np.int64(row[i]) * sign, 0
            for r in range(1, n):
                row = pointer(at + size * r * inner)
                for i in range(width):
                    v = np.int64(row[i]) * sign
                    better = v > bests[i] - last
                    places[i] = r if better else places[i]
                    bests[i] = v if better else bests[i]
            found = i64p(y + 8 * (o * inner + column))
            for i in range(width):
                found[i] = places[i]

    return kernel(Arg)(arg)


def _top_k(pointer, size):
    def top_k(step, bases, worker, workers):
        """Like `f32_top_k`, without vectors."""
        x, y, z = ptr(step, bases, TOP.x), ptr(step, bases, TOP.values), ptr(step, bases, TOP.places)
        outer, n, inner = num(step, TOP.outer), num(step, TOP.n), num(step, TOP.inner)
        k, sign = num(step, TOP.k), num(step, TOP.sign)
        items = outer * inner
        for item in range(first(items, worker, workers, 1), first(items, worker + 1, workers, 1)):
            o, i = item // inner, item % inner
            row = pointer(x + size * (o * n * inner + i))
            values, places = pointer(y + size * (o * k * inner + i)), i64p(z + 8 * (o * k * inner + i))
            for r in range(k):
                values[r * inner] = row[r * inner]
                places[r * inner] = r
                _rise(values, places, inner, r, sign)
            for r in range(k, n):
                v = row[r * inner]
                if k > 0 and _beyond(v, values[0], sign):
                    values[0] = v
                    places[0] = r
                    _sift(values, places, inner, k, sign)
            for kept in range(k - 1, 0, -1):
                a = kept * inner
                values[0], values[a] = values[a], values[0]
                places[0], places[a] = places[a], places[0]
                _sift(values, places, inner, kept, sign)

    return kernel(TopK)(top_k)


int8_arg__rows, uint8_arg__rows, int16_arg__rows, int32_arg__rows = (
    _arg_rows(pointer, size) for pointer, size in ((i8p, 1), (u8p, 1), (i16p, 2), (i32p, 4))
)
int8_arg__strips, uint8_arg__strips, int16_arg__strips, int32_arg__strips = (
    _arg_strips(pointer, size) for pointer, size in ((i8p, 1), (u8p, 1), (i16p, 2), (i32p, 4))
)
int8_top_k, uint8_top_k, int16_top_k, int32_top_k = (
    _top_k(pointer, size) for pointer, size in ((i8p, 1), (u8p, 1), (i16p, 2), (i32p, 4))
)
