"""Finding elements: the largest, the first, those that are set, the bucket they fall into."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from converter.frontends.tflite.op import Op, translate
from converter.frontends.tflite.ops.operands import axis, cast, index, payload, rank, single

__all__: list[str] = []


@translate("ARG_MAX", "ARG_MIN")
def arg_extreme(op: Op) -> ir.Value:
    """The position of the extreme along an axis, the first among equals."""
    place = single(op, 1, "axis")
    kind = "ArgMax" if op.name == "ARG_MAX" else "ArgMin"
    found = op.emit(kind, [op.raw(0)], {"axis": axis(op, place, rank(op, 0)), "keepdims": 0})
    return cast(op, found, op.output().dtype)


@translate("TOPK_V2")
def top_k(op: Op) -> list[ir.Value]:
    """The k largest of the last axis in falling order, and where they were."""
    (x,) = payload(op, 0)
    values, places = op.emit("TopK", [x, index(op, 1)], {"axis": -1}, outputs=2)
    return [values, cast(op, places, op.output(1).dtype)]


@translate("ONE_HOT")
def one_hot(op: Op) -> ir.Value:
    """`on` where the new axis's position equals the index, else `off`; an index outside the depth is nowhere."""
    dims = rank(op, 0) + 1
    place = axis(op, int(op.option("axis", -1)), dims)
    wanted = cast(op, op.emit("Unsqueeze", [op.raw(0), op.constant([place])]), ir.DataType.INT64)
    depth = op.emit("Reshape", [index(op, 1), op.constant([], np.int64)])
    line = op.emit("Range", [op.constant(0), depth, op.constant(1)])
    column = op.emit("Unsqueeze", [line, op.constant(list(range(1, dims - place)), np.int64)])
    on, off = payload(op, 2, 3)
    return op.emit("Where", [op.emit("Equal", [wanted, column]), on, off])


@translate("WHERE")
def where(op: Op) -> ir.Value:
    """The index tuples of all elements that are set (or not zero), one per row, int64."""
    return op.emit("Transpose", [op.emit("NonZero", [op.raw(0)])], {"perm": [1, 0]})


@translate("UNIQUE")
def unique(op: Op) -> list[ir.Value]:
    """The distinct elements in order of appearance, and for each element which of them it is."""
    (x,) = payload(op, 0)
    found = op.emit("Unique", [x], {"sorted": 0}, outputs=3)
    return [found[0], cast(op, found[2], op.output(1).dtype)]


@translate("BUCKETIZE")
def bucketize(op: Op) -> ir.Value:
    """How many boundaries are not above each element, int32."""
    x = op.real(0)
    boundaries = [float(b) for b in op.option("boundaries") or ()]
    edges = op.constant(np.asarray(boundaries, np.float32))
    spread = op.emit("Unsqueeze", [cast(op, x, ir.DataType.FLOAT), op.constant([-1])])
    above = cast(op, op.emit("GreaterOrEqual", [spread, edges]), ir.DataType.INT32)
    return op.emit("ReduceSum", [above, op.constant([-1])], {"keepdims": 0})
