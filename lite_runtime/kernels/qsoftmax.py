"""Softmax on bytes along the middle of [outer, n, inner]: exponentials from a table of integers, summed exactly."""

from __future__ import annotations

import numpy as np
from numba import types

from lite_runtime.kernels._map import storer
from lite_runtime.kernels._opcodes import QUANTISED
from lite_runtime.kernels._scaling import quantised
from lite_runtime.native.simd import first, i32p, kernel, num, ptr, real, stack_floats, stack_words, u8p

_store = storer(types.float32, {QUANTISED[name]: quantised(name, any_scale=True) for name in ("uint8", "int8")})
_BLOCK = 512
_COLUMNS = 64

# Operands: x; 256 exponentials as int32, by distance from the largest element; y. Numbers: outer, n, inner, what x is
# XORed with to be unsigned in order (128 for int8), y's kind of store, its zero point and scale as float32.


@kernel(fastmath=set())
def x8_softmax(step, bases, worker, workers):
    """Along the innermost axis: rows that lie in one piece."""
    x, table, y = ptr(step, bases, 0), i32p(ptr(step, bases, 1)), ptr(step, bases, 2)
    rows, n, flip, kind = num(step, 3, 0), num(step, 3, 1), num(step, 3, 3), num(step, 3, 4)
    zero, scale = real(step, 3, 5), real(step, 3, 6)
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


@kernel(fastmath=set())
def x8_softmax__columns(step, bases, worker, workers):
    """Along another axis: a few neighbouring columns at a time."""
    x, table, y = ptr(step, bases, 0), i32p(ptr(step, bases, 1)), ptr(step, bases, 2)
    outer, n, inner, flip, kind = num(step, 3, 0), num(step, 3, 1), num(step, 3, 2), num(step, 3, 3), num(step, 3, 4)
    zero, scale = real(step, 3, 5), real(step, 3, 6)
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
