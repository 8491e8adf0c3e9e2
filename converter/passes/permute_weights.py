"""A Transpose that is only flattened before a MatMul with constant weights: the weights' rows are permuted instead.

MatMul(Reshape(Transpose(x), [n, k]), w) -> MatMul(Reshape(x, [n, k]), w')      where the first dimension stays first.
"""

from __future__ import annotations

from math import prod

import numpy as np
import onnx_ir as ir

from converter.ir import build
from converter.ir.build import Edit, attr, dims
from converter.passes.sink_transposes import perm_of

__all__ = ["run"]


def run(model: ir.Model) -> int:
    """The number of Transposes gone into weights."""
    return sum(_permute(node) for node in build.nodes(model) if node.op_type == "MatMul" and node.graph is not None)


def _permute(node: ir.Node) -> bool:
    flat, weight = node.inputs[0], build.array(node.inputs[1])
    if (
        flat is None
        or weight is None
        or weight.ndim != 2
        or attr(node, "transA", 0)
        or build.sole_use(flat) is not node
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
    rows = weight.T if across else weight
    moved = rows.reshape(*inner, -1).transpose(*(int(i) - 1 for i in np.argsort(perm)[1:]), len(inner))  # type: ignore[arg-type]
    moved = moved.reshape(rows.shape)
    edit = Edit(reshape)
    transpose = image.producer()
    assert transpose is not None and transpose.graph is not None
    reshape.replace_input_with(0, transpose.inputs[0])
    if build.is_op(reshape, "Reshape"):
        reshape.replace_input_with(1, edit.ints([-1, int(target[1])]))
        build.set_attrs(reshape, allowzero=None)
    constant, old = np.ascontiguousarray(moved.T if across else moved), node.inputs[1]
    node.replace_input_with(1, edit.const(constant, hint=(old.name or "") if old is not None else ""))
    transpose.graph.remove(transpose, safe=True)
    return True
