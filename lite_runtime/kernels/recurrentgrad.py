"""Backpropagation through time for LSTM and GRU cells, float32, one direction at a time.

Everything that does not depend on the order of time is computed by other kernels: the gates' sums are products over all
times at once, since every hidden state is known, and so are the gradients of weights and inputs. This file has the
rest: cells forward in time, and gradients backward. Samples are independent: workers share them in groups of GROUP.

Arrays are (times, batch, ...).
"""

from __future__ import annotations

import numpy as np

from lite_runtime.kernels._vmath import vsigmoid, vtanh
from lite_runtime.native.simd import LANES, device, f32p, first, kernel, num, ptr, splat, vfma, vload_n, vstore_n
from lite_runtime.steps.declaration import named
from lite_runtime.steps.recurrentgrad import GruBack, GruGates, LstmBack, LstmCells, StatesBefore

BEFORE = named(StatesBefore)
LSTM = named(LstmCells)
LSTM_BACK = named(LstmBack)
GRU = named(GruGates)
GRU_BACK = named(GruBack)

GROUP = 4
_ZERO, _ONE = np.float32(0), np.float32(1)


@device
def _row_or_zero(at, c, live):
    """Lanes from float c on; zeros if there is no row."""
    return vload_n(f32p(at + 4 * c), live) if at != 0 else splat(_ZERO)


@device
def _add_products(a, a_step, rows, r, depth, columns, out):
    """out (rows, columns) += a (rows, depth) @ r (depth, columns), for up to GROUP rows; rows of `a` are a_step bytes
    apart, the others are dense. Each sum continues in ascending depth."""
    a1, a2, a3 = min(rows - 1, 1) * a_step, min(rows - 1, 2) * a_step, min(rows - 1, 3) * a_step
    for c in range(0, columns, LANES):
        live, to, w = columns - c, out + 4 * c, r + 4 * c
        p = vload_n(f32p(to), live)
        q = vload_n(f32p(to + min(rows - 1, 1) * 4 * columns), live)
        s = vload_n(f32p(to + min(rows - 1, 2) * 4 * columns), live)
        t = vload_n(f32p(to + min(rows - 1, 3) * 4 * columns), live)
        for k in range(depth):
            weights, here = vload_n(f32p(w + 4 * k * columns), live), a + 4 * k
            p, q = vfma(splat(f32p(here)[0]), weights, p), vfma(splat(f32p(here + a1)[0]), weights, q)
            s, t = vfma(splat(f32p(here + a2)[0]), weights, s), vfma(splat(f32p(here + a3)[0]), weights, t)
        vstore_n(f32p(to), p, live)
        if rows > 1:
            vstore_n(f32p(to + 4 * columns), q, live)
        if rows > 2:
            vstore_n(f32p(to + 8 * columns), s, live)
        if rows > 3:
            vstore_n(f32p(to + 12 * columns), t, live)


@kernel(StatesBefore)
def f32_before(step, bases, worker, workers):
    """The hidden state before each time step."""
    y, h0, before = ptr(step, bases, BEFORE.y), ptr(step, bases, BEFORE.h0), ptr(step, bases, BEFORE.before)
    times, row, backwards = (
        num(step, BEFORE.times),
        num(step, BEFORE.batch) * num(step, BEFORE.hidden),
        num(step, BEFORE.backwards),
    )
    for t in range(first(times, worker, workers, 1), first(times, worker + 1, workers, 1)):
        opening = t == times - 1 if backwards != 0 else t == 0
        source = h0 if opening else y + 4 * (t + 1 if backwards != 0 else t - 1) * num(step, BEFORE.y_time)
        for c in range(0, row, LANES):
            vstore_n(f32p(before + 4 * (t * row + c)), _row_or_zero(source, c, row - c), row - c)


# -- LSTM: gates i, o, f, c -------------------------------------------------------------------------------------------


@kernel(LstmCells, unread=("y_time",))
def f32_lstm_cells(step, bases, worker, workers):
    """Apply the activations to the gates in place, and compute the cells."""
    gates, c0, cells = ptr(step, bases, LSTM.gates), ptr(step, bases, LSTM.c0), ptr(step, bases, LSTM.cells)
    times, batch, hidden, backwards = (
        num(step, LSTM.times),
        num(step, LSTM.batch),
        num(step, LSTM.hidden),
        num(step, LSTM.backwards),
    )
    for b in range(first(batch, worker, workers, GROUP), first(batch, worker + 1, workers, GROUP)):
        kept = c0 + 4 * b * hidden if c0 != 0 else 0
        for s in range(times):
            t = times - 1 - s if backwards != 0 else s
            g, to = gates + 16 * (t * batch + b) * hidden, cells + 4 * (t * batch + b) * hidden
            for c in range(0, hidden, LANES):
                live = hidden - c
                i, o, f = f32p(g + 4 * c), f32p(g + 4 * (hidden + c)), f32p(g + 4 * (2 * hidden + c))
                n = f32p(g + 4 * (3 * hidden + c))
                let, forget, new = vsigmoid(vload_n(i, live)), vsigmoid(vload_n(f, live)), vtanh(vload_n(n, live))
                vstore_n(f32p(to + 4 * c), vfma(forget, _row_or_zero(kept, c, live), let * new), live)
                vstore_n(o, vsigmoid(vload_n(o, live)), live)
                vstore_n(i, let, live)
                vstore_n(f, forget, live)
                vstore_n(n, new, live)
            kept = to


@kernel(LstmBack)
def f32_lstm_back(step, bases, worker, workers):
    """Gradients of the gates' sums, which replace the gates, and of the first states."""
    gates, cells, c0, r = (
        ptr(step, bases, LSTM_BACK.gates),
        ptr(step, bases, LSTM_BACK.cells),
        ptr(step, bases, LSTM_BACK.c0),
        ptr(step, bases, LSTM_BACK.r),
    )
    dy, dy_h, dy_c, dh, dc = (
        ptr(step, bases, LSTM_BACK.dy),
        ptr(step, bases, LSTM_BACK.dy_h),
        ptr(step, bases, LSTM_BACK.dy_c),
        ptr(step, bases, LSTM_BACK.dh),
        ptr(step, bases, LSTM_BACK.dc),
    )
    times, batch, hidden, backwards = (
        num(step, LSTM_BACK.times),
        num(step, LSTM_BACK.batch),
        num(step, LSTM_BACK.hidden),
        num(step, LSTM_BACK.backwards),
    )
    row, one = 4 * hidden, splat(_ONE)
    lo, hi = first(batch, worker, workers, GROUP), first(batch, worker + 1, workers, GROUP)
    for b in range(lo, hi):
        for c in range(0, hidden, LANES):
            at = b * row + 4 * c
            vstore_n(f32p(dh + at), _row_or_zero(dy_h + b * row if dy_h != 0 else 0, c, hidden - c), hidden - c)
            vstore_n(f32p(dc + at), _row_or_zero(dy_c + b * row if dy_c != 0 else 0, c, hidden - c), hidden - c)
    for s in range(times - 1, -1, -1):
        t = times - 1 - s if backwards != 0 else s
        earlier = t + 1 if backwards != 0 else t - 1
        for start in range(lo, hi, GROUP):
            rows = min(GROUP, hi - start)
            for b in range(start, start + rows):
                g, now = gates + 4 * (t * batch + b) * row, cells + (t * batch + b) * row
                kept = cells + (earlier * batch + b) * row
                if s == 0:
                    kept = c0 + b * row if c0 != 0 else 0
                given = dy + 4 * t * num(step, LSTM_BACK.y_time) + b * row if dy != 0 else 0
                for c in range(0, hidden, LANES):
                    live, at = hidden - c, b * row + 4 * c
                    i, o = f32p(g + 4 * c), f32p(g + row + 4 * c)
                    f, n = f32p(g + 2 * row + 4 * c), f32p(g + 3 * row + 4 * c)
                    let, out = vload_n(i, live), vload_n(o, live)
                    forget, new = vload_n(f, live), vload_n(n, live)
                    arriving = vload_n(f32p(dh + at), live) + _row_or_zero(given, c, live)
                    shown = vtanh(vload_n(f32p(now + 4 * c), live))
                    cell = vload_n(f32p(dc + at), live) + arriving * out * (one - shown * shown)
                    vstore_n(i, cell * new * let * (one - let), live)
                    vstore_n(o, arriving * shown * out * (one - out), live)
                    vstore_n(f, cell * _row_or_zero(kept, c, live) * forget * (one - forget), live)
                    vstore_n(n, cell * let * (one - new * new), live)
                    vstore_n(f32p(dc + at), cell * forget, live)
                    vstore_n(f32p(dh + at), splat(_ZERO), live)
            a = gates + 4 * (t * batch + start) * row
            _add_products(a, 4 * row, rows, r, 4 * hidden, hidden, dh + start * row)


# -- GRU: gates z, r, h -----------------------------------------------------------------------------------------------


@kernel(GruGates, unread=("backwards", "y_time"))
def f32_gru_gates(step, bases, worker, workers):
    """Compute z and r in place, and r * h."""
    seen, past, before, met = (
        ptr(step, bases, GRU.seen),
        ptr(step, bases, GRU.past),
        ptr(step, bases, GRU.before),
        ptr(step, bases, GRU.met),
    )
    cells, hidden = num(step, GRU.times) * num(step, GRU.batch), num(step, GRU.hidden)
    for i in range(first(cells, worker, workers, 1), first(cells, worker + 1, workers, 1)):
        at = 12 * i * hidden
        for c in range(0, 2 * hidden, LANES):
            live, here = 2 * hidden - c, at + 4 * c
            total = vload_n(f32p(seen + here), live) + vload_n(f32p(past + here), live)
            vstore_n(f32p(seen + here), vsigmoid(total), live)
        if met != 0:
            for c in range(0, hidden, LANES):
                reset, kept = f32p(seen + at + 4 * (hidden + c)), f32p(before + 4 * (i * hidden + c))
                value = vload_n(reset, hidden - c) * vload_n(kept, hidden - c)
                vstore_n(f32p(met + 4 * (i * hidden + c)), value, hidden - c)


@kernel(GruBack)
def f32_gru_back(step, bases, worker, workers):
    """Gradients of the input's and the state's parts of the gates, which replace z, r, the candidate's part (`seen`)
    and `past`; and the gradient of the first state."""
    seen, past, before, r = (
        ptr(step, bases, GRU_BACK.seen),
        ptr(step, bases, GRU_BACK.past),
        ptr(step, bases, GRU_BACK.before),
        ptr(step, bases, GRU_BACK.r),
    )
    dy, dy_h, dmet, dh = (
        ptr(step, bases, GRU_BACK.dy),
        ptr(step, bases, GRU_BACK.dy_h),
        ptr(step, bases, GRU_BACK.dmet),
        ptr(step, bases, GRU_BACK.dh),
    )
    times, batch, hidden, backwards = (
        num(step, GRU_BACK.times),
        num(step, GRU_BACK.batch),
        num(step, GRU_BACK.hidden),
        num(step, GRU_BACK.backwards),
    )
    late = num(step, GRU_BACK.late) != 0
    row, one = 4 * hidden, splat(_ONE)
    lo, hi = first(batch, worker, workers, GROUP), first(batch, worker + 1, workers, GROUP)
    for b in range(lo, hi):
        for c in range(0, hidden, LANES):
            at = b * row + 4 * c
            vstore_n(f32p(dh + at), _row_or_zero(dy_h + b * row if dy_h != 0 else 0, c, hidden - c), hidden - c)
    for s in range(times - 1, -1, -1):
        t = times - 1 - s if backwards != 0 else s
        for start in range(lo, hi, GROUP):
            rows = min(GROUP, hi - start)
            for b in range(start, start + rows):
                g, p, kept = 3 * (t * batch + b) * row + seen, 3 * (t * batch + b) * row + past, (t * batch + b) * row
                given = dy + 4 * t * num(step, GRU_BACK.y_time) + b * row if dy != 0 else 0
                for c in range(0, hidden, LANES):
                    live, at = hidden - c, b * row + 4 * c
                    update, reset = vload_n(f32p(g + 4 * c), live), vload_n(f32p(g + row + 4 * c), live)
                    share, state = vload_n(f32p(p + 2 * row + 4 * c), live), vload_n(f32p(before + kept + 4 * c), live)
                    candidate = vload_n(f32p(g + 2 * row + 4 * c), live)
                    new = vtanh(candidate + (share * reset if late else share))
                    arriving = vload_n(f32p(dh + at), live) + _row_or_zero(given, c, live)
                    changed = arriving * (one - update) * (one - new * new)
                    vstore_n(f32p(g + 4 * c), arriving * (state - new) * update * (one - update), live)
                    vstore_n(f32p(g + 2 * row + 4 * c), changed, live)
                    vstore_n(f32p(p + 2 * row + 4 * c), changed * reset if late else changed, live)
                    vstore_n(f32p(dh + at), arriving * update, live)
                    vstore_n(f32p(dmet + at), changed * share if late else splat(_ZERO), live)
            first_row = 3 * (t * batch + start) * row
            if not late:
                a = past + first_row + 2 * row
                _add_products(a, 3 * row, rows, r + 2 * hidden * row, hidden, hidden, dmet + start * row)
            for b in range(start, start + rows):
                g, p, kept = 3 * (t * batch + b) * row + seen, 3 * (t * batch + b) * row + past, (t * batch + b) * row
                for c in range(0, hidden, LANES):
                    live, at = hidden - c, b * row + 4 * c
                    reset, met = vload_n(f32p(g + row + 4 * c), live), vload_n(f32p(dmet + at), live)
                    turned = met * reset * (one - reset)
                    if not late:
                        turned = turned * vload_n(f32p(before + kept + 4 * c), live)
                        vstore_n(f32p(dh + at), vfma(met, reset, vload_n(f32p(dh + at), live)), live)
                    vstore_n(f32p(g + row + 4 * c), turned, live)
                    vstore_n(f32p(p + row + 4 * c), turned, live)
                    vstore_n(f32p(p + 4 * c), vload_n(f32p(g + 4 * c), live), live)
            depth = 3 * hidden if late else 2 * hidden
            _add_products(past + first_row, 3 * row, rows, r, depth, hidden, dh + start * row)
