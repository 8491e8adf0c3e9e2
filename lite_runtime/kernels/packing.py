"""Weights that a run computes, put into the order kernels read: what `ops/_panels.py` and NumPy do for constants.

One step serves convolutions (dense, grouped, depthwise), their gradients to the input, whose taps run backwards, and
what a transposed convolution spreads: they differ in the strides alone.
"""

from __future__ import annotations

from numba import float32

from lite_runtime.native.simd import LANES, address, f32p, kernel, num, ptr, splat, stack_floats, vfma, vload, vstore

_TAPS, _HALF = 9 * LANES, 18 * LANES


@kernel()
def f32_panels(step, bases, worker, workers):
    """w -> [groups][panels][outer][inner][columns of the panel], zeros behind the last column. Operands w, packed.

    numbers: 0 groups, 1 columns a group, 2 outer, 3 inner, 4 vectors of a full panel, 5 byte of the first weight, bytes
    between 6 groups, 7 columns, 8 runs of columns, 9 columns in a run, 10 outer, 11 inner, 12 packed bytes a group.
    Column c of a group lies at (c // run) * its step + (c % run) * its step.
    """
    ops = 2
    w, packed = ptr(step, bases, 0) + num(step, ops, 5), ptr(step, bases, 1)
    groups, columns, outer, inner = num(step, ops, 0), num(step, ops, 1), num(step, ops, 2), num(step, ops, 3)
    width = num(step, ops, 4) * LANES
    group_step, column_step, run_step, run = num(step, ops, 6), num(step, ops, 7), num(step, ops, 8), num(step, ops, 9)
    outer_step, inner_step, packed_step = num(step, ops, 10), num(step, ops, 11), num(step, ops, 12)
    panels = (columns + width - 1) // width
    for job in range(groups * panels * worker // workers, groups * panels * (worker + 1) // workers):
        group = job // panels
        column = (job - group * panels) * width
        live = min(width, columns - column)
        padded = (live + LANES - 1) // LANES * LANES
        target = packed + group * packed_step + column * outer * inner * 4
        for i in range(outer):
            for j in range(inner):
                row = f32p(target + 4 * (i * inner + j) * padded)
                c, inside = 0, column % run
                here = w + group * group_step + i * outer_step + j * inner_step + column // run * run_step
                while c < live:
                    for at in range(min(run - inside, live - c)):
                        row[c + at] = f32p(here + (inside + at) * column_step)[0]
                    c += run - inside
                    inside = 0
                    here += run_step
                for c in range(live, padded):
                    row[c] = float32(0)


@kernel()
def f32_winograd(step, bases, worker, workers):
    """3x3 filters at Winograd's points: G w G^T, as kernels/winograd.py reads it. Operands w, G (m + 2, 3), packed
    [panels][points][channels rounded up to LANES][columns of the panel], zeros behind the last channel and column.

    numbers: 0 m, 1 columns, 2 channels, 3 vectors of a full panel, 4 byte of the first weight, bytes between
    5 columns, 6 channels, 7 taps.
    """
    ops = 3
    w, g, packed = ptr(step, bases, 0) + num(step, ops, 4), f32p(ptr(step, bases, 1)), ptr(step, bases, 2)
    side, columns, channels = num(step, ops, 0) + 2, num(step, ops, 1), num(step, ops, 2)
    column_step, channel_step, tap_step = num(step, ops, 5), num(step, ops, 6), num(step, ops, 7)
    vectors, depth = (columns + LANES - 1) // LANES, (channels + LANES - 1) // LANES * LANES
    full, points = num(step, ops, 3), side * side
    taps, half = address(stack_floats(_TAPS)), address(stack_floats(_HALF))
    vector = 4 * LANES
    for job in range(vectors * depth * worker // workers, vectors * depth * (worker + 1) // workers):
        at, channel = job // depth, job % depth
        panel = at // full
        width = min(full, vectors - panel * full) * LANES
        to = packed + 4 * (panel * full * LANES * points * depth + channel * width + (at - panel * full) * LANES)
        live = min(LANES, columns - at * LANES) if channel < channels else 0
        for tap in range(9):
            row, here = f32p(taps + tap * vector), w + at * LANES * column_step + channel * channel_step
            for c in range(live):
                row[c] = f32p(here + tap * tap_step + c * column_step)[0]
            for c in range(live, LANES):
                row[c] = float32(0)
        for i in range(side):
            for j in range(3):
                total = vload(f32p(taps + j * vector)) * splat(g[3 * i])
                total = vfma(vload(f32p(taps + (3 + j) * vector)), splat(g[3 * i + 1]), total)
                total = vfma(vload(f32p(taps + (6 + j) * vector)), splat(g[3 * i + 2]), total)
                vstore(f32p(half + (3 * i + j) * vector), total)
        for i in range(side):
            for j in range(side):
                total = vload(f32p(half + 3 * i * vector)) * splat(g[3 * j])
                total = vfma(vload(f32p(half + (3 * i + 1) * vector)), splat(g[3 * j + 1]), total)
                total = vfma(vload(f32p(half + (3 * i + 2) * vector)), splat(g[3 * j + 2]), total)
                vstore(f32p(to + 4 * (i * side + j) * depth * width), total)


@kernel()
def f32_recurrent(step, bases, worker, workers):
    """Weights of recurrent cells, unit by unit with all gates together, as kernels/recurrent.py reads them. Operands w,
    packed [blocks][inner][columns of a block], zeros behind the last unit of a panel of LANES and the last column.

    Columns are ordered direction, panel, gate, lane. numbers: 0 directions, 1 gates, 2 units, 3 inner, 4 columns a
    block, 5 blocks, 6 byte of the first weight, bytes between 7 directions, 8 gates, 9 units, 10 inner, 11 byte from a
    weight to another that is added to it (0: none), but 12 not in this gate.
    """
    ops = 2
    w, packed = ptr(step, bases, 0) + num(step, ops, 6), ptr(step, bases, 1)
    directions, gates, units, inner = num(step, ops, 0), num(step, ops, 1), num(step, ops, 2), num(step, ops, 3)
    block, blocks = num(step, ops, 4), num(step, ops, 5)
    direction_step, gate_step, unit_step = num(step, ops, 7), num(step, ops, 8), num(step, ops, 9)
    inner_step, second, alone = num(step, ops, 10), num(step, ops, 11), num(step, ops, 12)
    panels = (units + LANES - 1) // LANES
    vectors = block // LANES
    for job in range(blocks * vectors * worker // workers, blocks * vectors * (worker + 1) // workers):
        gate, rest = job % gates, job // gates
        panel, direction = rest % panels, rest // panels
        live = min(LANES, units - panel * LANES) if direction < directions else 0
        here = w + direction * direction_step + gate * gate_step + panel * LANES * unit_step
        to = packed + 4 * (job // vectors * inner * block + job % vectors * LANES)
        both = second != 0 and gate != alone
        for k in range(inner):
            row, source = f32p(to + 4 * k * block), here + k * inner_step
            for i in range(live):
                row[i] = f32p(source + i * unit_step)[0]
                if both:
                    row[i] += f32p(source + i * unit_step + second)[0]
            for i in range(live, LANES):
                row[i] = float32(0)
