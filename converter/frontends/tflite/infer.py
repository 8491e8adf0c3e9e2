"""Types and shapes of a node's results as soon as it is created, by ONNX's own rule for its operator.

Rules of the frontend read ranks and sizes of the nodes they have just emitted, so inference cannot wait for the whole
graph. What ONNX refuses or does not know stays unknown here; the finished model is checked as a whole later.
"""

from __future__ import annotations

import onnx_ir as ir

from converter.ir import build, own_shapes
from converter.ir.node_shapes import infer_node

__all__ = ["infer"]


def infer(node: ir.Node) -> None:
    """Fill in type and shape of the node's outputs where they follow from its operands."""
    if node.domain == build.DOMAIN:
        _own(node)
    elif any(a.type == ir.AttributeType.GRAPH for a in node.attributes.values()):
        _nested(node)
    else:
        infer_node(node)


def _own(node: ir.Node) -> None:
    """Operators of our own domain."""
    rule = own_shapes.RULES.get(node.op_type)
    for value, (dtype, shape) in zip(node.outputs, rule(node) if rule else (), strict=False):
        value.type = None if dtype is None else ir.TensorType(dtype)
        value.shape = None if shape is None else ir.Shape(shape)


def _nested(node: ir.Node) -> None:
    """If: the types both branches give. Loop: those of its body, after the condition."""
    inner = next(a.as_graph() for a in node.attributes.values() if a.type == ir.AttributeType.GRAPH)
    carried = list(inner.outputs)[1 if node.op_type == "Loop" else 0 :]
    for value, found in zip(node.outputs, carried, strict=False):
        value.type = found.type
