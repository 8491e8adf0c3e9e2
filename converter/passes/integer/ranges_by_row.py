"""Ranges that are measured at run time, one for each row of a product's left operand in place of one for all rows.

QLinearMatMul(DynamicQuantizeLinear(x), w) -> the same with a scale and a zero point for each row of x, if nothing else
reads the integers. A row's result then depends on that row alone: not on other texts of a batch, nor on the padding
behind one. It is also more exact. Standard ONNX has one range for a tensor, so this is for models that msedge runs.
"""

from __future__ import annotations

import onnx_ir as ir

from converter.ir import build
from converter.ir.build import attr, set_attrs

__all__ = ["run"]

_PRODUCT = "QLinearMatMul"


def run(model: ir.Model) -> int:
    """The number of operators that measure ranges by row."""
    return sum(_changed(node) for node in build.nodes(model) if node.op_type == "DynamicQuantizeLinear")


def _changed(node: ir.Node) -> bool:
    rank, shape = build.rank(node.inputs[0]), build.dims(node.inputs[0])
    if rank is None or shape is None or rank < 2 or attr(node, "kept", 0) or not all(map(_is_left, node.outputs)):
        return False
    node.domain = build.DOMAIN
    set_attrs(node, kept=rank - 1)
    for value in node.outputs[1:]:
        value.shape = ir.Shape((*shape[:-1], 1))
    return True


def _is_left(value: ir.Value) -> bool:
    """Whether only products read a value, as their left operand, its scale or its zero point."""
    return not value.is_graph_output() and all(
        build.is_op(node, _PRODUCT, domain=build.DOMAIN) and index < 3 for node, index in value.uses()
    )
