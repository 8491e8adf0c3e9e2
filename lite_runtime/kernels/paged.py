"""Attention of several sequences over caches in pages of 16 positions, float32 or float16.

Keys lie with the positions of a page next to one another, [pages][kv_heads][size][16], values with the features,
[pages][kv_heads][16][deep], so that both products run in `attention`'s tiles without sums across lanes. A block of keys
and values is widened to float32 once for all rows and heads that read it. Where caches are int8, queries are too, and
scores are products of integers. As in `attention`, scores are not stored, and which rows and keys share a block depends
only on positions and sizes: results do not depend on workers, nor on how tokens were divided among runs, except for the
size of a block of rows. Of a single row, all heads that share keys are computed together.

Numbers of sequences, positions and pages are data, so they are checked here: what does not fit sets the fault flag, and
neither reads nor writes outside the caches.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import float32, int16, int32, int64, uint8

from lite_runtime.kernels._bytes import load_bytes, load_split, store_bytes
from lite_runtime.kernels._halves import from_half, load_halves, to_half
from lite_runtime.kernels._scores import BEHIND, scores_of, words_of
from lite_runtime.kernels._vmath import across_max, across_sum, vlane0, vtanh
from lite_runtime.kernels.attention import KEYS, PANEL, _panel, _scale_row, _weigh
from lite_runtime.native.simd import (
    LANES,
    address,
    device,
    f32p,
    fault,
    first,
    i8p,
    i16p,
    i32p,
    kernel,
    num,
    ptr,
    real,
    splat,
    stack_floats,
    u8p,
    vabs,
    vload,
    vload_n,
    vmax,
    vmin,
    vrint,
    vstore,
    vstore_n,
)
from lite_runtime.operators.language import PAGE, SCALE
from lite_runtime.steps.declaration import named
from lite_runtime.steps.paged import Append, Attend

APPEND = named(Append)
ATTEND = named(Attend)

ROWS = 24
"""Rows of a sequence that are computed together."""
GROUP = 16
"""Heads that share a head of the key, at most."""
WIDEST = 256
"""Features of a head of key or value, at most."""
WIDE = KEYS * 64
"""Elements of a block of keys, and of values: 32 KB each on the stack, of which some systems give a thread 128."""
_VALUES = WIDE + PANEL
_BYTES = WIDEST // 4
"""Floats that take as much memory as a head of int8."""
_FACTORS = 2 * WIDE
"""Where scales of keys begin, in bytes, in the memory for a block of them: their integers need less than that."""
_SCORES, _HELD = ROWS * KEYS, ROWS * GROUP
_STEPS, _LARGEST = np.float32(127), np.float32(65504)
_ZERO, _ONE, _LOW, _INF = np.float32(0), np.float32(1), np.float32(-3.4028235e38), np.float32(np.inf)
_I16, _I64 = ir.IntType(16), ir.IntType(64)
_HALVES = ir.VectorType(_I16, LANES)


# -- what caches hold -------------------------------------------------------------------------------------------------


class _Kind(NamedTuple):
    """How keys and values get into caches and out of them; `at` is the number of a page times heads plus the head.

    put_key(cache, at, within, source, size), put_value(cache, at, within, source, deep): features of one position.
    query_bytes(size): bytes of a head's query. put_query(target, head, size): a head's features to it; may change them.
    widen_keys(cache, table, key, count, kv, head, size, pages, factor, to): keys [key, key + count) as panels, times a
    factor; returns whether a page was outside.
    score(left, step, rows, size, keys, column, count, out, line): products of queries with the panel of the keys from
    `column`. step, line: bytes between rows of queries and of scores.
    widen_values(cache, table, key, count, kv, head, deep, pages, to): values, one row after the other.
    """

    put_key: Any
    put_value: Any
    query_bytes: Any
    put_query: Any
    widen_keys: Any
    score: Any
    widen_values: Any


@device
def _put(cache, index, value, halves):
    """Store a number as an element of a cache."""
    if halves:
        i16p(cache)[index] = to_half(value)
    else:
        f32p(cache)[index] = value


@device
def _vector(cache, index, halves):
    """LANES elements of a cache as float32."""
    if halves:
        return load_halves(cache + 2 * index)
    return vload(f32p(cache + 4 * index))


@device
def _one(cache, index, halves):
    """An element of a cache as float32."""
    if halves:
        return from_half(i16p(cache)[index])
    return f32p(cache)[index]


@device
def _page(table, position, pages):
    """The page that has a position, -1 if it is outside."""
    page = int64(i32p(table)[position // PAGE])
    return page if 0 <= page < pages else int64(-1)


def _floats(halves: bool) -> _Kind:
    @device
    def put_key(cache, at, within, source, size):
        for i in range(size):
            _put(cache, (at * size + i) * PAGE + within, f32p(source)[i], halves)

    @device
    def put_value(cache, at, within, source, deep):
        for i in range(deep):
            _put(cache, (at * PAGE + within) * deep + i, f32p(source)[i], halves)

    @device
    def query_bytes(size):
        return 4 * size

    @device
    def put_query(target, head, size):
        for i in range(0, size, LANES):
            vstore_n(f32p(target + 4 * i), vload_n(f32p(head + 4 * i), size - i), size - i)

    @device
    def score(left, step, rows, size, keys, column, count, out, line):
        _panel(left, step, rows, size, keys + 4 * column * size, 0, out, line, 0, count)

    @device
    def widen_keys(cache, table, key, count, kv, head, size, pages, factor, to):
        bad = int64(0)
        for column in range(0, count, PANEL):
            vectors = (min(PANEL, count - column) + LANES - 1) // LANES
            line = 4 * LANES * vectors
            target = to + 4 * column * size
            for j in range(vectors):
                position = key + column + j * LANES
                page = _page(table, position, pages)
                if page < 0:
                    bad, page = int64(1), int64(0)
                source = (page * kv + head) * size * PAGE + position % PAGE
                for i in range(size):
                    wide = _vector(cache, source + i * PAGE, halves) * splat(factor)
                    vstore(f32p(target + line * i + 4 * LANES * j), wide)
        return bad

    @device
    def widen_values(cache, table, key, count, kv, head, deep, pages, to):
        for i in range(count):
            position = key + i
            page = max(_page(table, position, pages), int64(0))
            source = ((page * kv + head) * PAGE + position % PAGE) * deep
            target = to + 4 * i * deep
            done = 0
            while done + LANES <= deep:
                vstore(f32p(target + 4 * done), _vector(cache, source + done, halves))
                done += LANES
            while done < deep:
                f32p(target)[done] = _one(cache, source + done, halves)
                done += 1

    return _Kind(put_key, put_value, query_bytes, put_query, widen_keys, score, widen_values)


@device
def _scale_of(source, count):
    """The bits of the float16 by which features are divided to be int8."""
    top = splat(_ZERO)
    for i in range(0, count, LANES):
        top = vmax(vabs(vload_n(f32p(source + 4 * i), count - i)), top)
    return to_half(min(vlane0(across_max(top)) / _STEPS, _LARGEST))


@device
def _to_bytes(target, source, count, scale):
    """Features divided by a scale, as int8; returns their sum, a whole number."""
    inverse, total = splat(_ONE / scale if scale > _ZERO else _ZERO), splat(_ZERO)
    spare = address(stack_floats(_BYTES))
    whole = count - count % LANES
    for i in range(0, count, LANES):
        value = vmin(vrint(vload_n(f32p(source + 4 * i), count - i) * inverse), splat(_STEPS))
        value = vmax(value, splat(-_STEPS))  # what is no number is -127 too
        store_bytes(value, target + i if i < whole else spare)
        total = total + value
    for i in range(whole, count):
        u8p(target)[i] = u8p(spare)[i - whole]
    return vlane0(across_sum(total))


def _bytes() -> _Kind:
    @device
    def put_key(cache, at, within, source, size):
        target, features = cache + at * (size + SCALE) * PAGE + within, address(stack_floats(_BYTES))
        bits = _scale_of(source, size)
        _to_bytes(features, source, size, from_half(bits))
        for i in range(size):
            u8p(target + i * PAGE)[0] = u8p(features)[i]
        u8p(target + size * PAGE)[0] = uint8(bits & 255)
        u8p(target + (size + 1) * PAGE)[0] = uint8((bits >> 8) & 255)

    @device
    def put_value(cache, at, within, source, deep):
        target, bits = cache + (at * PAGE + within) * (deep + SCALE), _scale_of(source, deep)
        _to_bytes(target, source, deep, from_half(bits))
        u8p(target)[deep] = uint8(bits & 255)
        u8p(target)[deep + 1] = uint8((bits >> 8) & 255)

    @device
    def query_bytes(size):
        return (size + 3) // 4 * 4 + BEHIND

    @device
    def put_query(target, head, size):
        words, scale = (size + 3) // 4, from_half(_scale_of(head, size))
        total = _to_bytes(target, head, size, scale)
        for i in range(size, 4 * words):
            u8p(target)[i] = uint8(0)
        f32p(target + 4 * words)[0] = scale
        i32p(target + 4 * words + 4)[0] = int32(-128) * int32(total)

    @device
    def widen_keys(cache, table, key, count, kv, head, size, pages, factor, to):
        bad, words = int64(0), (size + 3) // 4
        for column in range(0, count, PANEL):
            vectors = (min(PANEL, count - column) + LANES - 1) // LANES
            target = to + 4 * column * words
            for j in range(vectors):
                position = key + column + j * LANES
                page = _page(table, position, pages)
                if page < 0:
                    bad, page = int64(1), int64(0)
                source = cache + (page * kv + head) * (size + SCALE) * PAGE + position % PAGE
                scale = load_split(source + size * PAGE, source + (size + 1) * PAGE) * splat(factor)
                vstore(f32p(to + _FACTORS + 4 * (column + j * LANES)), scale)
                for i in range(words):  # a query has zeros where rows are taken again
                    a, last = source + 4 * i * PAGE, source + (size - 1) * PAGE
                    b, c, d = min(a + PAGE, last), min(a + 2 * PAGE, last), min(a + 3 * PAGE, last)
                    words_of(a, b, c, d, target + 4 * LANES * (vectors * i + j))
        return bad

    @device
    def score(left, step, rows, size, keys, column, count, out, line):
        words = (size + 3) // 4
        factors = keys + _FACTORS + 4 * column
        scores_of(left, step, rows, words, keys + 4 * column * words, factors, out, line, count)

    @device
    def widen_values(cache, table, key, count, kv, head, deep, pages, to):
        for i in range(count):
            position = key + i
            page = max(_page(table, position, pages), int64(0))
            source = cache + ((page * kv + head) * PAGE + position % PAGE) * (deep + SCALE)
            scale = from_half(int16(int32(u8p(source)[deep]) | int32(u8p(source)[deep + 1]) << 8))
            target = to + 4 * i * deep
            done = 0
            while done + LANES <= deep:
                vstore(f32p(target + 4 * done), load_bytes(source + done) * splat(scale))
                done += LANES
            while done < deep:
                f32p(target)[done] = float32(i8p(source)[done]) * scale
                done += 1

    return _Kind(put_key, put_value, query_bytes, put_query, widen_keys, score, widen_values)


_F16, _F32, _I8 = _floats(True), _floats(False), _bytes()


# -- appending --------------------------------------------------------------------------------------------------------


@device
def _turn(source, target, size, angle_cos, angle_sin, pairs, interleaved):
    """A head's features, the first 2 * pairs of them rotated."""
    x, y, cos, sin = f32p(source), f32p(target), f32p(angle_cos), f32p(angle_sin)
    done = int64(0)
    while interleaved == 0 and done + LANES <= pairs:
        u, v = vload(f32p(source + 4 * done)), vload(f32p(source + 4 * (done + pairs)))
        a, b = vload(f32p(angle_cos + 4 * done)), vload(f32p(angle_sin + 4 * done))
        vstore(f32p(target + 4 * done), a * u - b * v)
        vstore(f32p(target + 4 * (done + pairs)), b * u + a * v)
        done += LANES
    for i in range(done, pairs):
        one, two = (2 * i, 2 * i + 1) if interleaved != 0 else (i, i + pairs)
        y[one], y[two] = cos[i] * x[one] - sin[i] * x[two], sin[i] * x[one] + cos[i] * x[two]
    for i in range(2 * pairs, size):
        y[i] = x[i]


def _appender(kind: _Kind):
    put_key, put_value, query_bytes, put_query = kind.put_key, kind.put_value, kind.query_bytes, kind.put_query

    @device
    def append(step, bases, worker, workers):
        query, key, value = ptr(step, bases, APPEND.query), ptr(step, bases, APPEND.key), ptr(step, bases, APPEND.value)
        cumulative, past = ptr(step, bases, APPEND.cumulative), ptr(step, bases, APPEND.past)
        table, turned = ptr(step, bases, APPEND.table), ptr(step, bases, APPEND.turned)
        cos, sin = ptr(step, bases, APPEND.cos), ptr(step, bases, APPEND.sin)
        keys, values = ptr(step, bases, APPEND.key_cache), ptr(step, bases, APPEND.value_cache)
        rows, sequences, heads, kv = (
            num(step, APPEND.rows),
            num(step, APPEND.sequences),
            num(step, APPEND.heads),
            num(step, APPEND.kv_heads),
        )
        size, deep, pages, slots = (
            num(step, APPEND.size),
            num(step, APPEND.deep),
            num(step, APPEND.pages),
            num(step, APPEND.slots),
        )
        angles, pairs, interleaved = num(step, APPEND.angles), num(step, APPEND.pairs), num(step, APPEND.interleaved)
        head = address(stack_floats(WIDEST))
        begin, end = first(rows, worker, workers, 1), first(rows, worker + 1, workers, 1)
        for s in range(sequences):
            start, stop = int64(i32p(cumulative)[s]), int64(i32p(cumulative)[s + 1])
            before = int64(i32p(past)[s])
            if start < 0 or stop > rows or stop < start or before < 0:
                fault(step, bases)
                continue
            for row in range(max(start, begin), min(stop, end)):
                position = before + row - start
                slot = position // PAGE
                page = int64(i32p(table)[s * slots + slot]) if slot < slots else int64(-1)
                if page < 0 or page >= pages or (cos != 0 and position >= angles):
                    fault(step, bases)
                    continue
                within = position - slot * PAGE
                turn = 4 * position * pairs
                for h in range(heads):
                    at = row * heads + h
                    _turn(query + 4 * at * size, head, size, cos + turn, sin + turn, pairs, interleaved)
                    put_query(turned + at * query_bytes(size), head, size)
                for h in range(kv):
                    source = key + 4 * (row * kv + h) * size
                    _turn(source, head, size, cos + turn, sin + turn, pairs, interleaved)
                    put_key(keys, page * kv + h, within, head, size)
                    put_value(values, page * kv + h, within, value + 4 * (row * kv + h) * deep, deep)

    return append


_append16, _append32, _append8 = map(_appender, (_F16, _F32, _I8))


@kernel(Append)
def f16_append(step, bases, worker, workers):
    """New keys and values into caches of float16, rotated queries into `turned`."""
    _append16(step, bases, worker, workers)


@kernel(Append)
def f32_append(step, bases, worker, workers):
    """Like f16_append, caches of float32."""
    _append32(step, bases, worker, workers)


@kernel(Append)
def i8_append(step, bases, worker, workers):
    """Like f16_append, caches of int8 with a scale for each position and head."""
    _append8(step, bases, worker, workers)


# -- attending --------------------------------------------------------------------------------------------------------


@device
def _soften(x, n, cap):
    """cap * tanh(score / cap) of n scores."""
    for i in range(0, n, LANES):
        here = f32p(x + 4 * i)
        vstore_n(here, vtanh(vload_n(here, n - i) * splat(_ONE / cap)) * splat(cap), n - i)


def _attender(kind: _Kind):
    widen_keys, widen_values, score, query_bytes = kind.widen_keys, kind.widen_values, kind.score, kind.query_bytes

    @device
    def attend(step, bases, worker, workers):
        turned, y = ptr(step, bases, ATTEND.turned), ptr(step, bases, ATTEND.y)
        cumulative, past, table = (
            ptr(step, bases, ATTEND.cumulative),
            ptr(step, bases, ATTEND.past),
            ptr(step, bases, ATTEND.table),
        )
        keys, values = ptr(step, bases, ATTEND.key_cache), ptr(step, bases, ATTEND.value_cache)
        rows, sequences, heads, kv = (
            num(step, ATTEND.rows),
            num(step, ATTEND.sequences),
            num(step, ATTEND.heads),
            num(step, ATTEND.kv_heads),
        )
        size, deep, pages, slots = (
            num(step, ATTEND.size),
            num(step, ATTEND.deep),
            num(step, ATTEND.pages),
            num(step, ATTEND.slots),
        )
        window, scale, softcap = num(step, ATTEND.window), real(step, ATTEND.scale), real(step, ATTEND.softcap)
        group = heads // kv
        wide_keys, wide_values = address(stack_floats(WIDE)), address(stack_floats(_VALUES))
        scores = address(stack_floats(_SCORES))
        tops, totals = address(stack_floats(_HELD)), address(stack_floats(_HELD))
        one, y_row, line = query_bytes(size), 4 * heads * deep, 4 * KEYS
        block = min(KEYS, WIDE // max(size, deep) // PAGE * PAGE)
        item = int64(0)  # all workers count through the same pieces of work, and take turns
        for s in range(sequences):
            start, stop = int64(i32p(cumulative)[s]), int64(i32p(cumulative)[s + 1])
            before = int64(i32p(past)[s])
            if start < 0 or stop > rows or stop < start or before < 0 or before + stop - start > slots * PAGE:
                continue  # `append` reported it
            mine = table + 4 * s * slots
            for begin in range(start, stop, ROWS):
                live = min(ROWS, stop - begin)
                position = before + begin - start
                reach = position + live
                # Of one row, heads that share keys are rows of the products.
                together = group if live == 1 else 1
                rows_of, q_step, y_step = (group, one, 4 * deep) if live == 1 else (live, heads * one, y_row)
                # The first row's window, from the beginning of a block of keys.
                nearest = max(0, position - window + 1) // block * block if window > 0 else 0
                for head in range(kv):
                    item += 1
                    if item % workers != worker:
                        continue
                    for i in range(ROWS * (group // together)):
                        f32p(tops)[i] = _LOW
                        f32p(totals)[i] = _ZERO
                    for key in range(nearest, reach, block):
                        count = min(block, reach - key)
                        bad = widen_keys(keys, mine, key, count, kv, head, size, pages, scale, wide_keys)
                        if bad != 0:
                            fault(step, bases)
                        widen_values(values, mine, key, count, kv, head, deep, pages, wide_values)
                        for g in range(0, group, together):
                            h = head * group + g
                            left, out = turned + (begin * heads + h) * one, y + begin * y_row + 4 * h * deep
                            for column in range(0, count, PANEL):
                                part = min(PANEL, count - column)
                                score(left, q_step, rows_of, size, wide_keys, column, part, scores + 4 * column, line)
                            for i in range(rows_of):
                                x = scores + i * line
                                own = position + (i if together == 1 else 0)
                                seen = max(0, min(count, own + 1 - key))
                                if softcap != _ZERO:
                                    _soften(x, count, softcap)
                                if window > 0:
                                    for j in range(min(seen, own - window + 1 - key)):
                                        f32p(x)[j] = float32(-_INF)
                                at = 4 * (g * ROWS + i)
                                shrink = _weigh(x, seen, count, tops + at, totals + at)
                                if key != nearest and shrink != _ONE:
                                    _scale_row(out + i * y_step, deep, shrink)
                            for column in range(0, deep, PANEL):
                                part = min(PANEL, deep - column)
                                panel = wide_values + 4 * column
                                more = key - nearest
                                _panel(
                                    scores, line, rows_of, count, panel, 4 * deep, out + 4 * column, y_step, more, part
                                )
                    for g in range(0, group, together):
                        out = y + begin * y_row + 4 * (head * group + g) * deep
                        for i in range(rows_of):
                            total = f32p(totals)[g * ROWS + i]
                            _scale_row(out + i * y_step, deep, _ONE / total if total != _ZERO else _ZERO)

    return attend


_attend16, _attend32, _attend8 = map(_attender, (_F16, _F32, _I8))


@kernel(Attend)
def f16_attend(step, bases, worker, workers):
    """Softmax of scores times values, caches of float16."""
    _attend16(step, bases, worker, workers)


@kernel(Attend)
def f32_attend(step, bases, worker, workers):
    """Like f16_attend, caches of float32."""
    _attend32(step, bases, worker, workers)


@kernel(Attend)
def i8_attend(step, bases, worker, workers):
    """Like f16_attend, caches of int8 with a scale for each position and head."""
    _attend8(step, bases, worker, workers)
