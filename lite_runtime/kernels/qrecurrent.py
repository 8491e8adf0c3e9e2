"""LSTM and GRU cells with recurrent weights in bytes; the rest is float32 as in `recurrent`, with the same steps.

h is rounded to 16 bits and split into two unsigned bytes, so that a gate's sum is two dot products of bytes with the
streamed weights. The rounding of h is finer than that of the weights. The weights take a quarter of the memory traffic
of float32, which is what limits a cell's speed. Sums of a block of weights are exact; each is converted, scaled and
added in float32. With a `scheme` h is rounded to bytes, as LiteRT does, and one dot product is enough.

Weights of a panel are stored block by block: [gates][LANES] scales (float32), [gates][LANES] corrections (int32: -32768
times the sum of the block's weights, for the 32768 that makes h unsigned), [words][gates][LANES][4] int8.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from lite_runtime.kernels._dot import (
    BYTES,
    FLOATS,
    INTS,
    at,
    emit_dot,
    emit_rounded,
    emit_store_narrow,
    load_floats,
    load_ints,
    variable,
)
from lite_runtime.kernels._vmath import across_max, vlane0
from lite_runtime.kernels.quantize import extremes, halves_away, signed_by, store_bytes
from lite_runtime.kernels.recurrent import (
    BOTH,
    CANDIDATE_ONLY,
    GATES_ONLY,
    RUN,
    STEP,
    _gru,
    _gru_candidate,
    _gru_gates,
    _lstm,
    _place,
    _previous,
    _state,
)
from lite_runtime.native.simd import (
    FMA,
    LANES,
    SHAPE,
    address,
    declare,
    device,
    emit_splat,
    f32p,
    first,
    i32p,
    kernel,
    num,
    ptr,
    splat,
    stack_floats,
    stack_words,
    vabs,
    vec,
    vload,
    vload_n,
    vmax,
    vstore,
)
from lite_runtime.steps.declaration import named
from lite_runtime.steps.qrecurrent import ByteCells

CELLS = named(ByteCells)

MOST = 256 if SHAPE.small else 2048
"""The largest number of hidden units: their bytes are on the stack."""
_PLANES = 2 * MOST // 8
_ROOM = 4 * LANES
_ONE, _ZERO = np.float32(1), np.float32(0)
_STEPS = np.float32(32767)
_I32, _I64 = ir.IntType(32), ir.IntType(64)


@intrinsic
def _store_planes(typing, value, high, low):
    """Round numbers of magnitude up to 32767, add 32768, and store their high and low bytes to two addresses."""
    sig = types.void(vec, types.int64, types.int64)

    def lower(context, builder, sig, args):
        value, high, low = args
        ends = [ir.Constant(FLOATS, [end] * LANES) for end in (-32767.0, 32767.0)]
        whole = emit_rounded(builder, value, *ends, ir.Constant(INTS, [32768] * LANES))
        emit_store_narrow(builder, builder.lshr(whole, ir.Constant(INTS, [8] * LANES)), high, 8)
        emit_store_narrow(builder, whole, low, 8)
        return context.get_dummy_value()

    return sig, lower


def _products(gates, picks):
    @intrinsic
    def products(typing, high, low, weights, blocks, words, out):
        """Store to `out` a panel's sums of products with h's bytes, in units of h's step, for the gates `picks`."""
        sig = types.void(*[types.int64] * 6)

        def lower(context, builder, sig, args):
            high, low, weights, blocks, words, out = args
            fma = declare(builder, f"llvm.{FMA}.v{LANES}f32", FLOATS, FLOATS, FLOATS, FLOATS)
            none, nothing = ir.Constant(INTS, [0] * LANES), ir.Constant(FLOATS, [0.0] * LANES)
            sums = [variable(builder, nothing) for _ in picks]
            upper, under = ([variable(builder, none) for _ in picks] for _ in range(2))
            here, a, b = variable(builder, weights), variable(builder, high), variable(builder, low)

            def onwards(pointer, by):
                builder.store(builder.add(builder.load(pointer), _I64(by)), pointer)

            with cgutils.for_range(builder, blocks, intp=_I64):
                block = builder.load(here)
                for i, gate in enumerate(picks):
                    builder.store(none, upper[i])
                    builder.store(load_ints(builder, builder.add(block, _I64(4 * LANES * (gates + gate)))), under[i])
                onwards(here, 8 * LANES * gates)
                with cgutils.for_range(builder, words, intp=_I64):
                    place = builder.load(here)
                    four = [builder.load(at(builder, builder.load(p), _I32), align=1, typ=_I32) for p in (a, b)]
                    parts = [emit_splat(builder, word, INTS) for word in four]
                    for i, gate in enumerate(picks):
                        where = at(builder, builder.add(place, _I64(4 * LANES * gate)), BYTES)
                        w = builder.load(where, align=4, typ=BYTES)
                        for part, total in zip(parts, (upper[i], under[i]), strict=True):
                            builder.store(emit_dot(builder, builder.load(total), part, w), total)
                    onwards(here, 4 * LANES * gates)
                    onwards(a, 4)
                    onwards(b, 4)
                for i, gate in enumerate(picks):
                    whole = builder.shl(builder.load(upper[i]), ir.Constant(INTS, [8] * LANES))
                    real = builder.sitofp(builder.add(whole, builder.load(under[i])), FLOATS)
                    scale = load_floats(builder, builder.add(block, _I64(4 * LANES * gate)))
                    builder.store(builder.call(fma, [real, scale, builder.load(sums[i])]), sums[i])
            for i, total in enumerate(sums):
                where = at(builder, builder.add(out, _I64(4 * LANES * i)), FLOATS)
                builder.store(builder.load(total), where, align=4)
            return context.get_dummy_value()

        return sig, lower

    return products


def _byte_products(gates, picks):
    @intrinsic
    def products(typing, bytes_at, zero, weights, blocks, words, out):
        """The same with one byte of each number: int8 less `zero`."""
        sig = types.void(*[types.int64] * 6)

        def lower(context, builder, sig, args):
            bytes_at, zero, weights, blocks, words, out = args
            fma = declare(builder, f"llvm.{FMA}.v{LANES}f32", FLOATS, FLOATS, FLOATS, FLOATS)
            sums = [variable(builder, ir.Constant(FLOATS, [0.0] * LANES)) for _ in picks]
            under = [variable(builder, ir.Constant(INTS, [0] * LANES)) for _ in picks]
            here, source = variable(builder, weights), variable(builder, bytes_at)
            middle = emit_splat(builder, builder.trunc(builder.add(zero, _I64(128)), _I32), INTS)
            lost = ir.Constant(INTS, [15] * LANES)

            def onwards(pointer, by):
                builder.store(builder.add(builder.load(pointer), _I64(by)), pointer)

            with cgutils.for_range(builder, blocks, intp=_I64):
                block = builder.load(here)
                for i, gate in enumerate(picks):
                    whole = load_ints(builder, builder.add(block, _I64(4 * LANES * (gates + gate))))
                    builder.store(builder.mul(builder.ashr(whole, lost), middle), under[i])
                onwards(here, 8 * LANES * gates)
                with cgutils.for_range(builder, words, intp=_I64):
                    place = builder.load(here)
                    four = builder.load(at(builder, builder.load(source), _I32), align=1, typ=_I32)
                    part = emit_splat(builder, builder.xor(four, _I32(0x80808080)), INTS)
                    for i, gate in enumerate(picks):
                        where = at(builder, builder.add(place, _I64(4 * LANES * gate)), BYTES)
                        w = builder.load(where, align=4, typ=BYTES)
                        builder.store(emit_dot(builder, builder.load(under[i]), part, w), under[i])
                    onwards(here, 4 * LANES * gates)
                    onwards(source, 4)
                for i, gate in enumerate(picks):
                    scale = load_floats(builder, builder.add(block, _I64(4 * LANES * gate)))
                    real = builder.sitofp(builder.load(under[i]), FLOATS)
                    builder.store(builder.call(fma, [real, scale, builder.load(sums[i])]), sums[i])
            for i, total in enumerate(sums):
                where = at(builder, builder.add(out, _I64(4 * LANES * i)), FLOATS)
                builder.store(builder.load(total), where, align=4)
            return context.get_dummy_value()

        return sig, lower

    return products


@device
def _rounded(h, hidden, scheme, high, low):
    """Store h's bytes at `low`, its zero point at `high`; return its scale."""
    least, most = extremes(h, hidden)
    _, factor, zero, scale = signed_by(scheme, least, most)
    for i in range(0, hidden, LANES):
        store_bytes(low + i, halves_away(vload_n(f32p(h + 4 * i), hidden - i) * splat(factor)), zero, LANES)
    i32p(high)[0] = np.int32(zero)
    return scale


@device
def _take_apart(h, hidden, high, low):
    """Store h's bytes to two addresses; return the size of their quantisation step."""
    largest = splat(_ONE)
    for i in range(0, hidden, LANES):
        largest = vmax(vabs(vload_n(f32p(h + 4 * i), hidden - i)), largest)
    reach = vlane0(across_max(largest))
    factor = splat(_STEPS / reach)
    for i in range(0, hidden, LANES):
        _store_planes(vload_n(f32p(h + 4 * i), hidden - i) * factor, high + i, low + i)
    return reach / _STEPS


def _sums_of(gates, picks):
    products, byte_products = _products(gates, picks), _byte_products(gates, picks)

    @device
    def sums_of(step, bases, d, p, unit, high, low, x):
        """Store a panel's sums to x; zeros if there is no h (unit 0)."""
        hidden = num(step, CELLS.hidden)
        blocks, words = num(step, CELLS.blocks), num(step, CELLS.dwords)
        size = blocks * gates * (8 * LANES + 4 * LANES * words)
        panels = (hidden + LANES - 1) // LANES
        weights = ptr(step, bases, CELLS.weights) + (d * panels + p) * size
        if unit != _ZERO and num(step, CELLS.scheme) != 0:
            byte_products(low, np.int64(i32p(high)[0]), weights, blocks, words, x)
        elif unit != _ZERO:
            products(high, low, weights, blocks, words, x)
        for i in range(len(picks)):
            place = f32p(x + 4 * LANES * i)
            vstore(place, vload(place) * splat(unit) if unit != _ZERO else splat(_ZERO))

    return sums_of


def _walk(visit):
    """A kernel's loop over its share of times, samples and panels; a sample's h is split once per time."""

    @device
    def walk(step, bases, worker, workers, half0, half1):
        planes = address(stack_words(_PLANES))
        high, low = planes, planes + MOST
        x = address(stack_floats(_ROOM))
        directions, batch = num(step, CELLS.directions), num(step, CELLS.batch)
        panels = (num(step, CELLS.hidden) + LANES - 1) // LANES
        single = num(step, CELLS.mode) == STEP
        each = panels if single else batch
        begin, end = first(directions * each, worker, workers, 1), first(directions * each, worker + 1, workers, 1)
        s0, s1, p0, p1, b0, b1 = 0, num(step, CELLS.times), 0, panels, 0, batch
        for d in range(directions):
            lo, hi = max(0, begin - d * each), min(each, end - d * each)
            if single:
                s0, p0, p1 = num(step, CELLS.time), lo, hi
                s1 = s0 + 1
            else:
                b0, b1 = lo, hi
            if lo < hi:
                for s in range(s0, s1):
                    for half in range(half0, half1):
                        for b in range(b0, b1):
                            unit = _unit(step, bases, s, d, b, half, high, low)
                            for p in range(p0, p1):
                                visit(step, bases, s, d, b, p, half, unit, high, low, x)

    return walk


@device
def _unit(step, bases, s, d, b, half, high, low):
    """Split the vector by which weights are multiplied for a sample; return its quantisation step, 0 without a vector.

    half: the half of a GRU; it keeps r * h for CANDIDATE_ONLY.
    """
    t, opening, alive = _place(step, bases, s, d, b)
    before = _previous(step, bases, t, d, b, opening) if alive else 0
    hidden = num(step, CELLS.hidden)
    unit = _ZERO
    if before != 0:
        if half == CANDIDATE_ONLY:
            before = _state(step, bases, d, b) + 4 * hidden
        scheme = num(step, CELLS.scheme)
        unit = _rounded(before, hidden, scheme, high, low) if scheme != 0 else _take_apart(before, hidden, high, low)
    return unit


_lstm_sums = _sums_of(4, (0, 1, 2, 3))


@device
def _lstm_visit(step, bases, s, d, b, p, half, unit, high, low, x):
    _lstm_sums(step, bases, d, p, unit, high, low, x)
    _lstm(step, bases, s, d, b, p, x)


_lstm_walk = _walk(_lstm_visit)


@kernel(ByteCells)
def i8_lstm(step, bases, worker, workers):
    """LSTM cells; VARIANT 1: the forget gate is 1 - i."""
    _lstm_walk(step, bases, worker, workers, 0, 1)


_gru_sums, _gru_gate_sums, _gru_candidate_sums = _sums_of(3, (0, 1, 2)), _sums_of(3, (0, 1)), _sums_of(3, (2,))


@device
def _gru_visit(step, bases, s, d, b, p, half, unit, high, low, x):
    if half == BOTH:
        _gru_sums(step, bases, d, p, unit, high, low, x)
        _gru(step, bases, s, d, b, p, x)
    elif half == GATES_ONLY:
        _gru_gate_sums(step, bases, d, p, unit, high, low, x)
        _gru_gates(step, bases, s, d, b, p, x)
    else:
        _gru_candidate_sums(step, bases, d, p, unit, high, low, x)
        _gru_candidate(step, bases, s, d, b, p, x)


_gru_walk = _walk(_gru_visit)


@kernel(ByteCells, unread=("initial_c",))
def i8_gru(step, bases, worker, workers):
    """GRU cells; a RUN with VARIANT GATES_ONLY goes through both halves of each time."""
    variant = num(step, CELLS.variant)
    last = CANDIDATE_ONLY if variant == GATES_ONLY and num(step, CELLS.mode) == RUN else variant
    _gru_walk(step, bases, worker, workers, variant, last + 1)
