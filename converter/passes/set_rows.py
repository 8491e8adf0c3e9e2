"""A tensor whose row i is replaced, written as Concat(rows before i, row, rows behind i), becomes ScatterND.

TensorFlow's converter writes TensorListSetItem so, in the loops of Keras' recurrent layers. Sizes of the two Slices
follow from i; with ScatterND no size does, and the loop runs natively.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from converter.ir import build
from converter.ir.build import Edit, attr, operand

__all__ = ["run"]

_END = 2**31 - 1
"""From this number on, the end of a Slice is that of its axis."""


def run(model: ir.Model) -> int:
    """The number of rewrites."""
    return sum(_set_row(node) for node in list(build.nodes(model)) if build.is_op(node, "Concat"))


def _set_row(node: ir.Node) -> bool:
    if attr(node, "axis", 0) != 0 or len(node.inputs) != 3:
        return False
    before, row, behind = node.inputs
    rows, place = _before(before)
    rows_behind, next_place = _behind(behind)
    shape = build.dims(row)
    if rows is None or rows is not rows_behind or place is None or next_place is None or shape is None:
        return False
    (i, offset), (other, one_more) = place, next_place
    if i is not other or one_more != offset + 1 or shape[0] != 1 or len(shape) != build.rank(rows):
        return False
    edit = Edit(node)
    at = edit.op("Reshape", [edit.op("Cast", [i], {"to": ir.DataType.INT64.value}), edit.ints([1, 1])])
    at = edit.op("Add", [at, edit.ints(offset)]) if offset else at
    edit.replace(edit.op("ScatterND", [rows, at, row], like=node.outputs[0]))
    return True


_Place = tuple[ir.Value, int]
"""A number that is computed, and what is added to it."""


def _slice(value: ir.Value | None) -> tuple[ir.Value, ir.Value, ir.Value] | None:
    """Data, starts and ends of a Slice of all axes in order, by steps of 1."""
    node = None if value is None else value.producer()
    if node is None or not build.is_op(node, "Slice"):
        return None
    data, starts, ends = node.inputs[:3]
    axes, steps = build.array(operand(node, 3)), build.array(operand(node, 4))
    rank = build.rank(data)
    if rank is None or any((a is None) != (operand(node, k) is None) for k, a in ((3, axes), (4, steps))):
        return None
    if (axes is not None and axes.tolist() != list(range(rank))) or (steps is not None and (steps != 1).any()):
        return None
    return None if data is None or starts is None or ends is None else (data, starts, ends)


def _before(value: ir.Value | None) -> tuple[ir.Value | None, _Place | None]:
    """The tensor and the number of its first rows that `value` is."""
    found = _slice(value)
    starts = None if found is None else build.array(found[1])
    if found is None or starts is None or (starts != 0).any():
        return None, None
    first, rest = _first(_kept(found[2]))
    return found[0], first if rest is not None and ((rest < 0) | (rest >= _END)).all() else None


def _behind(value: ir.Value | None) -> tuple[ir.Value | None, _Place | None]:
    """The tensor and the number of its first rows that `value` lacks."""
    found = _slice(value)
    if found is None or not _to_the_end(found[2]):
        return None, None
    first, rest = _first(found[1])
    return found[0], first if rest is not None and (rest == 0).all() else None


def _to_the_end(ends: ir.Value) -> bool:
    node, known = ends.producer(), build.array(ends)
    if known is not None:
        return bool((known >= _END).all())
    if node is None or not build.is_op(node, "Where"):
        return False
    chosen, far = build.array(node.inputs[0]), build.array(node.inputs[1])
    return chosen is not None and far is not None and bool(chosen.all() and (far >= _END).all())


def _kept(ends: ir.Value) -> ir.Value:
    """The sizes in Where(sizes < 0, far, sizes)."""
    node = ends.producer()
    if node is None or not build.is_op(node, "Where"):
        return ends
    far, less, sizes = build.array(node.inputs[1]), node.inputs[0], node.inputs[2]
    compared = None if less is None else less.producer()
    if far is None or (far < _END).any() or sizes is None or not build.is_op(compared, "Less"):
        return ends
    assert compared is not None
    zero = build.array(compared.inputs[1])
    return sizes if compared.inputs[0] is sizes and zero is not None and (zero == 0).all() else ends


def _first(vector: ir.Value) -> tuple[_Place | None, np.ndarray | None]:
    """The first element of a vector whose other elements are known, and those."""
    node = vector.producer()
    while build.is_op(node, "Cast"):
        assert node is not None and node.inputs[0] is not None
        node = node.inputs[0].producer()
    if node is None or not build.is_op(node, "Concat") or len(node.inputs) < 2 or node.inputs[0] is None:
        return None, None
    others = [build.array(v) for v in node.inputs[1:]]
    if build.static_dims(node.inputs[0]) != (1,) or any(v is None for v in others):
        return None, None
    return _number(node.inputs[0]), np.concatenate([v.reshape(-1) for v in others if v is not None])


def _number(value: ir.Value) -> _Place:
    """A number behind changes of its shape and type, and additions of constants."""
    offset = 0
    while (node := value.producer()) is not None and node.inputs and node.inputs[0] is not None:
        if build.is_op(node, "Reshape", "Unsqueeze", "Squeeze", "Cast"):
            value = node.inputs[0]
            continue
        added = build.array(node.inputs[1]) if build.is_op(node, "Add") else None
        if added is None or added.size != 1 or added.dtype.kind != "i":
            break
        value, offset = node.inputs[0], offset + int(added.item())
    return value, offset
