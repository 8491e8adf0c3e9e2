"""Quantisation over a tensor's own range: a step for the ranges of pieces of rows, one that quantises the pieces.

Smallest and largest do not hang on the order of comparison, so neither step hangs on the number of workers.
"""

from __future__ import annotations

import numpy as np
from numba import types

from lite_runtime.kernels._map import storer
from lite_runtime.kernels._math import select
from lite_runtime.kernels._opcodes import MODERATE
from lite_runtime.kernels._scaling import quantised
from lite_runtime.reference.quantize import LEAST_SPAN
from lite_runtime.simd import (
    LANES,
    address,
    device,
    exact,
    f32p,
    first,
    kernel,
    num,
    ptr,
    rint,
    splat,
    stack_floats,
    u8p,
    vload,
    vload_n,
    vmax,
    vmin,
    vstore,
)

_ZERO, _ONE, _STEPS = np.float32(0), np.float32(1), np.float32(255)
_FIRST, _LAST = np.float32(-128), np.float32(127)
_TWO_VECTORS = 2 * LANES
_BY_SCALE, _BY_ANY_SCALE, _BY_INVERSE = range(3)
_store = storer(
    types.float32,
    {
        _BY_SCALE: quantised("uint8"),
        _BY_ANY_SCALE: quantised("uint8", any_scale=True),
        _BY_INVERSE: quantised("int8", inverse=True),
    },
)
_LEAST, _GREATEST = (np.float32(end) for end in MODERATE)


@device
def _extremes(x, count):
    """(smallest, largest) of 0 and `count` elements; a NaN is none of them."""
    low, high = splat(_ZERO), splat(_ZERO)
    at = 0
    while at + LANES <= count:
        v = vload(f32p(x + 4 * at))
        low, high = vmin(v, low), vmax(v, high)
        at += LANES
    v = vload_n(f32p(x + 4 * at), count - at)
    low, high = vmin(v, low), vmax(v, high)
    lanes = stack_floats(_TWO_VECTORS)
    vstore(lanes, low)
    vstore(f32p(address(lanes) + 4 * LANES), high)
    least, most = _ZERO, _ZERO
    for i in range(LANES):
        least = select(lanes[i] < least, lanes[i], least)
        most = select(lanes[LANES + i] > most, lanes[LANES + i], most)
    return least, most


# -- DynamicQuantizeLinear. Numbers: rows, elements of a row, pieces of a row, elements of a piece ---------------------


@kernel(fastmath=set())
def f32_range(step, bases, worker, workers):
    """Operands: x; (smallest, largest) of every piece of every row, widened to hold 0."""
    x, ranges = ptr(step, bases, 0), ptr(step, bases, 1)
    rows, n, pieces, size = num(step, 2, 0), num(step, 2, 1), num(step, 2, 2), num(step, 2, 3)
    items = rows * pieces
    for item in range(first(items, worker, workers, 1), first(items, worker + 1, workers, 1)):
        row = item // pieces
        begin = (item - row * pieces) * size
        found = f32p(ranges + 8 * item)
        found[0], found[1] = _extremes(x + 4 * (row * n + begin), min(size, n - begin))


@exact
def _unsigned_steps(low, high):
    """(kind of store, its scale, zero point, scale), as the reference has it."""
    scale = (high - low) / _STEPS
    scale = select(scale == _ZERO, _ONE, scale)
    zero = rint(-low / scale)
    zero = select(zero > _ZERO, zero, _ZERO)
    kind = _BY_SCALE if _LEAST <= scale <= _GREATEST else _BY_ANY_SCALE
    return kind, scale, select(zero < _STEPS, zero, _STEPS), scale


@exact
def _signed_steps(low, high):
    span = high - low
    inverse = select(span < LEAST_SPAN, _ONE, _STEPS / span)
    begin, end = low * inverse, high * inverse
    zero = select((_FIRST + begin) + (_LAST + end) > _ZERO, _FIRST - begin, _LAST - end)
    zero = select(zero > _FIRST, zero, _FIRST)
    return _BY_INVERSE, inverse, rint(select(zero < _LAST, zero, _LAST)), _ONE / inverse


@kernel(fastmath=set())
def f32_quantize_rows(step, bases, worker, workers):
    """Operands: x; the pieces' ranges; y, scales and zero points, any of which may be left out. One more number:
    whether y is signed."""
    x, ranges = ptr(step, bases, 0), ptr(step, bases, 1)
    y, scales, zeros = ptr(step, bases, 2), ptr(step, bases, 3), ptr(step, bases, 4)
    rows, n, pieces, size = num(step, 5, 0), num(step, 5, 1), num(step, 5, 2), num(step, 5, 3)
    signed = num(step, 5, 4) != 0
    items = rows * pieces
    for item in range(first(items, worker, workers, 1), first(items, worker + 1, workers, 1)):
        row = item // pieces
        begin = (item - row * pieces) * size
        found = f32p(ranges + 8 * row * pieces)
        low, high = _ZERO, _ZERO
        for i in range(pieces):
            low = select(found[2 * i] < low, found[2 * i], low)
            high = select(found[2 * i + 1] > high, found[2 * i + 1], high)
        kind, by, zero, scale = _signed_steps(low, high) if signed else _unsigned_steps(low, high)
        if begin == 0:
            if scales != 0:
                f32p(scales + 4 * row)[0] = scale
            if zeros != 0:
                u8p(zeros + row)[0] = np.int64(zero) & 255
        if y != 0:
            at = row * n + begin
            _store(kind, y + at, f32p(x + 4 * at), min(size, n - begin), zero, by)
