"""Softmax on bytes along the middle axis of [outer, n, inner]: exponentials from a table of integers, summed exactly;
or of float32, summed in order. On rows of 16 bits: exponentials and reciprocals interpolated in tables."""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import types

from lite_runtime.kernels._decimal import leading
from lite_runtime.kernels._fixed import between_entries, rescale_double
from lite_runtime.kernels._map import storer
from lite_runtime.kernels._opcodes import QUANTISED
from lite_runtime.kernels._scaling import quantised
from lite_runtime.native.codegen.operations import call
from lite_runtime.native.simd import (
    SHAPE,
    address,
    device,
    emit_max,
    exact,
    f32p,
    first,
    i16p,
    i32p,
    kernel,
    num,
    ptr,
    real,
    stack_floats,
    stack_words,
    u8p,
)
from lite_runtime.steps.declaration import named
from lite_runtime.steps.qsoftmax import ByteSoftmax, ShortSoftmax

SOFTMAX, SHORT = named(ByteSoftmax), named(ShortSoftmax)

_store = storer(types.float32, {QUANTISED[name]: quantised(name, any_scale=True) for name in ("uint8", "int8")})
_BLOCK, _COLUMNS = (32, 16) if SHAPE.small else (512, 64)


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


def _shares(dtype):
    """(LLVM type, conversion): (builder, e, zero, inverse) -> e * inverse as LiteRT rounds it, plus the zero point,
    saturated. Halves are rounded away from zero; unsigned bytes: a half is added, the sum truncated, without a zero
    point."""
    ends = np.iinfo(dtype)
    kind, low, high = ir.IntType(ends.bits), _FLOAT(float(ends.min)), _FLOAT(float(ends.max))

    def store(builder, e, zero, inverse):
        share = builder.fmul(e, inverse)
        if dtype == "uint8":
            y = call(builder, "trunc", 1, builder.fadd(share, _FLOAT(0.5)))
        else:
            whole = call(builder, "trunc", 1, share)
            up = builder.fcmp_ordered(">=", builder.fsub(share, whole), _FLOAT(0.5))
            y = builder.fadd(builder.fadd(whole, builder.select(up, _FLOAT(1.0), _FLOAT(0.0))), zero)
        y = emit_max(builder, emit_max(builder, y, low), high, "<")
        return builder.trunc(builder.fptosi(y, ir.IntType(32)), kind)

    return kind, store


_FLOAT = ir.FloatType()
_store_shares = storer(types.float32, {QUANTISED[name]: _shares(name) for name in ("uint8", "int8", "int16")})
_TOGETHER, _BUFFER = 4, 4 * _BLOCK
"""Rows whose sums are added at the same time: one sum waits four cycles for each element."""


@device
def _power(table, top, x, turn):
    return table[np.uint8(top - np.uint8(x ^ turn))]


@device
def _fill(powers, row, source, table, top, turn, count):
    for i in range(count):
        powers[row * _BLOCK + i] = _power(table, top, source[i], turn)


@exact
def _sum_one(powers, row, source, table, top, turn, count, total):
    """The exponentials of a row's block, added to its total in order."""
    for i in range(count):
        power = _power(table, top, source[i], turn)
        powers[row * _BLOCK + i] = power
        total += power
    return total


@exact
def _sum_four(powers, at, n, table, tops, turn, count, totals):
    """The same of four rows."""
    a, b, c, d = u8p(at), u8p(at + n), u8p(at + 2 * n), u8p(at + 3 * n)
    top_a, top_b, top_c, top_d = np.uint8(tops[0]), np.uint8(tops[1]), np.uint8(tops[2]), np.uint8(tops[3])
    sum_a, sum_b, sum_c, sum_d = totals[0], totals[1], totals[2], totals[3]
    for i in range(count):
        of_a, of_b = _power(table, top_a, a[i], turn), _power(table, top_b, b[i], turn)
        of_c, of_d = _power(table, top_c, c[i], turn), _power(table, top_d, d[i], turn)
        powers[i], powers[_BLOCK + i], powers[2 * _BLOCK + i], powers[3 * _BLOCK + i] = of_a, of_b, of_c, of_d
        sum_a += of_a
        sum_b += of_b
        sum_c += of_c
        sum_d += of_d
    totals[0], totals[1], totals[2], totals[3] = sum_a, sum_b, sum_c, sum_d


@kernel(ByteSoftmax, fastmath=set(), unread=("inner",))
def x8_softmax__ordered(step, bases, worker, workers):
    """Contiguous rows, as LiteRT computes them."""
    x, table, y = ptr(step, bases, SOFTMAX.x), f32p(ptr(step, bases, SOFTMAX.table)), ptr(step, bases, SOFTMAX.y)
    rows, n, flip, kind = (
        num(step, SOFTMAX.outer),
        num(step, SOFTMAX.n),
        num(step, SOFTMAX.flip),
        num(step, SOFTMAX.kind),
    )
    zero, scale = real(step, SOFTMAX.zero), real(step, SOFTMAX.scale)
    turn, size = np.uint8(flip), 2 if kind == _SHORT else 1
    powers, totals, tops = stack_floats(_BUFFER), stack_floats(_TOGETHER), stack_words(_TOGETHER)
    row, last = first(rows, worker, workers, 1), first(rows, worker + 1, workers, 1)
    while row < last:
        some = min(_TOGETHER, last - row)
        for k in range(some):
            source, top = u8p(x + (row + k) * n), np.uint8(0)
            for i in range(n):
                v = np.uint8(source[i] ^ turn)
                top = v if v > top else top
            tops[k], totals[k] = np.int64(top), np.float32(0)
        for begin in range(0, n, _BLOCK):
            count = min(_BLOCK, n - begin)
            if some == _TOGETHER:
                _sum_four(powers, x + row * n + begin, n, table, tops, turn, count, totals)
            else:
                for k in range(some):
                    source = u8p(x + (row + k) * n + begin)
                    totals[k] = _sum_one(powers, k, source, table, np.uint8(tops[k]), turn, count, totals[k])
        for k in range(some):
            own, inverse = f32p(address(powers) + 4 * _BLOCK * k), np.float32(1) / (totals[k] * scale)
            for begin in range(0, n, _BLOCK):
                count, at = min(_BLOCK, n - begin), (row + k) * n + begin
                if n > _BLOCK:
                    _fill(powers, k, u8p(x + at), table, np.uint8(tops[k]), turn, count)
                _store_shares(kind, y + size * at, own, count, zero, inverse)
        row += some


_SHORT = QUANTISED["int16"]


@kernel(ShortSoftmax)
def i16_softmax(step, bases, worker, workers):
    """Exponentials are kept in the result's memory until their sum is known."""
    x, y = ptr(step, bases, SHORT.x), ptr(step, bases, SHORT.y)
    powers, reciprocals = i16p(ptr(step, bases, SHORT.powers)), i16p(ptr(step, bases, SHORT.reciprocals))
    rows, n, multiplier, shift = (
        num(step, SHORT.rows),
        num(step, SHORT.n),
        num(step, SHORT.multiplier),
        num(step, SHORT.shift),
    )
    for row in range(first(rows, worker, workers, 1), first(rows, worker + 1, workers, 1)):
        source, target = i16p(x + 2 * row * n), i16p(y + 2 * row * n)
        top = np.int16(-(1 << 15))
        for i in range(n):
            top = max(top, source[i])
        total = np.int64(0)
        for i in range(n):
            scaled = rescale_double(np.int64(source[i]) - np.int64(top), multiplier, shift) + np.int64(32767)
            power = between_entries(np.int32(max(scaled, np.int64(-32768))), powers)
            target[i] = np.int16(power)
            total += np.int64(power)
        down = np.int64(63) - leading(total)
        shifted = ((total << (np.int64(30) - down)) + np.int64(1 << 13)) >> np.int64(14)
        centred = min(shifted - np.int64((1 << 15) + (1 << 16)), np.int64(32767))
        inverse = np.int64(between_entries(np.int32(centred), reciprocals))
        half = np.int64(1) << (down - np.int64(1))
        for i in range(n):
            value = (np.int64(target[i]) * inverse + half) >> down
            target[i] = np.int16(min(max(value, np.int64(0)), np.int64(32767)))
