"""Remove a Transpose that is flattened before a MatMul with constant weights: the weights' rows are permuted instead.

MatMul(Reshape(Transpose(x), [n, k]), w) -> MatMul(Reshape(x, [n, k]), w')      where the first dimension stays first.
For quantised weights, the integers are permuted. Between the Reshape and the MatMul the rows may be quantised, with one
scale for all or one for each row.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np
import onnx_ir as ir

from converter.ir import build
from converter.ir.build import Edit, attr, dims
from converter.passes import quantized
from converter.passes.sink_transposes import perm_of

__all__ = ["run"]


def run(model: ir.Model) -> int:
    """The number of Transposes removed."""
    return sum(_permute(node) for node in build.nodes(model) if node.op_type in _WEIGHTS and node.graph is not None)


_WEIGHTS = {"MatMul": 1, "QLinearMatMul": 3}
"""Operator -> the index of its weight operand."""


def _flattened(value: ir.Value | None) -> ir.Value | None:
    """The value before the quantisers that lead to its only reader; none of them depends on the order within rows."""
    while value is not None and build.sole_reader(value):
        node = value.producer()
        if node is None or not _keeps_rows(node, value):
            return value
        value = node.inputs[0]
    return None


def _keeps_rows(node: ir.Node, value: ir.Value) -> bool:
    if node.op_type == "DynamicQuantizeLinear":
        return value is node.outputs[0] and attr(node, "kept", 0) <= 1
    if not build.is_op(node, "QuantizeLinear", "DequantizeLinear"):
        return False
    return dims(node.inputs[1]) in ((), (1,)) and build.array(node.inputs[0]) is None


def _permute(node: ir.Node) -> bool:
    index = _WEIGHTS[node.op_type]
    flat, packed = _flattened(node.inputs[0]), quantized.stored(node.inputs[index])
    weight = build.array(node.inputs[index]) if packed is None else packed.q
    if (
        flat is None
        or weight is None
        or (packed is not None and packed.block)
        or weight.ndim != 2
        or attr(node, "transA", 0)
    ):
        return False
    reshape = flat.producer()
    if not build.is_op(reshape, "Reshape", "Flatten"):
        return False
    assert reshape is not None and reshape.inputs[0] is not None
    image, perm = reshape.inputs[0], perm_of(reshape.inputs[0])
    shape, target = dims(image), dims(flat)
    if perm is None or perm[0] != 0 or shape is None or target is None or build.sole_use(image) is not reshape:
        return False
    inner = shape[1:]
    if (
        len(target) != 2
        or not all(isinstance(d, int) for d in inner)
        or target[1] != prod(int(d) for d in inner if d is not None)
    ):
        return False
    across = bool(attr(node, "transB", 0))
    row_axis = 1 if across else 0

    def permuted(rows: np.ndarray) -> np.ndarray:
        """Rows (axis 0) in the order of the untransposed image."""
        cube = rows.reshape(*(int(d) for d in inner if d is not None), -1)
        return cube.transpose(*(int(i) - 1 for i in np.argsort(perm)[1:]), len(inner)).reshape(rows.shape)

    moved = np.ascontiguousarray(permuted(weight.T).T if across else permuted(weight))
    edit = Edit(reshape)
    transpose = image.producer()
    assert transpose is not None and transpose.graph is not None
    reshape.replace_input_with(0, transpose.inputs[0])
    if build.is_op(reshape, "Reshape"):
        reshape.replace_input_with(1, edit.ints([-1, int(target[1])]))
        build.set_attrs(reshape, allowzero=None)
    old = node.inputs[index]
    if packed is None:
        constant = edit.const(moved, hint=(old.name or "") if old is not None else "")
    else:
        along = packed.axis == row_axis
        scale, zero = (a if a is None or not along or not a.ndim else permuted(a) for a in (packed.scale, packed.zero))
        assert scale is not None
        constant = replace(packed, q=moved, scale=scale, zero=zero).emit(edit)
    node.replace_input_with(index, constant)
    transpose.graph.remove(transpose, safe=True)
    return True
