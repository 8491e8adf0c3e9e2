"""Writing elements to given places, and sums over segments of rows."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from converter.frontends.tflite.op import Op, translate
from converter.frontends.tflite.ops.operands import extents, index, indices, payload, rank

__all__: list[str] = []

_SEGMENTS = {
    "SEGMENT_SUM": "add",
    "UNSORTED_SEGMENT_SUM": "add",
    "UNSORTED_SEGMENT_PROD": "mul",
    "UNSORTED_SEGMENT_MAX": "max",
    "UNSORTED_SEGMENT_MIN": "min",
}


@translate("SCATTER_ND")
def scatter_nd(op: Op) -> ir.Value:
    """Updates added at index tuples to zeros of a given shape: LiteRT's are stored ones, whatever zero point they
    have."""
    updates = payload(op, 1)[0] if op.litert else op.real(1)
    zeros = op.emit("Expand", [_number(op, updates, 0), extents(op, 2)])
    return op.emit("ScatterND", [zeros, indices(op, 0), updates], {"reduction": "add"})


@translate("SPARSE_TO_DENSE")
def sparse_to_dense(op: Op) -> ir.Value:
    """A default everywhere but at the given indices: numbers, positions in a vector, or a row of them for each axis."""
    values, default = payload(op, 2, 3)
    scalar = op.constant([], np.int64)
    base = op.emit("Expand", [op.emit("Reshape", [default, scalar]), extents(op, 1)])
    places = indices(op, 0)
    if rank(op, 0) < 2:
        places = op.emit("Reshape", [places, op.constant([-1, 1])])
    count = op.emit("Shape", [places], {"start": 0, "end": 1})
    return op.emit("ScatterND", [base, places, op.emit("Expand", [values, count])])


@translate(*_SEGMENTS)
def segments(op: Op) -> ir.Value:
    """Rows of one segment folded into one. Empty segments hold the fold's start: 0, 1, or the type's extreme.

    Rows of negative segments are dropped: they fall into a row beyond the last, which is cut off.
    """
    data = op.real(0)
    ids = indices(op, 1)
    one = op.constant([1])
    if op.name == "SEGMENT_SUM":
        last = op.emit("Gather", [ids, op.constant([-1])])
        count = op.emit("Add", [last, one])
    else:
        count = index(op, 2)
    inner = op.emit("Shape", [data], {"start": rank(op, 1)})
    shape = op.emit("Concat", [op.emit("Add", [count, one]), inner], {"axis": 0})
    fold = _SEGMENTS[op.name]
    base = op.emit("Expand", [_start(op, data, fold), shape])
    places = op.emit("Where", [op.emit("Less", [ids, op.constant(0)]), count, ids])
    rows = op.emit("Unsqueeze", [places, op.constant([-1])])
    full = op.emit("ScatterND", [base, rows, data], {"reduction": fold})
    return op.emit("Slice", [full, op.constant([0]), count, op.constant([0])])


def _start(op: Op, like: ir.Value, fold: str) -> ir.Value:
    kind = (like.dtype or ir.DataType.FLOAT).numpy()
    if kind.kind not in "fiu":
        op.fail(f"expected numbers, got {kind}")
    limits = np.finfo(kind) if kind.kind == "f" else np.iinfo(kind)
    return _number(op, like, {"add": 0, "mul": 1, "max": limits.min, "min": limits.max}[fold])


def _number(op: Op, like: ir.Value, number: float) -> ir.Value:
    return op.constant(np.asarray(number, (like.dtype or ir.DataType.FLOAT).numpy()))
