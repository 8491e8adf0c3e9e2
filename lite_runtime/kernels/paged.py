"""Attention of several sequences over caches in pages of 16 positions, float32 or float16.

Keys lie with the positions of a page next to one another, [pages][kv_heads][size][16], values with the features,
[pages][kv_heads][16][deep], so that both products run in `attention`'s tiles without sums across lanes. A block of keys
and values is widened to float32 once for all rows and heads that read it. As in `attention`, scores are not stored, and
which rows and keys share a block depends only on positions and sizes: results do not depend on workers, nor on how
tokens were divided among runs, except for the size of a block of rows.

Numbers of sequences, positions and pages are data, so they are checked here: what does not fit sets the fault flag, and
neither reads nor writes outside the caches.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import float32, int8, int16, int32, int64, uint8

from lite_runtime.kernels._bytes import load_bytes, load_split
from lite_runtime.kernels._halves import from_half, load_halves, to_half
from lite_runtime.kernels._vmath import vtanh
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
    rint,
    splat,
    stack_floats,
    u8p,
    vload,
    vload_n,
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
_SCORES, _HELD = ROWS * KEYS, ROWS * GROUP
_STEPS, _LARGEST = np.float32(127), np.float32(65504)
_ZERO, _ONE, _LOW, _INF = np.float32(0), np.float32(1), np.float32(-3.4028235e38), np.float32(np.inf)
_I16, _I64 = ir.IntType(16), ir.IntType(64)
_HALVES = ir.VectorType(_I16, LANES)


# -- what caches hold -------------------------------------------------------------------------------------------------


class _Kind(NamedTuple):
    """How keys and values get into caches and out of them; `at` is the number of a page times heads plus the head.

    put_key(cache, at, within, source, size), put_value(cache, at, within, source, deep): features of one position.
    widen_keys(cache, table, key, count, kv, head, size, pages, factor, to): keys [key, key + count) as panels of
    `attention`, times a factor; returns whether a page was outside.
    widen_values(cache, table, key, count, kv, head, deep, pages, to): values, one row after the other.
    """

    put_key: Any
    put_value: Any
    widen_keys: Any
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

    return _Kind(put_key, put_value, widen_keys, widen_values)


@device
def _put_bytes(target, stride, source, count):
    """Numbers as int8, bytes `stride` apart, and behind them the two bytes of their scale, a float16."""
    top = _ZERO
    for i in range(count):
        top = max(top, abs(f32p(source)[i]))
    bits = to_half(min(top / _STEPS, _LARGEST))
    scale = from_half(bits)
    inverse = _ONE / scale if scale > _ZERO else _ZERO
    for i in range(count):
        value = rint(f32p(source)[i] * inverse)
        value = _STEPS if value > _STEPS else value
        value = value if value >= -_STEPS else -_STEPS  # also what is no number
        i8p(target + i * stride)[0] = int8(int32(value))
    u8p(target + count * stride)[0] = uint8(bits & 255)
    u8p(target + (count + 1) * stride)[0] = uint8((bits >> 8) & 255)


def _bytes() -> _Kind:
    @device
    def put_key(cache, at, within, source, size):
        _put_bytes(cache + at * (size + SCALE) * PAGE + within, PAGE, source, size)

    @device
    def put_value(cache, at, within, source, deep):
        _put_bytes(cache + (at * PAGE + within) * (deep + SCALE), 1, source, deep)

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
                source = cache + (page * kv + head) * (size + SCALE) * PAGE + position % PAGE
                scale = load_split(source + size * PAGE, source + (size + 1) * PAGE) * splat(factor)
                for i in range(size):
                    vstore(f32p(target + line * i + 4 * LANES * j), load_bytes(source + i * PAGE) * scale)
        return bad

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

    return _Kind(put_key, put_value, widen_keys, widen_values)


_F16, _F32, _I8 = _floats(True), _floats(False), _bytes()


# -- appending --------------------------------------------------------------------------------------------------------


@device
def _turn(source, target, size, angle_cos, angle_sin, pairs, interleaved):
    """A head's features, the first 2 * pairs of them rotated."""
    x, y, cos, sin = f32p(source), f32p(target), f32p(angle_cos), f32p(angle_sin)
    for i in range(pairs):
        a, b = (2 * i, 2 * i + 1) if interleaved != 0 else (i, i + pairs)
        u, v = x[a], x[b]
        y[a] = cos[i] * u - sin[i] * v
        y[b] = sin[i] * u + cos[i] * v
    for i in range(2 * pairs, size):
        y[i] = x[i]


def _appender(kind: _Kind):
    put_key, put_value = kind.put_key, kind.put_value

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
                    at = 4 * (row * heads + h) * size
                    _turn(query + at, turned + at, size, cos + turn, sin + turn, pairs, interleaved)
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
    widen_keys, widen_values = kind.widen_keys, kind.widen_values

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
        q_row, y_row, line = 4 * heads * size, 4 * heads * deep, 4 * KEYS
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
                # The first row's window, from the beginning of a block of keys.
                nearest = max(0, position - window + 1) // block * block if window > 0 else 0
                for head in range(kv):
                    item += 1
                    if item % workers != worker:
                        continue
                    for i in range(_HELD):
                        f32p(tops)[i] = _LOW
                        f32p(totals)[i] = _ZERO
                    for key in range(nearest, reach, block):
                        count = min(block, reach - key)
                        bad = widen_keys(keys, mine, key, count, kv, head, size, pages, scale, wide_keys)
                        if bad != 0:
                            fault(step, bases)
                        widen_values(values, mine, key, count, kv, head, deep, pages, wide_values)
                        for g in range(group):
                            h = head * group + g
                            left = turned + begin * q_row + 4 * h * size
                            out = y + begin * y_row + 4 * h * deep
                            for column in range(0, count, PANEL):
                                part = min(PANEL, count - column)
                                panel = wide_keys + 4 * column * size
                                _panel(left, q_row, live, size, panel, 0, scores + 4 * column, line, 0, part)
                            for i in range(live):
                                x = scores + i * line
                                own = position + i
                                seen = max(0, min(count, own + 1 - key))
                                if softcap != _ZERO:
                                    _soften(x, count, softcap)
                                if window > 0:
                                    for j in range(min(seen, own - window + 1 - key)):
                                        f32p(x)[j] = float32(-_INF)
                                at = 4 * (g * ROWS + i)
                                shrink = _weigh(x, seen, count, tops + at, totals + at)
                                if key != nearest and shrink != _ONE:
                                    _scale_row(out + i * y_row, deep, shrink)
                            for column in range(0, deep, PANEL):
                                part = min(PANEL, deep - column)
                                panel = wide_values + 4 * column
                                more = key - nearest
                                _panel(scores, line, live, count, panel, 4 * deep, out + 4 * column, y_row, more, part)
                    for g in range(group):
                        out = y + begin * y_row + 4 * (head * group + g) * deep
                        for i in range(live):
                            total = f32p(totals)[g * ROWS + i]
                            _scale_row(out + i * y_row, deep, _ONE / total if total != _ZERO else _ZERO)

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
