"""Parts of a tensor by position: slices and gathers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from converter.frontends.tflite.op import Op, translate
from converter.frontends.tflite.ops.operands import axis, contents, indices, payload, rank

__all__: list[str] = []

_END = int(np.iinfo(np.int32).max)
_START = int(np.iinfo(np.int32).min)


@translate("SLICE")
def slice_(op: Op) -> ir.Value:
    """`size` elements from `begin` along each axis; size -1: all that remain."""
    (x,) = payload(op, 0)
    begin, size = op.ints(1), op.ints(2)
    axes = op.constant(list(range(rank(op, 0))), np.int64)
    if begin is not None and size is not None:
        end = [_END if s < 0 else b + s for b, s in zip(begin, size, strict=True)]
        return op.emit("Slice", [x, op.constant(list(begin), np.int64), op.constant(end, np.int64), axes])
    start, count = indices(op, 1), indices(op, 2)
    rest = op.emit("Less", [count, op.constant(0)])
    stop = op.emit("Where", [rest, op.constant(_END), op.emit("Add", [start, count])])
    return op.emit("Slice", [x, start, stop, axes])


class _Entry(NamedTuple):
    """One entry of a strided slice's specification: its bit in the masks, and its kind."""

    bit: int
    kind: str
    """"slice", "shrink", "new" or "ellipsis"."""


@dataclass(frozen=True)
class _Plan:
    """Which entry of the specification cuts which axis, and where axes appear or vanish afterwards."""

    cuts: tuple[tuple[int, _Entry], ...]
    new_axes: tuple[int, ...]
    """In the result with shrunk axes still there."""
    shrunk: tuple[int, ...]
    """In the result with new axes already there."""


def _plan(op: Op, length: int) -> _Plan:
    masks = {kind: int(op.option(f"{kind}_mask", 0)) for kind in ("ellipsis", "new_axis", "shrink_axis")}

    def kind(bit: int) -> str:
        found = [name for name in ("ellipsis", "new_axis", "shrink_axis") if masks[name] >> bit & 1]
        return {"ellipsis": "ellipsis", "new_axis": "new", "shrink_axis": "shrink"}[found[0]] if found else "slice"

    entries = [_Entry(bit, kind(bit)) for bit in range(length)]
    skipped = rank(op, 0) - sum(e.kind in ("slice", "shrink") for e in entries)
    cuts, new_axes, shrunk, source, target = [], [], [], 0, 0
    for entry in entries:
        if entry.kind == "ellipsis":
            source, target, skipped = source + skipped, target + skipped, 0
        elif entry.kind == "new":
            new_axes.append(target)
            target += 1
        else:
            cuts.append((source, entry))
            if entry.kind == "shrink":
                shrunk.append(target)
            source, target = source + 1, target + 1
    if source > rank(op, 0):
        op.fail(f"expected at most {rank(op, 0)} slices, one for each axis, got {source}")
    return _Plan(tuple(cuts), tuple(new_axes), tuple(shrunk))


@translate("STRIDED_SLICE")
def strided_slice(op: Op) -> ir.Value:
    """NumPy's basic indexing: ranges, "...", new axes and single entries, marked by bits of the masks.

    Option offset: `end` counts from `begin`. Fails when strides are computed, or when the specification's length is
    not known.
    """
    (x,) = payload(op, 0)
    strides = contents(op, 3, "strides")
    plan = _plan(op, len(strides))
    if plan.cuts:
        starts, ends = _bounds(op, plan, strides)
        steps = [1 if e.kind == "shrink" else strides[e.bit] for _, e in plan.cuts]
        axes = [a for a, _ in plan.cuts]
        x = op.emit("Slice", [x, starts, ends, op.constant(axes, np.int64), op.constant(steps, np.int64)])
    if plan.new_axes:
        x = op.emit("Unsqueeze", [x, op.constant(list(plan.new_axes), np.int64)])
    if plan.shrunk:
        x = op.emit("Squeeze", [x, op.constant(list(plan.shrunk), np.int64)])
    return x if plan.cuts or plan.new_axes else op.emit("Identity", [x])


def _bounds(op: Op, plan: _Plan, strides: tuple[int, ...]) -> tuple[ir.Value, ir.Value]:
    begin, end = op.ints(1), op.ints(2)
    begin_mask, end_mask = int(op.option("begin_mask", 0)), int(op.option("end_mask", 0))
    if begin is None or end is None:
        return _computed_bounds(op, plan, strides)
    if op.option("offset", False):
        end = tuple(b + e for b, e in zip(begin, end, strict=True))
    starts, ends = [], []
    for _, entry in plan.cuts:
        bit, back = entry.bit, strides[entry.bit] < 0
        if entry.kind == "shrink":
            start = 0 if begin_mask >> bit & 1 else begin[bit]
            starts.append(start)
            ends.append(_END if start == -1 else start + 1)
        else:
            starts.append((_END if back else 0) if begin_mask >> bit & 1 else begin[bit])
            ends.append((_START if back else _END) if end_mask >> bit & 1 else end[bit])
    return op.constant(starts, np.int64), op.constant(ends, np.int64)


def _computed_bounds(op: Op, plan: _Plan, strides: tuple[int, ...]) -> tuple[ir.Value, ir.Value]:
    """Bounds that are only known at run time: masked entries are replaced by constants."""
    begin_mask, end_mask = int(op.option("begin_mask", 0)), int(op.option("end_mask", 0))
    entries = [e for _, e in plan.cuts]
    chosen = op.constant([e.bit for e in entries], np.int64)
    begin, end = (op.emit("Gather", [indices(op, i), chosen]) for i in (1, 2))
    if op.option("offset", False):
        end = op.emit("Add", [begin, end])
    back = [strides[e.bit] < 0 for e in entries]
    open_start = [bool(begin_mask >> e.bit & 1) for e in entries]
    first = [_END if b and e.kind != "shrink" else 0 for e, b in zip(entries, back, strict=True)]
    starts = _masked(op, begin, open_start, first)
    next_one = op.emit("Add", [starts, op.constant(1)])
    after = op.emit("Where", [op.emit("Equal", [starts, op.constant(-1)]), op.constant(_END), next_one])
    shrink = op.constant([e.kind == "shrink" for e in entries], np.bool_)
    last = [_START if b else _END for b in back]
    open_end = [bool(end_mask >> e.bit & 1) for e in entries]
    return starts, op.emit("Where", [shrink, after, _masked(op, end, open_end, last)])


def _masked(op: Op, values: ir.Value, mask: list[bool], instead: list[int]) -> ir.Value:
    if not any(mask):
        return values
    return op.emit("Where", [op.constant(mask, np.bool_), op.constant(instead, np.int64), values])


@translate("GATHER")
def gather(op: Op) -> ir.Value:
    """Slices along an axis by index; with batch_dims, leading axes pair data and indices (GatherND's batch)."""
    dims, batch = rank(op, 0), int(op.option("batch_dims", 0))
    place = axis(op, int(op.option("axis", 0)), dims)
    batch += rank(op, 1) if batch < 0 else 0
    if not 0 <= batch <= min(place, rank(op, 1)):
        op.fail(f"expected batch_dims from 0 to {min(place, rank(op, 1))}, got {batch}")
    (x,) = payload(op, 0)
    if not batch:
        return op.emit("Gather", [x, _positions(op)], {"axis": place})
    order = [*range(batch), place, *(a for a in range(batch, dims) if a != place)]
    if place != batch:
        x = op.emit("Transpose", [x], {"perm": order})
    single = op.emit("Unsqueeze", [indices(op, 1), op.constant([-1])])
    found = op.emit("GatherND", [x, single], {"batch_dims": batch})
    if place == batch:
        return found
    looked, outer = rank(op, 1) - batch, place - batch
    first, rest = batch + looked, list(range(batch + looked, batch + looked + dims - batch - 1))
    back = [*range(batch), *rest[:outer], *range(batch, first), *rest[outer:]]
    return op.emit("Transpose", [found], {"perm": back})


def _positions(op: Op) -> ir.Value:
    """Indices unchanged if ONNX accepts their type, so that no Cast is needed."""
    found = op.raw(1)
    return found if found.dtype in (ir.DataType.INT32, ir.DataType.INT64) else indices(op, 1)


@translate("GATHER_ND")
def gather_nd(op: Op) -> ir.Value:
    """Elements or slices by index tuples."""
    (x,) = payload(op, 0)
    return op.emit("GatherND", [x, indices(op, 1)])


@translate("DYNAMIC_UPDATE_SLICE")
def dynamic_update_slice(op: Op) -> ir.Value:
    """The operand with `update` written from `start` on; the start is moved so that the update fits."""
    dims = rank(op, 0)
    x, update = payload(op, 0, 1)
    shape, part = op.emit("Shape", [x]), op.emit("Shape", [update])
    room = op.emit("Sub", [shape, part])
    start = op.emit("Max", [op.emit("Min", [indices(op, 2), room]), op.constant([0] * dims, np.int64)])
    return _write(op, x, update, start, shape)


def _write(op: Op, x: ir.Value, update: ir.Value, start: ir.Value, shape: ir.Value) -> ir.Value:
    """The update, padded to the operand's shape, replaces the elements at its position."""
    part = op.emit("Shape", [update])
    after = op.emit("Sub", [op.emit("Sub", [shape, part]), start])
    pads = op.emit("Concat", [start, after], {"axis": 0})
    covered = op.emit("Pad", [op.emit("Expand", [op.constant(np.ones((), np.int32)), part]), pads])
    moved = op.emit("Pad", [update, pads])
    return op.emit("Where", [op.emit("Cast", [covered], {"to": int(ir.DataType.BOOL)}), moved, x])
