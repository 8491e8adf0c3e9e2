"""onnxruntime's CropAndResize (domain com.microsoft, from TensorFlow): boxes of images, resized to one size.

A box [y1, x1, y2, x2] spans the image from 0 to 1, corners included: row i of h lies at (y1 + i (y2 - y1) / (h - 1))
(height - 1), in the middle of the box if h is 1. Places outside the image get a constant. Only the pixels that crops
need are gathered.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from converter.ir import build
from converter.ir.build import Edit, attr
from converter.passes.rewrite import Entry, leading

__all__ = ["ENTRIES"]

_INT64, _FLOAT = {"to": int(ir.DataType.INT64)}, {"to": int(ir.DataType.FLOAT)}


class _Places(NamedTuple):
    """Along one axis, for every box and row or column of its crop: pixels, what the second of them counts, and whether
    they are inside the image."""

    first: ir.Value
    second: ir.Value
    share: ir.Value
    inside: ir.Value


def _crops(node: ir.Node) -> bool:
    images, boxes, batch, size = leading(node, 4)
    found, mode = build.array(size), str(attr(node, "mode", "bilinear"))
    if found is None or found.size != 2 or (found < 1).any() or mode not in ("bilinear", "nearest"):
        return False
    if images is None or images.dtype != ir.DataType.FLOAT:
        return False
    edit = Edit(node)
    height, width = (edit.op("Shape", [images], {"start": axis, "end": axis + 1}) for axis in (2, 3))
    h, w = (int(n) for n in found.reshape(-1))
    rows, columns = (_places(edit, boxes, axis, length, n) for axis, length, n in ((0, height, h), (1, width, w)))
    pixels = edit.op("Flatten", [edit.op("Transpose", [images], {"perm": [0, 2, 3, 1]})], {"axis": 3})
    start = edit.op("Mul", [edit.op("Cast", [batch], _INT64), height])
    start = edit.op("Unsqueeze", [start, edit.ints([1])])

    def at(row: ir.Value, column: ir.Value) -> ir.Value:
        """Pixels [boxes, h, w, channels]."""
        lines = edit.op("Unsqueeze", [edit.op("Mul", [edit.op("Add", [start, row]), width]), edit.ints([2])])
        return edit.op("Gather", [pixels, edit.op("Add", [lines, edit.op("Unsqueeze", [column, edit.ints([1])])])])

    down, across = (edit.op("Unsqueeze", [p.share, edit.ints(axes)]) for p, axes in ((rows, [2, 3]), (columns, [1, 3])))
    if mode == "nearest":
        y = at(*(_nearest(edit, places) for places in (rows, columns)))
    else:
        above, below = (_between(edit, at(r, columns.first), at(r, columns.second), across) for r in rows[:2])
        y = _between(edit, above, below, down)
    inside = edit.op("And", [edit.op("Unsqueeze", [p.inside, edit.ints(axes)])
                             for p, axes in ((rows, [2, 3]), (columns, [1, 3]))])  # fmt: skip
    other = edit.const(attr(node, "extrapolation_value", 0.0), np.float32)
    edit.replace(edit.op("Transpose", [edit.op("Where", [inside, y, other])], {"perm": [0, 3, 1, 2]}))
    return True


def _places(edit: Edit, boxes: ir.Value | None, axis: int, length: ir.Value, count: int) -> _Places:
    last = edit.op("Cast", [edit.op("Sub", [length, edit.ints([1])])], _FLOAT)
    start, end = (edit.op("Slice", [boxes, *(edit.ints([n]) for n in (a, a + 1, 1))]) for a in (axis, axis + 2))
    if count == 1:
        middle = edit.op("Mul", [edit.op("Add", [start, end]), edit.const(0.5, np.float32)])
        where = edit.op("Mul", [middle, last])
    else:  # the order of onnxruntime's roundings; both ends are exact
        step = edit.op("Div", [edit.op("Mul", [edit.op("Sub", [end, start]), last]), edit.const(count - 1, np.float32)])
        begin = edit.op("Mul", [start, last])
        inner = edit.op("Mul", [step, edit.const(np.arange(count - 1)[None], np.float32)])
        where = edit.op("Concat", [edit.op("Add", [begin, inner]), edit.op("Mul", [end, last])], {"axis": 1})
    zero = edit.const(0, np.float32)
    ends = edit.op("GreaterOrEqual", [where, zero]), edit.op("LessOrEqual", [where, last])
    inside = edit.op("And", list(ends))
    where = edit.op("Where", [inside, where, zero])
    low = edit.op("Floor", [where])
    first, second = (edit.op("Cast", [v], _INT64) for v in (low, edit.op("Ceil", [where])))
    return _Places(first, second, edit.op("Sub", [where, low]), inside)


def _nearest(edit: Edit, places: _Places) -> ir.Value:
    """The nearer pixel, the second where both are as near."""
    far = edit.op("GreaterOrEqual", [places.share, edit.const(0.5, np.float32)])
    return edit.op("Where", [far, places.second, places.first])


def _between(edit: Edit, a: ir.Value, b: ir.Value, share: ir.Value) -> ir.Value:
    return edit.op("Add", [a, edit.op("Mul", [edit.op("Sub", [b, a]), share])])


ENTRIES: Mapping[str, Entry] = {"CropAndResize": _crops}
