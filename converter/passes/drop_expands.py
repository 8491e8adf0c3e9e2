"""op(Expand(a, shape), b) = op(a, b) where b already has that shape, because elementwise operators broadcast.

This is common in gradients: an expanded gradient of a reduction is combined with the mask of an activation. Every
reader of the Expand must be such an operator; otherwise the Expand would stay.
"""

from __future__ import annotations

import onnx_ir as ir

from converter.ir import build
from converter.ir.build import dims
from lite_runtime.operators import having

__all__ = ["run"]

def run(model: ir.Model) -> int:
    """The number of Expands removed."""
    return sum(_drop(node) for node in list(build.nodes(model)) if build.is_op(node, "Expand"))


def _drop(node: ir.Node) -> bool:
    source, result = node.inputs[0], node.outputs[0]
    uses = list(result.uses())
    if source is None or dims(source) is None or result.is_graph_output() or not uses:
        return False
    if not all(_spreads(use.node, result) for use in uses):
        return False
    for use in uses:
        use.node.replace_input_with(use.idx, source)
    assert node.graph is not None
    node.graph.remove(node, safe=True)
    return True


def _spreads(reader: ir.Node, value: ir.Value) -> bool:
    """Whether another operand of the reader has all of `value`'s sizes."""
    shape = dims(value)
    if shape is None or None in shape or reader.op_type not in having("broadcasts") or reader.domain:
        return False
    return any(v is not None and v is not value and dims(v) == shape for v in reader.inputs)
