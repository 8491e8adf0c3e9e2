"""Packs weights computed at run time into the order in which kernels read them."""

from __future__ import annotations

from lite_runtime.steps.declaration import In, Out, Step, step

__all__ = ["CellWeights", "Panels", "WinogradFilters"]


@step("packing.f32_panels")
class Panels(Step):
    """w -> [groups][panels][outer][inner][columns of the panel], zero-padded after the last column. Column c of a group
    is at (c // run) * run_step + (c % run) * column_step."""

    w: In
    packed: Out
    groups: int
    columns: int  # of a group
    outer: int
    inner: int
    vectors: int  # of a full panel
    start: int  # byte of the first weight
    group_step: int  # stride in bytes over groups, columns, runs
    column_step: int
    run_step: int
    run: int  # columns
    outer_step: int  # bytes
    inner_step: int
    packed_step: int  # packed bytes of a group


@step("packing.f32_winograd")
class WinogradFilters(Step):
    """3x3 filters at Winograd's points, G w G^T: [panels][points][channels in whole vectors][columns of the panel]."""

    w: In
    g: In  # (m + 2, 3)
    packed: Out
    m: int  # results on a side of a tile
    columns: int
    channels: int
    vectors: int  # of a full panel
    start: int  # byte of the first weight
    column_step: int  # stride in bytes over columns, channels, taps
    channel_step: int
    tap_step: int


@step("packing.f32_recurrent")
class CellWeights(Step):
    """Weights of recurrent cells, unit by unit with all gates together: [blocks][inner][columns of a block]. Columns
    are ordered direction, panel, gate, lane; zero-padded after the last unit of a panel and the last column."""

    w: In
    packed: Out
    directions: int
    gates: int
    units: int
    inner: int
    block: int  # columns
    blocks: int
    start: int  # byte of the first weight
    direction_step: int  # stride in bytes over directions, gates, units
    gate_step: int
    unit_step: int
    inner_step: int
    second: int  # byte distance from a weight to a second one that is added to it; 0: none
    alone: int  # a gate to which none is added; -1: there is none
