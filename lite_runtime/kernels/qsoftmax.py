"""Softmax on bytes along the middle axis of [outer, n, inner]: exponentials from a table of integers, summed
exactly."""

from __future__ import annotations

import numpy as np
from numba import types

from lite_runtime.kernels._map import storer
from lite_runtime.kernels._opcodes import QUANTISED
from lite_runtime.kernels._scaling import quantised
from lite_runtime.native.simd import first, i32p, kernel, num, ptr, real, stack_floats, stack_words, u8p
from lite_runtime.steps.declaration import named
from lite_runtime.steps.qsoftmax import ByteSoftmax

SOFTMAX = named(ByteSoftmax)

_store = storer(types.float32, {QUANTISED[name]: quantised(name, any_scale=True) for name in ("uint8", "int8")})
_BLOCK = 512
_COLUMNS = 64


@kernel(ByteSoftmax, fastmath=set(), unread=("inner",))
def x8_softmax(step, bases, worker, workers):
    """Along the innermost axis: contiguous rows."""
    x, table, y = ptr(step, bases, SOFTMAX.x), i32p(ptr(step, bases, SOFTMAX.table)), ptr(step, bases, SOFTMAX.y)
    rows, n, flip, kind = (
        num(step, SOFTMAX.outer),
        num(step, SOFTMAX.n),
        num(step, SOFTMAX.flip),
        num(step, SOFTMAX.kind),
    )
    zero, scale = real(step, SOFTMAX.zero), real(step, SOFTMAX.scale)
    shares = stack_floats(_BLOCK)
    turn = np.uint8(flip)
    for row in range(first(rows, worker, workers, 1), first(rows, worker + 1, workers, 1)):
        source = u8p(x + row * n)
        top = np.uint8(0)
        for i in range(n):
            v = np.uint8(source[i] ^ turn)
            top = v if v > top else top
        total = np.int64(0)
        for i in range(n):
            total += table[np.uint8(top - np.uint8(source[i] ^ turn))]
        whole = np.float32(total)
        begin = 0
        while begin < n:
            count = min(_BLOCK, n - begin)
            source = u8p(x + row * n + begin)
            for i in range(count):
                shares[i] = np.float32(table[np.uint8(top - np.uint8(source[i] ^ turn))]) / whole
            _store(kind, y + row * n + begin, shares, count, zero, scale)
            begin += count


@kernel(ByteSoftmax, fastmath=set())
def x8_softmax__columns(step, bases, worker, workers):
    """Along another axis: a few neighbouring columns at a time."""
    x, table, y = ptr(step, bases, SOFTMAX.x), i32p(ptr(step, bases, SOFTMAX.table)), ptr(step, bases, SOFTMAX.y)
    outer, n, inner, flip, kind = (
        num(step, SOFTMAX.outer),
        num(step, SOFTMAX.n),
        num(step, SOFTMAX.inner),
        num(step, SOFTMAX.flip),
        num(step, SOFTMAX.kind),
    )
    zero, scale = real(step, SOFTMAX.zero), real(step, SOFTMAX.scale)
    tops, totals, shares = stack_words(_COLUMNS), stack_words(_COLUMNS), stack_floats(_COLUMNS)
    strips = (inner + _COLUMNS - 1) // _COLUMNS
    items = outer * strips
    for item in range(first(items, worker, workers, 1), first(items, worker + 1, workers, 1)):
        o = item // strips
        column = (item - o * strips) * _COLUMNS
        count = min(_COLUMNS, inner - column)
        begin = o * n * inner + column
        for j in range(count):
            tops[j], totals[j] = 0, 0
        for i in range(n):
            source = u8p(x + begin + i * inner)
            for j in range(count):
                tops[j] = max(tops[j], np.int64(source[j]) ^ flip)
        for i in range(n):
            source = u8p(x + begin + i * inner)
            for j in range(count):
                totals[j] += table[tops[j] - (np.int64(source[j]) ^ flip)]
        for i in range(n):
            source = u8p(x + begin + i * inner)
            for j in range(count):
                shares[j] = np.float32(table[tops[j] - (np.int64(source[j]) ^ flip)]) / np.float32(totals[j])
            _store(kind, y + begin + i * inner, shares, count, zero, scale)
