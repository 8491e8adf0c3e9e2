"""Dynamic quantisation: one step finds the ranges of pieces of rows, a second one quantises the pieces; rows of one
piece only need the second.

Minimum and maximum do not depend on the order of comparisons, so neither step depends on the number of workers.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import int64, types
from numba.extending import intrinsic

from lite_runtime.kernels._dot import INTS, emit_rounded, emit_store_narrow
from lite_runtime.kernels._map import storer
from lite_runtime.kernels._math import select
from lite_runtime.kernels._opcodes import MODERATE
from lite_runtime.kernels._scaling import quantised
from lite_runtime.native.codegen.operations import call
from lite_runtime.native.simd import (
    LANES,
    address,
    declare,
    device,
    emit_max,
    emit_splat,
    exact,
    f32p,
    first,
    i32p,
    kernel,
    num,
    ptr,
    rint,
    splat,
    stack_floats,
    u8p,
    vec,
    vload,
    vload_n,
    vmax,
    vmin,
)
from lite_runtime.reference.quantize import LEAST_SPAN
from lite_runtime.steps.declaration import named
from lite_runtime.steps.quantize import QuantizeRows, Range

RANGE = named(Range)
ROWS = named(QuantizeRows)

_ZERO, _ONE, _STEPS = np.float32(0), np.float32(1), np.float32(255)
_FIRST, _LAST = np.float32(-128), np.float32(127)
_NONE, _WHOLE, _SPAN, _HALF, _DOWN, _UP = (np.float64(n) for n in (0, 1, 255, 0.5, 128, 127))
_BY_SCALE, _BY_ANY_SCALE, _BY_INVERSE, _AWAY_BY_INVERSE = range(4)
_UNSIGNED, _SIGNED, _SYMMETRIC, _ASYMMETRIC = range(4)
"""The schemes of `QuantizeRows`."""
_store = storer(types.float32, {_BY_SCALE: quantised("uint8"), _BY_ANY_SCALE: quantised("uint8", any_scale=True)})
BATCH = 16
"""Rows whose ranges are found before the first of them is quantised."""
_HELD = 6 * BATCH
_LEAST, _GREATEST = (np.float32(end) for end in MODERATE)


def _across(predicate):
    @intrinsic
    def reduce(typing, values):
        """The extreme lane, found by comparing halves."""

        def lower(context, builder, sig, args):
            value, count = args[0], LANES
            while count > 1:
                count //= 2
                halves = (
                    builder.shuffle_vector(value, value, ir.Constant(ir.VectorType(ir.IntType(32), count), order))
                    for order in ([*range(count)], [*range(count, 2 * count)])
                )
                value = emit_max(builder, *halves, predicate)
            return builder.extract_element(value, ir.IntType(32)(0))

        return types.float32(vec), lower

    return reduce


_least, _greatest = _across("<"), _across(">")


@device
def extremes(x, count):
    """(smallest, largest) of 0 and `count` elements; NaNs are ignored. Four chains of comparisons hide the latency."""
    low, high = splat(_ZERO), splat(_ZERO)
    low_1, low_2, low_3, high_1, high_2, high_3 = low, low, low, high, high, high
    at = 0
    while at + 4 * LANES <= count:
        here = x + 4 * at
        v, v_1 = vload(f32p(here)), vload(f32p(here + 4 * LANES))
        v_2, v_3 = vload(f32p(here + 8 * LANES)), vload(f32p(here + 12 * LANES))
        low, low_1, low_2, low_3 = vmin(v, low), vmin(v_1, low_1), vmin(v_2, low_2), vmin(v_3, low_3)
        high, high_1, high_2, high_3 = vmax(v, high), vmax(v_1, high_1), vmax(v_2, high_2), vmax(v_3, high_3)
        at += 4 * LANES
    low, high = vmin(vmin(low, low_1), vmin(low_2, low_3)), vmax(vmax(high, high_1), vmax(high_2, high_3))
    while at < count:
        v = vload_n(f32p(x + 4 * at), count - at)
        low, high = vmin(v, low), vmax(v, high)
        at += LANES
    return _least(low), _greatest(high)


# -- DynamicQuantizeLinear --------------------------------------------------------------------------------------------


@kernel(Range, fastmath=set())
def f32_range(step, bases, worker, workers):
    """The range of every piece, extended to contain 0."""
    x, ranges = ptr(step, bases, RANGE.x), ptr(step, bases, RANGE.ranges)
    rows, n, pieces, size = num(step, RANGE.rows), num(step, RANGE.n), num(step, RANGE.pieces), num(step, RANGE.size)
    items = rows * pieces
    for item in range(first(items, worker, workers, 1), first(items, worker + 1, workers, 1)):
        row = item // pieces
        begin = (item - row * pieces) * size
        found = f32p(ranges + 8 * item)
        found[0], found[1] = extremes(x + 4 * (row * n + begin), min(size, n - begin))


@exact
def _unsigned_steps(low, high):
    """(kind of store, its scale, zero point, scale), computed as in the reference."""
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


@exact
def _symmetric_steps(low, high):
    reach = select(-low > high, -low, high)
    inverse = select(reach == _ZERO, _ZERO, _LAST / reach)
    return _AWAY_BY_INVERSE, inverse, _ZERO, select(reach == _ZERO, _ONE, reach / _LAST)


@exact
def _size(value):
    return select(value < _NONE, -value, value)


@exact
def _asymmetric_steps(low, high):
    """The zero point is computed in float64, for which `simd` has no functions of vectors."""
    span = np.float64(high - low)
    step = select(span == _NONE, _WHOLE, span / _SPAN)
    first, last = np.float64(low) / step, np.float64(high) / step
    zero = select(_DOWN + _size(first) < _UP + _size(last), -_DOWN - first, _UP - last)
    zero = select(zero < _UP, select(zero > -_DOWN, zero, -_DOWN), _UP)
    zero = np.float64(np.int64(zero + select(zero < _NONE, -_HALF, _HALF)))
    scale = np.float32(step)
    inverse = select((span == _NONE) | (scale == _ZERO), _ZERO, _ONE / scale)
    return _AWAY_BY_INVERSE, inverse, np.float32(select(span == _NONE, _NONE, zero)), scale


@exact
def signed_by(scheme, low, high):
    """(kind of store, its factor, zero point, scale) of int8."""
    if scheme == _SYMMETRIC:
        return _symmetric_steps(low, high)
    if scheme == _ASYMMETRIC:
        return _asymmetric_steps(low, high)
    return _signed_steps(low, high)


@intrinsic
def halves_away(typing, values):
    """Whole numbers, halves away from zero, by adding a half."""

    def lower(context, builder, sig, args):
        kind = args[0].type
        halves = ir.Constant(kind, [0.5] * LANES)
        sign = declare(builder, f"llvm.copysign.v{LANES}f32", kind, kind, kind)
        return call(builder, "trunc", LANES, builder.fadd(args[0], builder.call(sign, [halves, args[0]])))

    return vec(vec), lower


@intrinsic
def store_bytes(typing, target, values, zero, live):
    """Store the first `live` lanes as bytes: rounded half to even, plus `zero`, saturated; NaN gives -128."""

    def lower(context, builder, sig, args):
        target, values, zero, live = args
        low, high = (builder.fsub(ir.FloatType()(end), zero) for end in (-128.0, 127.0))
        whole = builder.fptosi(zero, ir.IntType(32))
        rounded = emit_rounded(
            builder, values, emit_splat(builder, low), emit_splat(builder, high), emit_splat(builder, whole, INTS)
        )
        emit_store_narrow(builder, rounded, target, 8, live)
        return context.get_dummy_value()

    return types.void(types.int64, vec, types.float32, types.int64), lower


@exact
def _quantise(kind, y, x, count, zero, by):
    if kind == _BY_INVERSE:
        scale = splat(by)
        at = 0
        while at + LANES <= count:
            store_bytes(y + at, vload(f32p(x + 4 * at)) * scale, zero, LANES)
            at += LANES
        if at < count:
            store_bytes(y + at, vload_n(f32p(x + 4 * at), count - at) * scale, zero, count - at)
    elif kind == _AWAY_BY_INVERSE:
        scale = splat(by)
        for at in range(0, count, LANES):
            store_bytes(y + at, halves_away(vload_n(f32p(x + 4 * at), count - at) * scale), zero, count - at)
    else:
        _store(kind, y, f32p(x), count, zero, by)


@exact
def _steps(scheme, ranges, rows):
    """The parameters that follow from each of `rows` ranges: kinds of store, their scales, zero points and scales,
    BATCH of each. It is a separate loop, so that the divisions of several rows overlap."""
    kinds, stores = i32p(ranges + 8 * BATCH), f32p(ranges + 12 * BATCH)
    zeros, scales = f32p(ranges + 16 * BATCH), f32p(ranges + 20 * BATCH)
    low, high = f32p(ranges), f32p(ranges + 4 * BATCH)
    if scheme == _SIGNED:
        for i in range(rows):
            kinds[i], stores[i], zeros[i], scales[i] = _signed_steps(low[i], high[i])
    elif scheme != _UNSIGNED:
        for i in range(rows):
            kinds[i], stores[i], zeros[i], scales[i] = signed_by(scheme, low[i], high[i])
    else:
        for i in range(rows):
            kinds[i], stores[i], zeros[i], scales[i] = _unsigned_steps(low[i], high[i])


@exact
def _range_of(ranges, pieces):
    """The range of a row from the ranges of its pieces."""
    found = f32p(ranges)
    low, high = _ZERO, _ZERO
    for i in range(pieces):
        low = select(found[2 * i] < low, found[2 * i], low)
        high = select(found[2 * i + 1] > high, found[2 * i + 1], high)
    return low, high


@exact
def _finish(steps, x, count, y, scales, zeros):
    """Store elements as bytes, and scale and zero point to their addresses; an address of 0 means not stored."""
    kind, by, zero, scale = steps
    if scales != 0:
        f32p(scales)[0] = scale
    if zeros != 0:
        u8p(zeros)[0] = np.int64(zero) & 255
    if y != 0:
        _quantise(kind, y, x, count, zero, by)


@kernel(QuantizeRows, fastmath=set())
def f32_quantize_rows(step, bases, worker, workers):
    """Quantise pieces of rows by the range of their row."""
    x, ranges = ptr(step, bases, ROWS.x), ptr(step, bases, ROWS.ranges)
    y, scales, zeros = ptr(step, bases, ROWS.y), ptr(step, bases, ROWS.scales), ptr(step, bases, ROWS.zeros)
    rows, n, pieces, size = num(step, ROWS.rows), num(step, ROWS.n), num(step, ROWS.pieces), num(step, ROWS.size)
    scheme = num(step, ROWS.scheme)
    held = address(stack_floats(_HELD))
    low, high, kinds, by = f32p(held), f32p(held + 4 * BATCH), i32p(held + 8 * BATCH), f32p(held + 12 * BATCH)
    zero, scale = f32p(held + 16 * BATCH), f32p(held + 20 * BATCH)
    if rows == 1 and pieces == 1:  # without a list: the usual case in models of a few microseconds
        if worker == 0:
            least, most = extremes(x, n)
            one = _unsigned_steps(least, most) if scheme == _UNSIGNED else signed_by(scheme, least, most)
            _finish(one, x, n, y, scales, zeros)
        return
    items = rows * pieces
    last = first(items, worker + 1, workers, 1)
    for start in range(first(items, worker, workers, 1), last, BATCH):
        count = min(BATCH, last - start)
        for i in range(count):
            if ranges == 0:
                low[i], high[i] = extremes(x + 4 * (start + i) * n, n)
            else:
                low[i], high[i] = _range_of(ranges + 8 * ((start + i) // pieces) * pieces, pieces)
        _steps(scheme, held, count)
        for i in range(count):
            row = (start + i) // pieces if pieces > 1 else start + i
            begin = (start + i - row * pieces) * size
            at, first_piece = row * n + begin, begin == 0
            _finish(
                (int64(kinds[i]), by[i], zero[i], scale[i]),
                x + 4 * at,
                min(size, n - begin),
                y + at if y != 0 else 0,
                scales + 4 * row if first_piece and scales != 0 else 0,
                zeros + row if first_piece and zeros != 0 else 0,
            )
