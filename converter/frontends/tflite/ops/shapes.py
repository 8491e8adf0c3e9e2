"""Operators that change, read or create shapes and move no elements."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from converter.frontends.tflite.op import Op, translate
from converter.frontends.tflite.ops.operands import (
    axis,
    cast,
    counted,
    extents,
    indices,
    payload,
    rank,
    single,
    sizes,
)
from converter.ir import build

__all__: list[str] = []

_INT = ir.DataType.INT64


@translate("RESHAPE")
def reshape(op: Op) -> ir.Value:
    """To the shape of operand 1, else of option new_shape; -1 is what remains, 0 an empty axis.

    Complex numbers stay pairs along a last axis.
    """
    (x,) = payload(op, 0)
    if op.count_inputs > 1 and op.has(1):
        shape = extents(op, 1, -1)
    else:
        shape = op.constant(list(op.option("new_shape") or op.output().shape), np.int64)
    target = build.array(shape)
    if op.output().dtype == ir.DataType.COMPLEX64:
        pair = op.constant([2])
        shape = op.emit("Concat", [shape, pair], {"axis": 0}) if target is None else op.constant([*target.tolist(), 2])
    empty = target is not None and 0 in target
    return op.emit("Reshape", [x, shape], {"allowzero": int(empty)} if empty else {})


@translate("SQUEEZE")
def squeeze(op: Op) -> ir.Value:
    """Without the axes given, or without every axis of size 1 when none is."""
    (x,) = payload(op, 0)
    dims = rank(op, 0)
    axes = sorted({axis(op, a, dims) for a in op.option("squeeze_dims") or ()})
    if not axes:
        axes = [i for i, size in enumerate(sizes(op, 0)) if size == 1]
    return op.emit("Squeeze", [x, op.constant(axes, np.int64)]) if axes else op.emit("Identity", [x])


@translate("EXPAND_DIMS")
def expand_dims(op: Op) -> ir.Value:
    """A new axis of size 1."""
    (x,) = payload(op, 0)
    where = single(op, 1, "axis")
    return op.emit("Unsqueeze", [x, op.constant([axis(op, where, rank(op, 0) + 1)])])


@translate("SHAPE")
def shape(op: Op) -> ir.Value:
    """The sizes, int32 or int64."""
    return cast(op, _shape(op), op.output().dtype)


@translate("RANK")
def rank_of(op: Op) -> ir.Value:
    """The number of dimensions, an int32 scalar."""
    return cast(op, op.emit("Size", [_shape(op)]), op.output().dtype)


def _shape(op: Op) -> ir.Value:
    """The sizes of input 0; pairs of complex numbers are one element each."""
    is_complex = op.tensor(0).dtype == ir.DataType.COMPLEX64
    return op.emit("Shape", [op.raw(0)], {"end": -1} if is_complex else {})


@translate("FILL")
def fill(op: Op) -> ir.Value:
    """A tensor of one value."""
    (value,) = payload(op, 1)
    return op.emit("Expand", [value, extents(op, 0)])


@translate("ZEROS_LIKE")
def zeros_like(op: Op) -> ir.Value:
    """Zeros in the operand's shape."""
    x = op.real(0)
    zero = op.constant(np.zeros((), x.dtype.numpy() if x.dtype else np.float32))
    return op.emit("Expand", [zero, op.emit("Shape", [x])])


@translate("BROADCAST_TO")
def broadcast_to(op: Op) -> ir.Value:
    """Repeated along axes of size 1 up to the shape of operand 1."""
    (x,) = payload(op, 0)
    return op.emit("Expand", [x, extents(op, 1)])


@translate("BROADCAST_ARGS")
def broadcast_args(op: Op) -> ir.Value:
    """The shape two shapes broadcast to: from the right, the size that is not 1."""
    a, b = indices(op, 0), indices(op, 1)
    lengths = sizes(op, 0) + sizes(op, 1)
    if len(lengths) != 2 or None in lengths:
        op.fail("expected two shapes of known lengths; export the model with fixed ranks")
    left, right = (int(n or 0) for n in lengths)
    a, b = _left_padded(op, a, right - left), _left_padded(op, b, left - right)
    joint = op.emit("Where", [op.emit("Equal", [a, op.constant(1)]), b, a])
    return cast(op, joint, op.output().dtype)


def _left_padded(op: Op, sizes: ir.Value, by: int) -> ir.Value:
    if by < 1:
        return sizes
    return op.emit("Concat", [op.constant(np.ones_like(counted(op, by), np.int64)), sizes], {"axis": 0})


@translate("RANGE")
def range_(op: Op) -> ir.Value:
    """start, start + delta, … below limit."""
    return op.emit("Range", [op.emit("Reshape", [op.real(i), op.constant([], np.int64)]) for i in range(3)])
