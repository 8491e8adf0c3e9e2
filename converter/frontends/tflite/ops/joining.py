"""Joining and splitting tensors, and permuting their axes."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from converter.frontends.tflite.op import Op, translate
from converter.frontends.tflite.ops.operands import (
    axis,
    contents,
    emit_all,
    extents,
    indices,
    moved_whole,
    payload,
    rank,
    single,
    sizes,
)

__all__: list[str] = []


@translate("CONCATENATION")
def concatenation(op: Op) -> ir.Value:
    """Joined along an axis; operands quantised differently are requantised, in LiteRT only bytes without a sign."""
    parts = payload(op, *range(op.count_inputs))
    return op.activation(op.emit("Concat", parts, {"axis": axis(op, op.option("axis", 0), rank(op, 0))}))


@translate("PACK")
def pack(op: Op) -> ir.Value:
    """Stacked along a new axis."""
    place = axis(op, op.option("axis", 0), rank(op, 0) + 1)
    parts = payload(op, *range(op.count_inputs))
    where = op.constant([place])
    return op.emit("Concat", [op.emit("Unsqueeze", [part, where]) for part in parts], {"axis": place})


@translate("UNPACK")
def unpack(op: Op) -> list[ir.Value]:
    """Slices along an axis, without that axis."""
    place = axis(op, op.option("axis", 0), rank(op, 0))
    (x,) = payload(op, 0)
    where = op.constant([place])
    return [op.emit("Squeeze", [part, where]) for part in _split(op, x, [1] * op.count_outputs, place)]


@translate("SPLIT")
def split(op: Op) -> list[ir.Value]:
    """Equal parts along an axis."""
    place = single(op, 0, "split axis")
    return _equal_parts(op, _whole(op, 1), axis(op, place, rank(op, 1)))


@translate("SPLIT_V")
def split_v(op: Op) -> list[ir.Value]:
    """Parts of given sizes along an axis; -1 is what remains."""
    place = single(op, 2, "split axis")
    place = axis(op, place, rank(op, 0))
    parts = op.ints(1)
    if parts is None:
        return emit_all(op, "Split", [_whole(op, 0), indices(op, 1)], {"axis": place}, op.count_outputs)
    return _split(op, _whole(op, 0), _complete(op, parts, sizes(op, 0)[place]), place)


def _whole(op: Op, i: int) -> ir.Value:
    """Input `i` as stored when every output keeps its quantisation."""
    whole = all(moved_whole(op, i, k) for k in range(op.count_outputs))
    return op.raw(i) if whole else op.real(i)


def _complete(op: Op, parts: tuple[int, ...], size: int | None) -> list[int]:
    if -1 not in parts:
        return list(parts)
    if size is None:
        op.fail("expected sizes for every part or an axis of known size, got -1 on an unknown one")
    rest = size - sum(p for p in parts if p != -1)
    return [rest if p == -1 else p for p in parts]


def _equal_parts(op: Op, x: ir.Value, place: int) -> list[ir.Value]:
    return emit_all(op, "Split", [x], {"axis": place, "num_outputs": op.count_outputs}, op.count_outputs)


def _split(op: Op, x: ir.Value, parts: list[int], place: int) -> list[ir.Value]:
    return emit_all(op, "Split", [x, op.constant(parts, np.int64)], {"axis": place}, len(parts))


@translate("TRANSPOSE")
def transpose(op: Op) -> ir.Value:
    """Axes in the order of operand 1."""
    dims = rank(op, 0)
    (x,) = payload(op, 0)
    return op.emit("Transpose", [x], {"perm": [axis(op, a, dims) for a in contents(op, 1, "permutation")]})


@translate("TILE")
def tile(op: Op) -> ir.Value:
    """Repeated whole, a number of times for each axis."""
    (x,) = payload(op, 0)
    return op.emit("Tile", [x, extents(op, 1)])


@translate("REVERSE_V2")
def reverse(op: Op) -> ir.Value:
    """Backwards along the axes of operand 1."""
    (x,) = payload(op, 0)
    axes = [axis(op, a, rank(op, 0)) for a in contents(op, 1, "axes")]
    if not axes:
        return op.emit("Identity", [x])
    last, steps = [-1] * len(axes), [-1] * len(axes)
    before = [np.iinfo(np.int64).min] * len(axes)
    return op.emit("Slice", [x, *(op.constant(v, np.int64) for v in (last, before, axes, steps))])


@translate("REVERSE_SEQUENCE")
def reverse_sequence(op: Op) -> ir.Value:
    """The first `length` entries of each sequence reversed. ONNX requires time and batch first, so axes are
    permuted."""
    (x,) = payload(op, 0)
    dims = rank(op, 0)
    time, batch = axis(op, op.option("seq_dim", 0), dims), axis(op, op.option("batch_dim", 0), dims)
    order = [time, batch, *(a for a in range(dims) if a not in (time, batch))]
    turned = order != list(range(dims))
    if turned:
        x = op.emit("Transpose", [x], {"perm": order})
    x = op.emit("ReverseSequence", [x, indices(op, 1)], {"time_axis": 0, "batch_axis": 1})
    return op.emit("Transpose", [x], {"perm": np.argsort(order).tolist()}) if turned else x
