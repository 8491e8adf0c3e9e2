"""Padding with a constant and by reflection."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from converter.frontends.tflite.op import Op, translate
from converter.frontends.tflite.ops.operands import contents, counted, indices, payload, rank, sizes, zero_point

__all__: list[str] = []

_REFLECT = 0


@translate("PAD")
def pad(op: Op) -> ir.Value:
    """Borders of zeros; operand 1 has a row (before, after) for each axis.

    Around images they are written channels first, so that a following convolution can absorb them.
    """
    (x,) = payload(op, 0)
    given = op.ints(1)
    if given is not None and len(given) == 8 and not any(given[:2]) and not any(given[6:]):
        _, _, top, bottom, left, right, _, _ = given
        pads = op.constant([0, 0, top, left, 0, 0, bottom, right], np.int64)
        return op.nhwc(op.emit("Pad", [op.nchw(x), pads, zero_point(op, x)]))
    return op.emit("Pad", [x, _pads(op), zero_point(op, x)])


@translate("PADV2")
def pad_v2(op: Op) -> ir.Value:
    """Borders of the value in operand 2."""
    x, value = payload(op, 0, 2)
    return op.emit("Pad", [x, _pads(op), op.emit("Reshape", [value, op.constant([], np.int64)])])


def _pads(op: Op) -> ir.Value:
    """The sizes before all axes, then those after all axes."""
    given = op.ints(1)
    if given is not None:
        return op.constant([*given[::2], *given[1::2]], np.int64)
    turned = op.emit("Transpose", [indices(op, 1)], {"perm": [1, 0]})
    return op.emit("Reshape", [turned, op.constant([-1])])


@translate("MIRROR_PAD")
def mirror_pad(op: Op) -> ir.Value:
    """Borders by reflection: without the edge (REFLECT), or with it (SYMMETRIC: a gather for each padded axis)."""
    (x,) = payload(op, 0)
    if op.option("mode", _REFLECT) == _REFLECT:
        return op.emit("Pad", [x, _pads(op)], {"mode": "reflect"})
    given = contents(op, 1, "paddings")
    if len(given) != 2 * rank(op, 0):
        op.fail(f"expected two paddings for each of {rank(op, 0)} axes, got {len(given)} numbers")
    for axis in range(rank(op, 0)):
        before, after = given[2 * axis : 2 * axis + 2]
        if before or after:
            x = op.emit("Gather", [x, _mirrored(op, axis, before, after)], {"axis": axis})
    return x


def _mirrored(op: Op, axis: int, before: int, after: int) -> ir.Value:
    size = sizes(op, 0)[axis]
    if size is None:
        op.fail(f"expected axis {axis}, which is padded symmetrically, to have a known size")
    if not 0 <= min(before, after) <= max(before, after) <= size:
        op.fail(f"expected 0 to {size} mirrored entries on axis {axis}, got {before} and {after}")
    return op.constant(np.pad(counted(op, size), (before, after), "symmetric"), np.int64)
