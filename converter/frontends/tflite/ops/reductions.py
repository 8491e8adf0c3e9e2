"""Reductions over given axes."""

from __future__ import annotations

import onnx_ir as ir

from converter.frontends.tflite.op import Op, translate
from converter.frontends.tflite.ops.operands import axis, cast, indices, rank, relabelled

__all__ = ["axes_of"]

_REDUCE = {
    "MEAN": "ReduceMean",
    "REDUCE_ALL": "ReduceMin",
    "REDUCE_ANY": "ReduceMax",
    "REDUCE_MAX": "ReduceMax",
    "REDUCE_MIN": "ReduceMin",
    "REDUCE_PROD": "ReduceProd",
    "SUM": "ReduceSum",
}

_ORDER = ("REDUCE_MAX", "REDUCE_MIN")
"""Reductions that LiteRT makes of stored integers."""


@translate(*_REDUCE)
def reduce(op: Op) -> ir.Value:
    """Over the axes of operand 1 (none of them: nothing is reduced). MEAN of integers truncates."""
    x = relabelled(op) if op.litert and op.name in _ORDER else op.real(0)
    if op.name == "MEAN" and x.dtype is not None and x.dtype.is_integer():
        return _integer_mean(op, x)
    return _emit(op, _REDUCE[op.name], x)


def _emit(op: Op, reduction: str, x: ir.Value) -> ir.Value:
    attrs = {"keepdims": int(op.option("keep_dims", False)), "noop_with_empty_axes": 1}
    return op.emit(reduction, [x, _axes(op)], attrs)


def _axes(op: Op) -> ir.Value:
    axes = axes_of(op)
    return indices(op, 1) if axes is None else op.constant(list(axes), "int64")


def axes_of(op: Op) -> tuple[int, ...] | None:
    """The reduced axes in order, counted from the front; None if they are computed."""
    given = op.ints(1)
    if given is None:
        return None
    dims = rank(op, 0)
    return tuple(sorted({axis(op, a, dims) for a in given} if dims else []))


def _integer_mean(op: Op, x: ir.Value) -> ir.Value:
    wide = ir.DataType.INT64
    total = _emit(op, "ReduceSum", cast(op, x, wide))
    counted = op.emit("Div", [op.emit("Size", [x]), op.emit("Max", [op.emit("Size", [total]), op.constant(1)])])
    return cast(op, op.emit("Div", [total, op.emit("Max", [counted, op.constant(1)])]), x.dtype)
