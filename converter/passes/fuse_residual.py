"""Adding a tensor of the result's own shape to a Conv or MatMul becomes that operator's residual operand.

1. Add(Conv(x, w, b), r) -> Conv(x, w, b, r)      if nothing else reads the convolution
2. Add(MatMul(a, b, bias), r) -> MatMul(a, b, bias, r)
Not for operators with quantised operands: their result is integers, or a later operator adds to it.
Of two candidates the later one absorbs the other, which is then already computed when it is read.
"""

from __future__ import annotations

import onnx_ir as ir

from converter.ir import build
from converter.ir.build import Edit
from converter.passes import quantized

__all__ = ["run"]


def run(model: ir.Model) -> int:
    """The number of Adds fused."""
    count = 0
    for graph in build.graphs(model):
        order = {node: i for i, node in enumerate(graph)}
        for node in list(graph):
            if build.is_op(node, "Add"):
                count += _fuse(node, order)
    return count


def _fuse(node: ir.Node, order: dict[ir.Node, int]) -> bool:
    operands = [v for v in node.inputs if v is not None]
    if len(operands) != 2 or operands[0] is operands[1]:
        return False
    candidates = [(v, other) for v, other in zip(operands, operands[::-1], strict=True) if _fits(v, other, node)]
    if not candidates:
        return False
    value, residual = max(candidates, key=lambda pair: order.get(pair[0].producer(), -1))  # type: ignore[arg-type]
    producer = value.producer()
    assert producer is not None and producer.graph is not None
    inputs = [*producer.inputs, None, None][:3]
    edit = Edit(node)
    result = edit.op(
        producer.op_type, [*inputs, residual], dict(producer.attributes), domain=build.DOMAIN, like=node.outputs[0]
    )
    order[result.producer()] = order[node]  # type: ignore[index]
    edit.replace(result)
    producer.graph.remove(producer, safe=True)
    return True


def _fits(value: ir.Value, residual: ir.Value, node: ir.Node) -> bool:
    producer = value.producer()
    if producer is None or producer.op_type not in ("Conv", "MatMul") or build.sole_use(value) is not node:
        return False
    if value.dtype != ir.DataType.FLOAT or build.array(residual) is not None:
        return False
    if build.get_attr(producer, "activation") or any(v is not None for v in producer.inputs[3:]):
        return False
    if quantized.contracts_integers(producer):
        return False
    return build.same_dims(value, node.outputs[0]) and build.same_dims(residual, node.outputs[0])
