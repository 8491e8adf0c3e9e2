"""Weights that a run computes, put into the order kernels read."""

from __future__ import annotations

from lite_runtime.steps.declaration import In, Out, Step, step

__all__ = ["CellWeights", "Panels", "WinogradFilters"]


@step("packing.f32_panels")
class Panels(Step):
    """w -> [groups][panels][outer][inner][columns of the panel], zeros behind the last column. Column c of a group lies
    at (c // run) * run_step + (c % run) * column_step."""

    w: In
    packed: Out
    groups: int
    columns: int  # of a group
    outer: int
    inner: int
    vectors: int  # of a full panel
    start: int  # byte of the first weight
    group_step: int  # bytes from group to group, column to column, run to run
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
    column_step: int  # bytes from column to column, channel to channel, tap to tap
    channel_step: int
    tap_step: int


@step("packing.f32_recurrent")
class CellWeights(Step):
    """Weights of recurrent cells, unit by unit with all gates together: [blocks][inner][columns of a block]. Columns
    are ordered direction, panel, gate, lane; zeros behind the last unit of a panel and the last column."""

    w: In
    packed: Out
    directions: int
    gates: int
    units: int
    inner: int
    block: int  # columns
    blocks: int
    start: int  # byte of the first weight
    direction_step: int  # bytes from direction to direction, gate to gate, unit to unit
    gate_step: int
    unit_step: int
    inner_step: int
    second: int  # bytes from a weight to another that is added to it; 0: none
    alone: int  # a gate to which none is added; -1: none such
