"""LSTM, GRU and RNN cells of float32.

Hidden units are processed LANES at a time, all gates of a unit group (panel) together: recurrent weights,
`[panels][hidden][gates][LANES]`, are read once, and the gates are combined in registers, so that a cell only writes its
state. The input's part of the gates is one product over all times, computed before (`f32_project`).

A step is either one time (`mode` STEP: workers share panels, and the planner puts barriers between times) or the whole
sequence (`mode` RUN: workers share samples and directions). GROUP neighbouring samples share each load of the weights;
a single sample uses several chains of sums, each over every second or fourth hidden unit, which are added at the end.
Which of these is used depends on batch and lengths. Results are bit-identical in both modes and for any number of
workers.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from lite_runtime.kernels._vmath import vsigmoid, vtanh
from lite_runtime.native.simd import (
    FMA,
    LANES,
    SHAPE,
    address,
    declare,
    device,
    emit_load,
    emit_splat,
    emit_store,
    f32p,
    first,
    i32p,
    kernel,
    num,
    ptr,
    real,
    splat,
    stack_floats,
    stack_words,
    vfma,
    vload,
    vload_n,
    vmax,
    vmin,
    vstore,
    vstore_n,
)
from lite_runtime.steps.declaration import named
from lite_runtime.steps.recurrent import FinalStates, FloatCells, Project

PROJECT = named(Project)
CELLS = named(FloatCells)
FINAL = named(FinalStates)

STEP, RUN = 0, 1
GROUP = 4
"""Samples that are processed together."""
_SUMS = 16 if SHAPE.vectors == 32 else 12
"""Registers for sums, of 32 or 16."""
TOGETHER = 3 if SHAPE.fused else 2
"""Rows of the input's share at a time: where products are not fused, 3 rows need more than 16 registers."""
_CHAINED = 12
"""The same for choosing how many chains a sum has: its order, and with it its bits, must not depend on the target."""
_ROOM = GROUP * 4 * LANES
_F32, _I64 = ir.FloatType(), ir.IntType(64)
_VEC = ir.VectorType(_F32, LANES)
_WORDS = types.CPointer(types.int64)
_ZERO, _ONE = np.float32(0), np.float32(1)


# -- the input's share: out[rows][panels * 4 * LANES] = x[rows][inputs] @ packed + bias -------------------------------


@device
def _project_rows(x, w, bias, out, inputs, x_row, out_row, rows):
    """Up to three rows by one panel; those beyond `rows` repeat the first one and are not stored."""
    x1, x2 = (x + x_row if rows > 1 else x), (x + 2 * x_row if rows > 2 else x)
    a0, a1 = vload(f32p(bias)), vload(f32p(bias + 4 * LANES))
    a2, a3 = vload(f32p(bias + 8 * LANES)), vload(f32p(bias + 12 * LANES))
    b0, b1, b2, b3 = a0, a1, a2, a3
    c0, c1, c2, c3 = a0, a1, a2, a3
    p, q, r = f32p(x), f32p(x1), f32p(x2)
    for k in range(inputs):
        w0, w1 = vload(f32p(w)), vload(f32p(w + 4 * LANES))
        w2, w3 = vload(f32p(w + 8 * LANES)), vload(f32p(w + 12 * LANES))
        w += 16 * LANES
        a, b, c = splat(p[k]), splat(q[k]), splat(r[k])
        a0, a1, a2, a3 = vfma(a, w0, a0), vfma(a, w1, a1), vfma(a, w2, a2), vfma(a, w3, a3)
        b0, b1, b2, b3 = vfma(b, w0, b0), vfma(b, w1, b1), vfma(b, w2, b2), vfma(b, w3, b3)
        c0, c1, c2, c3 = vfma(c, w0, c0), vfma(c, w1, c1), vfma(c, w2, c2), vfma(c, w3, c3)
    _store4(out, a0, a1, a2, a3)
    if rows > 1:
        _store4(out + out_row, b0, b1, b2, b3)
    if rows > 2:
        _store4(out + 2 * out_row, c0, c1, c2, c3)


@device
def _project_two(x, w, bias, out, inputs, x_row, out_row):
    """Two rows by one panel."""
    a0, a1 = vload(f32p(bias)), vload(f32p(bias + 4 * LANES))
    a2, a3 = vload(f32p(bias + 8 * LANES)), vload(f32p(bias + 12 * LANES))
    b0, b1, b2, b3 = a0, a1, a2, a3
    p, q = f32p(x), f32p(x + x_row)
    for k in range(inputs):
        w0, w1 = vload(f32p(w)), vload(f32p(w + 4 * LANES))
        w2, w3 = vload(f32p(w + 8 * LANES)), vload(f32p(w + 12 * LANES))
        w += 16 * LANES
        a, b = splat(p[k]), splat(q[k])
        a0, a1, a2, a3 = vfma(a, w0, a0), vfma(a, w1, a1), vfma(a, w2, a2), vfma(a, w3, a3)
        b0, b1, b2, b3 = vfma(b, w0, b0), vfma(b, w1, b1), vfma(b, w2, b2), vfma(b, w3, b3)
    _store4(out, a0, a1, a2, a3)
    _store4(out + out_row, b0, b1, b2, b3)


@device
def _project_row(x, w, bias, out, inputs):
    """One row by one panel."""
    a0, a1 = vload(f32p(bias)), vload(f32p(bias + 4 * LANES))
    a2, a3 = vload(f32p(bias + 8 * LANES)), vload(f32p(bias + 12 * LANES))
    p = f32p(x)
    for k in range(inputs):
        a = splat(p[k])
        a0, a1 = vfma(a, vload(f32p(w)), a0), vfma(a, vload(f32p(w + 4 * LANES)), a1)
        a2, a3 = vfma(a, vload(f32p(w + 8 * LANES)), a2), vfma(a, vload(f32p(w + 12 * LANES)), a3)
        w += 16 * LANES
    _store4(out, a0, a1, a2, a3)


@device
def _store4(out, a, b, c, d):
    vstore(f32p(out), a)
    vstore(f32p(out + 4 * LANES), b)
    vstore(f32p(out + 8 * LANES), c)
    vstore(f32p(out + 12 * LANES), d)


@kernel(Project)
def f32_project(step, bases, worker, workers):
    """TOGETHER rows at a time, panel by panel."""
    x, w, bias, out = (
        ptr(step, bases, PROJECT.x),
        ptr(step, bases, PROJECT.w),
        ptr(step, bases, PROJECT.bias),
        ptr(step, bases, PROJECT.out),
    )
    rows, inputs, panels = num(step, PROJECT.rows), num(step, PROJECT.inputs), num(step, PROJECT.panels)
    width = 16 * LANES
    blocks = (rows + TOGETHER - 1) // TOGETHER
    for item in range(first(panels * blocks, worker, workers, 1), first(panels * blocks, worker + 1, workers, 1)):
        panel, block = item // blocks, item % blocks
        row = TOGETHER * block
        weights = w + panel * inputs * width
        xs = x + 4 * row * inputs
        ys = out + (row * panels + panel) * width
        left = rows - row
        if left == 1:
            _project_row(xs, weights, bias + panel * width, ys, inputs)
        elif TOGETHER == 2:
            _project_two(xs, weights, bias + panel * width, ys, inputs, 4 * inputs, panels * width)
        else:
            _project_rows(xs, weights, bias + panel * width, ys, inputs, 4 * inputs, panels * width, left)


# -- where a cell stands ----------------------------------------------------------------------------------------------


@device
def _length(step, bases, b):
    """Number of times of sample b: its length, limited to the sequence."""
    times = num(step, CELLS.times)
    lengths = ptr(step, bases, CELLS.lengths)
    if lengths == 0:
        return times
    return max(0, min(times, np.int64(i32p(lengths + 4 * b)[0])))


@device
def _backwards(step, d):
    """Whether direction d runs backwards."""
    return d == 1 or num(step, CELLS.backwards) != 0


@device
def _history(step, bases, t, d, b):
    return ptr(step, bases, CELLS.history) + 4 * (
        t * num(step, CELLS.y_time) + d * num(step, CELLS.y_direction) + b * num(step, CELLS.y_batch)
    )


@device
def _initial(step, at, d, b):
    """Address of a row of the initial state at `at`; 0 if there is none."""
    if at == 0:
        return 0
    return at + 4 * (d * num(step, CELLS.i_direction) + b * num(step, CELLS.i_batch))


@device
def _state(step, bases, d, b):
    return ptr(step, bases, CELLS.state) + 4 * (d * num(step, CELLS.s_direction) + b * num(step, CELLS.s_batch))


@device
def _place(step, bases, s, d, b):
    """(t, whether this is the sample's first time, whether it is within its length) at the s-th step of direction d."""
    times = num(step, CELLS.times)
    length = _length(step, bases, b)
    if _backwards(step, d):
        t = times - 1 - s
        return t, t == length - 1, t < length
    return s, s == 0, s < length


@device
def _previous(step, bases, t, d, b, opening):
    """Address of h of the previous step; 0 if that h is all zeros."""
    if opening:
        return _initial(step, ptr(step, bases, CELLS.initial_h), d, b)
    return _history(step, bases, t + 1 if _backwards(step, d) else t - 1, d, b)


@device
def _gates_at(step, bases, t, d, b, p, gates):
    row = t * num(step, CELLS.x_time) + b * num(step, CELLS.x_batch)
    panels = (num(step, CELLS.hidden) + LANES - 1) // LANES
    return ptr(step, bases, CELLS.gates) + 4 * (row * num(step, CELLS.row) + (d * panels + p) * gates * LANES)


@device
def _weights_at(step, bases, d, p, gates):
    hidden = num(step, CELLS.hidden)
    panels = (hidden + LANES - 1) // LANES
    return ptr(step, bases, CELLS.weights) + 4 * (d * panels + p) * hidden * gates * LANES


@device
def _row_or_zero(at, p, width):
    """A panel's lanes of a state row; zeros if there is none."""
    if at == 0:
        return splat(_ZERO)
    return vload_n(f32p(at + 4 * p * LANES), width)


@device
def _held(v, clip):
    """Limit to [-clip, clip]; an infinite clip changes nothing."""
    return vmin(splat(clip), vmax(splat(-clip), v))


# -- h times a panel's weights ----------------------------------------------------------------------------------------


def _products(rows, picks, stride, chains):
    @intrinsic
    def products(typing, at, weights, hidden, out):
        """out [rows][picks][LANES] = h @ weights; at: address of h, or of a list of addresses if there are several
        rows; weights [hidden][stride][LANES], of which the gates `picks` are used. Each sum is split into `chains`
        chains, each over every chains-th unit."""
        sig = types.void(*[types.int64] * 4)

        def lower(context, builder, sig, args):
            at, weights, hidden, out = args
            fma = declare(builder, f"llvm.{FMA}.v{LANES}f32", _VEC, _VEC, _VEC, _VEC)
            zero = ir.Constant(_VEC, [0.0] * LANES)
            bases = [at]
            if rows > 1:
                listed = builder.inttoptr(at, _I64.as_pointer())
                bases = [builder.load(builder.gep(listed, [_I64(i)])) for i in range(rows)]
            sums = [[[cgutils.alloca_once(builder, _VEC) for _ in picks] for _ in bases] for _ in range(chains)]
            for one in (one for chain in sums for row in chain for one in row):
                builder.store(zero, one)
            here = cgutils.alloca_once_value(builder, weights)

            def times(k, chain):
                place = builder.load(here)
                columns = [emit_load(builder, _pointer(builder, place, 4 * LANES * pick)) for pick in picks]
                for base, row in zip(bases, chain, strict=True):
                    h = builder.load(_pointer(builder, builder.add(base, builder.mul(k, _I64(4)))), typ=_F32)
                    many = emit_splat(builder, h)
                    for column, total in zip(columns, row, strict=True):
                        builder.store(builder.call(fma, [many, column, builder.load(total)]), total)
                builder.store(builder.add(place, _I64(4 * LANES * stride)), here)

            whole = builder.udiv(hidden, _I64(chains))
            with cgutils.for_range(builder, whole, intp=_I64) as loop:
                start = builder.mul(loop.index, _I64(chains))
                for i, chain in enumerate(sums):
                    times(builder.add(start, _I64(i)), chain)
            with cgutils.for_range(builder, builder.urem(hidden, _I64(chains)), intp=_I64) as loop:
                times(builder.add(builder.mul(whole, _I64(chains)), loop.index), sums[0])
            for i in range(rows):
                for j in range(len(picks)):
                    parts = [builder.load(chain[i][j]) for chain in sums]
                    while len(parts) > 1:
                        parts = [builder.fadd(a, b) for a, b in zip(parts[::2], parts[1::2], strict=True)]
                    emit_store(builder, parts[0], _pointer(builder, out, 4 * LANES * (i * len(picks) + j)))
            return context.get_dummy_value()

        return sig, lower

    return products


def _pointer(builder, where, offset=0):
    return builder.inttoptr(builder.add(where, _I64(offset)), _F32.as_pointer())


def _sums_of(picks, stride, chains):
    """The gates' sums of GROUP samples from their previous h; a single sample uses more chains instead of more rows."""
    gates = len(picks)
    rows = GROUP if GROUP * gates <= _SUMS else GROUP // 2
    together = 1 << max(1, _CHAINED // (rows * gates)).bit_length() - 1
    one, some = _products(1, picks, stride, chains), _products(rows, picks, stride, together)

    @device
    def sums_of_one(step, bases, s, d, b, p, second, x):
        t, opening, alive = _place(step, bases, s, d, b)
        before = _previous(step, bases, t, d, b, opening) if alive else 0
        hidden = num(step, CELLS.hidden)
        if before != 0:
            if second != 0:
                before = _state(step, bases, d, b) + 4 * hidden
            one(before, _weights_at(step, bases, d, p, stride), hidden, x)
        else:
            for j in range(gates):
                vstore(f32p(x + 4 * LANES * j), splat(_ZERO))

    @device
    def sums_of(step, bases, s, d, b, count, p, second, at, sums):
        """Store the sums of `count` samples from b on to `sums` [count][gates][LANES]; zeros if there is no previous h.
        second: use r * h, which a GRU keeps, instead of h. at: memory for addresses."""
        there = 0
        if count > 2:
            for i in range(count):
                t, opening, alive = _place(step, bases, s, d, b + i)
                before = _previous(step, bases, t, d, b + i, opening) if alive else 0
                if before != 0:
                    there += 1
                    if second != 0:
                        before = _state(step, bases, d, b + i) + 4 * num(step, CELLS.hidden)
                at[i] = before
            for i in range(count, GROUP):
                at[i] = at[count - 1]
        if there != 0 and there == count:
            weights = _weights_at(step, bases, d, p, stride)
            for i in range(0, count, rows):
                x = sums + 4 * LANES * gates * i
                some(address(at) + 8 * i, weights, num(step, CELLS.hidden), x)
        else:
            for i in range(count):
                sums_of_one(step, bases, s, d, b + i, p, second, sums + 4 * LANES * gates * i)

    return sums_of


def _walk(visit):
    """A kernel's loop over its share of times, samples and panels."""

    @device
    def walk(step, bases, worker, workers, half0, half1):
        at, sums = stack_words(GROUP), address(stack_floats(_ROOM))
        batch = num(step, CELLS.batch)
        panels = (num(step, CELLS.hidden) + LANES - 1) // LANES
        s0, s1, p0, p1, b0, b1 = 0, num(step, CELLS.times), 0, panels, 0, batch
        single = num(step, CELLS.mode) == STEP
        each = panels if single else (batch + GROUP - 1) // GROUP
        items = num(step, CELLS.directions) * each
        for item in range(first(items, worker, workers, 1), first(items, worker + 1, workers, 1)):
            d, rest = item // each, item % each
            if single:
                s0, p0 = num(step, CELLS.time), rest
                s1, p1 = s0 + 1, rest + 1
            else:
                b0 = rest * GROUP
                b1 = min(batch, b0 + GROUP)
            for s in range(s0, s1):
                for half in range(half0, half1):
                    for p in range(p0, p1):
                        for b in range(b0, b1, GROUP):
                            visit(step, bases, s, d, b, min(GROUP, b1 - b), p, half, at, sums)

    return walk


# -- LSTM: gates i, o, f, c -------------------------------------------------------------------------------------------


@device
def _lstm(step, bases, s, d, b, p, x):
    hidden, clip = num(step, CELLS.hidden), real(step, CELLS.clip)
    width = min(hidden - p * LANES, LANES)
    t, opening, alive = _place(step, bases, s, d, b)
    y = f32p(_history(step, bases, t, d, b) + 4 * p * LANES)
    if not alive:
        vstore_n(y, splat(_ZERO), width)
        return
    g = _gates_at(step, bases, t, d, b, p, 4)
    i, o = vload(f32p(g)) + vload(f32p(x)), vload(f32p(g + 4 * LANES)) + vload(f32p(x + 4 * LANES))
    f = vload(f32p(g + 8 * LANES)) + vload(f32p(x + 8 * LANES))
    c = vload(f32p(g + 12 * LANES)) + vload(f32p(x + 12 * LANES))
    state = _state(step, bases, d, b)
    kept = _row_or_zero(_initial(step, ptr(step, bases, CELLS.initial_c), d, b) if opening else state, p, width)
    panels = (hidden + LANES - 1) // LANES
    holes = ptr(step, bases, CELLS.extra)
    if holes != 0:
        holes += 4 * (d * panels + p) * 3 * LANES
        i = vfma(vload(f32p(holes)), kept, i)
        f = vfma(vload(f32p(holes + 8 * LANES)), kept, f)
    i = vsigmoid(_held(i, clip))
    f = splat(_ONE) - i if num(step, CELLS.variant) != 0 else vsigmoid(_held(f, clip))
    cell = vfma(f, kept, i * vtanh(_held(c, clip)))
    if holes != 0:
        o = vfma(vload(f32p(holes + 4 * LANES)), cell, o)
    vstore_n(f32p(state + 4 * p * LANES), cell, width)
    vstore_n(y, vsigmoid(_held(o, clip)) * vtanh(cell), width)


_lstm_sums = _sums_of((0, 1, 2, 3), 4, 2)


@device
def _lstm_visit(step, bases, s, d, b, count, p, half, at, sums):
    _lstm_sums(step, bases, s, d, b, count, p, 0, at, sums)
    for i in range(count):
        _lstm(step, bases, s, d, b + i, p, sums + 16 * LANES * i)


_lstm_walk = _walk(_lstm_visit)


@kernel(FloatCells)
def f32_lstm(step, bases, worker, workers):
    """LSTM cells; VARIANT 1: the forget gate is 1 - i."""
    _lstm_walk(step, bases, worker, workers, 0, 1)


# -- GRU: gates z, r, h -----------------------------------------------------------------------------------------------

BOTH, GATES_ONLY, CANDIDATE_ONLY = 0, 1, 2
"""VARIANT of a GRU: with linear_before_reset both halves of a time at once; without, one after the other."""


@device
def _gru(step, bases, s, d, b, p, x):
    """A cell with linear_before_reset: n = tanh(input + r * (h R + bias))."""
    hidden, clip = num(step, CELLS.hidden), real(step, CELLS.clip)
    width = min(hidden - p * LANES, LANES)
    t, opening, alive = _place(step, bases, s, d, b)
    y = f32p(_history(step, bases, t, d, b) + 4 * p * LANES)
    if not alive:
        vstore_n(y, splat(_ZERO), width)
        return
    g = _gates_at(step, bases, t, d, b, p, 3)
    panels = (hidden + LANES - 1) // LANES
    past = vload(f32p(x + 8 * LANES))
    if ptr(step, bases, CELLS.extra) != 0:
        past = past + vload(f32p(ptr(step, bases, CELLS.extra) + 4 * (d * panels + p) * LANES))
    z = vsigmoid(_held(vload(f32p(g)) + vload(f32p(x)), clip))
    r = vsigmoid(_held(vload(f32p(g + 4 * LANES)) + vload(f32p(x + 4 * LANES)), clip))
    n = vtanh(_held(vfma(r, past, vload(f32p(g + 8 * LANES))), clip))
    kept = _row_or_zero(_previous(step, bases, t, d, b, opening), p, width)
    vstore_n(y, vfma(z, kept, (splat(_ONE) - z) * n), width)


@device
def _gru_gates(step, bases, s, d, b, p, x):
    """First half of a cell without linear_before_reset: z and r * h, kept in `state`."""
    hidden, clip = num(step, CELLS.hidden), real(step, CELLS.clip)
    width = min(hidden - p * LANES, LANES)
    t, opening, alive = _place(step, bases, s, d, b)
    if not alive:
        return
    g = _gates_at(step, bases, t, d, b, p, 3)
    state = _state(step, bases, d, b) + 4 * p * LANES
    z = vsigmoid(_held(vload(f32p(g)) + vload(f32p(x)), clip))
    r = vsigmoid(_held(vload(f32p(g + 4 * LANES)) + vload(f32p(x + 4 * LANES)), clip))
    vstore_n(f32p(state), z, width)
    kept = _row_or_zero(_previous(step, bases, t, d, b, opening), p, width)
    vstore_n(f32p(state + 4 * hidden), r * kept, width)


@device
def _gru_candidate(step, bases, s, d, b, p, x):
    """Second half: n = tanh(input + (r * h) R), and the combination with h."""
    hidden, clip = num(step, CELLS.hidden), real(step, CELLS.clip)
    width = min(hidden - p * LANES, LANES)
    t, opening, alive = _place(step, bases, s, d, b)
    y = f32p(_history(step, bases, t, d, b) + 4 * p * LANES)
    if not alive:
        vstore_n(y, splat(_ZERO), width)
        return
    g = _gates_at(step, bases, t, d, b, p, 3)
    n = vtanh(_held(vload(f32p(g + 8 * LANES)) + vload(f32p(x)), clip))
    z = vload_n(f32p(_state(step, bases, d, b) + 4 * p * LANES), width)
    kept = _row_or_zero(_previous(step, bases, t, d, b, opening), p, width)
    vstore_n(y, vfma(z, kept, (splat(_ONE) - z) * n), width)


_gru_sums, _gru_gate_sums, _gru_candidate_sums = _sums_of((0, 1, 2), 3, 2), _sums_of((0, 1), 3, 2), _sums_of((2,), 3, 4)


@device
def _gru_visit(step, bases, s, d, b, count, p, half, at, sums):
    if half == BOTH:
        _gru_sums(step, bases, s, d, b, count, p, 0, at, sums)
        for i in range(count):
            _gru(step, bases, s, d, b + i, p, sums + 12 * LANES * i)
    elif half == GATES_ONLY:
        _gru_gate_sums(step, bases, s, d, b, count, p, 0, at, sums)
        for i in range(count):
            _gru_gates(step, bases, s, d, b + i, p, sums + 8 * LANES * i)
    else:
        _gru_candidate_sums(step, bases, s, d, b, count, p, 1, at, sums)
        for i in range(count):
            _gru_candidate(step, bases, s, d, b + i, p, sums + 4 * LANES * i)


_gru_walk = _walk(_gru_visit)


@kernel(FloatCells, unread=("initial_c",))
def f32_gru(step, bases, worker, workers):
    """GRU cells; a RUN with VARIANT GATES_ONLY goes through both halves of each time."""
    variant = num(step, CELLS.variant)
    last = CANDIDATE_ONLY if variant == GATES_ONLY and num(step, CELLS.mode) == RUN else variant
    _gru_walk(step, bases, worker, workers, variant, last + 1)


# -- RNN --------------------------------------------------------------------------------------------------------------


@device
def _rnn(step, bases, s, d, b, p, x):
    hidden, clip = num(step, CELLS.hidden), real(step, CELLS.clip)
    t, _, alive = _place(step, bases, s, d, b)
    v = splat(_ZERO)
    if alive:
        v = _held(vload(f32p(_gates_at(step, bases, t, d, b, p, 1))) + vload(f32p(x)), clip)
        v = vmax(v, splat(_ZERO)) if num(step, CELLS.variant) != 0 else vtanh(v)
    vstore_n(f32p(_history(step, bases, t, d, b) + 4 * p * LANES), v, hidden - p * LANES)


_rnn_sums = _sums_of((0,), 1, 4)


@device
def _rnn_visit(step, bases, s, d, b, count, p, half, at, sums):
    _rnn_sums(step, bases, s, d, b, count, p, 0, at, sums)
    for i in range(count):
        _rnn(step, bases, s, d, b + i, p, sums + 4 * LANES * i)


_rnn_walk = _walk(_rnn_visit)


@kernel(FloatCells, unread=("extra", "initial_c"))
def f32_rnn(step, bases, worker, workers):
    """RNN cells: tanh; VARIANT 1: Relu."""
    _rnn_walk(step, bases, worker, workers, 0, 1)


# -- final states -----------------------------------------------------------------------------------------------------


@device
def _copy_or_zero(to, source, n):
    for i in range(0, n, LANES):
        v = splat(_ZERO)
        if source != 0:
            v = vload_n(f32p(source + 4 * i), n - i)
        vstore_n(f32p(to + 4 * i), v, n - i)


_OF_CELLS = "extra state mode time row x_time x_batch s_direction s_batch variant clip".split()
"""Words of a step that only cells read."""


@kernel(FinalStates, unread=_OF_CELLS)
def f32_final(step, bases, worker, workers):
    """Final h, and final c of samples of length 0; either may be absent."""
    hidden, batch = num(step, FINAL.hidden), num(step, FINAL.batch)
    final_h, final_c = ptr(step, bases, FINAL.final_h), ptr(step, bases, FINAL.final_c)
    for d in range(num(step, FINAL.directions)):
        for b in range(batch):
            length = _length(step, bases, b)
            at = 4 * (d * num(step, FINAL.i_direction) + b * num(step, FINAL.i_batch))
            if final_h != 0:
                source = _initial(step, ptr(step, bases, CELLS.initial_h), d, b)
                if length > 0:
                    source = _history(step, bases, 0 if _backwards(step, d) else length - 1, d, b)
                _copy_or_zero(final_h + at, source, hidden)
            if final_c != 0 and length == 0:
                _copy_or_zero(final_c + at, _initial(step, ptr(step, bases, CELLS.initial_c), d, b), hidden)
