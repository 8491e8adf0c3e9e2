"""Packing of weights that a run computes into the layout of kernels; for constants `ops/_panels.py` and NumPy do it.

One step serves convolutions (dense, grouped, depthwise), their gradients with respect to the input, whose taps are
reversed, and transposed convolutions: they differ only in the strides.
"""

from __future__ import annotations

from numba import float32

from lite_runtime.native.simd import LANES, address, f32p, kernel, num, ptr, splat, stack_floats, vfma, vload, vstore
from lite_runtime.steps.declaration import named
from lite_runtime.steps.packing import CellWeights, Panels, WinogradFilters

PANELS = named(Panels)
FILTERS = named(WinogradFilters)
CELLS = named(CellWeights)

_TAPS, _HALF = 9 * LANES, 18 * LANES


@kernel(Panels)
def f32_panels(step, bases, worker, workers):
    """w -> [groups][panels][outer][inner][columns of the panel], padded with zeros after the last column."""
    w, packed = ptr(step, bases, PANELS.w) + num(step, PANELS.start), ptr(step, bases, PANELS.packed)
    groups, columns, outer, inner = (
        num(step, PANELS.groups),
        num(step, PANELS.columns),
        num(step, PANELS.outer),
        num(step, PANELS.inner),
    )
    width = num(step, PANELS.vectors) * LANES
    group_step, column_step, run_step, run = (
        num(step, PANELS.group_step),
        num(step, PANELS.column_step),
        num(step, PANELS.run_step),
        num(step, PANELS.run),
    )
    outer_step, inner_step, packed_step = (
        num(step, PANELS.outer_step),
        num(step, PANELS.inner_step),
        num(step, PANELS.packed_step),
    )
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


@kernel(WinogradFilters)
def f32_winograd(step, bases, worker, workers):
    """3x3 filters at Winograd's points: G w G^T, in the layout of kernels/winograd.py."""
    w, g, packed = (
        ptr(step, bases, FILTERS.w) + num(step, FILTERS.start),
        f32p(ptr(step, bases, FILTERS.g)),
        ptr(step, bases, FILTERS.packed),
    )
    side, columns, channels = num(step, FILTERS.m) + 2, num(step, FILTERS.columns), num(step, FILTERS.channels)
    column_step, channel_step, tap_step = (
        num(step, FILTERS.column_step),
        num(step, FILTERS.channel_step),
        num(step, FILTERS.tap_step),
    )
    vectors, depth = (columns + LANES - 1) // LANES, (channels + LANES - 1) // LANES * LANES
    full, points = num(step, FILTERS.vectors), side * side
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


@kernel(CellWeights)
def f32_recurrent(step, bases, worker, workers):
    """Weights of recurrent cells, all gates of a unit together, in the layout of kernels/recurrent.py."""
    w, packed = ptr(step, bases, CELLS.w) + num(step, CELLS.start), ptr(step, bases, CELLS.packed)
    directions, gates, units, inner = (
        num(step, CELLS.directions),
        num(step, CELLS.gates),
        num(step, CELLS.units),
        num(step, CELLS.inner),
    )
    block, blocks = num(step, CELLS.block), num(step, CELLS.blocks)
    direction_step, gate_step, unit_step = (
        num(step, CELLS.direction_step),
        num(step, CELLS.gate_step),
        num(step, CELLS.unit_step),
    )
    inner_step, second, alone = num(step, CELLS.inner_step), num(step, CELLS.second), num(step, CELLS.alone)
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
