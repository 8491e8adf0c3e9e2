"""MatMul followed by Add becomes our MatMul with a bias, where the other operand is a vector over the last axis.

1. Add(MatMul(a, b), bias) with bias of shape [N], or [1, ..., N]. It is a constant if b is quantised: integer products
   have no kernel for a computed bias.
"""

from __future__ import annotations

import onnx_ir as ir

from converter.ir import build
from converter.ir.build import Edit, dims

__all__ = ["run"]


def run(model: ir.Model) -> int:
    """The number of Adds fused."""
    return sum(_fuse(node) for node in build.nodes(model) if node.graph is not None and build.is_op(node, "Add"))


def _fuse(node: ir.Node) -> bool:
    for product, bias in (node.inputs, node.inputs[::-1]):
        if product is not None and bias is not None and _fits(product, bias, node):
            producer = product.producer()
            assert producer is not None
            edit = Edit(node)
            inputs = [producer.inputs[0], producer.inputs[1], _flat(edit, bias)]
            attrs = dict(producer.attributes)
            edit.replace(edit.op("MatMul", inputs, attrs, domain=build.DOMAIN, like=node.outputs[0]))
            producer.graph.remove(producer, safe=True)  # type: ignore[union-attr]
            return True
    return False


def _fits(product: ir.Value, bias: ir.Value, node: ir.Node) -> bool:
    producer = product.producer()
    if producer is None or producer.op_type != "MatMul" or build.sole_use(product) is not node:
        return False
    if product.dtype != ir.DataType.FLOAT or any(v is not None for v in producer.inputs[2:]):
        return False
    weights = producer.inputs[1].producer() if producer.inputs[1] is not None else None
    integers = weights is not None and build.is_op(weights, "DequantizeLinear")
    if build.get_attr(producer, "activation") or (integers and build.array(bias) is None):
        return False
    shape, result = dims(bias), dims(product)
    if not shape or not result or len(result) < 2 or len(shape) > len(result):
        return False
    return shape[-1] == result[-1] and isinstance(shape[-1], int) and all(d == 1 for d in shape[:-1])


def _flat(edit: Edit, bias: ir.Value) -> ir.Value:
    shape = dims(bias) or ()
    if len(shape) == 1:
        return bias
    found = build.array(bias)
    if found is not None:
        return edit.const(found.reshape(-1), hint=bias.name or "")
    return edit.op("Reshape", [bias, edit.ints([-1])], like=bias, shape=shape[-1:])
