"""Remove dequantisation followed by quantisation with the same parameters.

Q(DequantizeLinear(q)) -> q, scales along an axis included. Where the parameters differ, `lookup_tables` has a table for
8 bits; others stay two operators, which run as one pass over the integers.
"""

from __future__ import annotations

import onnx_ir as ir

from converter.ir import build
from converter.ir.build import Edit
from converter.passes import quantized

__all__ = ["run"]


def run(model: ir.Model) -> int:
    """The number of QuantizeLinears removed."""
    return sum(_merge(node) for node in build.nodes(model) if build.is_op(node, "QuantizeLinear"))


def _merge(node: ir.Node) -> bool:
    wanted, given = quantized.quantizer(node), quantized.dequantized(node.inputs[0])
    if wanted is None or given is None or not quantized.same(wanted, given.parameters):
        return False
    if node.outputs[0].is_graph_output() and (given.q.is_graph_output() or given.q.producer() is None):
        return False
    Edit(node).replace(given.q)
    return True
