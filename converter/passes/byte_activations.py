"""MatMulNBits with accuracy_level 4 reads 8-bit integers: a DynamicQuantizeBlocks before it, one for all readers of a
value.

Graphs to be differentiated have the one operator, whose gradient is that of a product of real numbers.
"""

from __future__ import annotations

import onnx_ir as ir

from converter.ir import build
from converter.ir.build import Edit, attr
from lite_runtime.operators.language import ACTIVATIONS, unit_of

__all__ = ["run"]

_BYTES = 4
"""ONNX Runtime's accuracy_level for activations of 8 bits."""


def run(model: ir.Model) -> int:
    """The number of products that read integers now."""
    return sum(_in_graph(graph) for graph in build.graphs(model))


def _in_graph(graph: ir.Graph) -> int:
    made: dict[tuple[ir.Value, int], tuple[ir.Value, ...]] = {}
    count = 0
    for node in list(graph):
        if not build.is_op(node, "MatMulNBits", domain=build.DOMAIN) or "accuracy_level" not in node.attributes:
            continue
        level = attr(node, "accuracy_level", 0)
        node.attributes.pop("accuracy_level")
        unit = _unit(node)
        if level == _BYTES and unit:
            _read_bytes(node, unit, made)
            count += 1
    return count


def _unit(node: ir.Node) -> int:
    """The size of blocks of activations, of which sums run over whole ones, and which do not reach across blocks of
    weights; 0: there is none."""
    transposed = attr(node, "transposed", 0)
    depth, block = attr(node, "N" if transposed else "K", 0), attr(node, "block_size", 0)
    unit = ACTIVATIONS if transposed else unit_of(block)
    return unit if unit and depth % unit == 0 else 0


def _read_bytes(node: ir.Node, unit: int, made: dict[tuple[ir.Value, int], tuple[ir.Value, ...]]) -> None:
    x = node.inputs[0]
    assert x is not None
    if (x, unit) not in made:
        blocks = {"block_size": unit}
        made[x, unit] = Edit(node).ops("DynamicQuantizeBlocks", [x], blocks, outputs=3, domain=build.DOMAIN)
    q, scales, sums = made[x, unit]
    if len(node.inputs) < 6:
        node.resize_inputs(6)
    for i, value in ((0, q), (4, scales), (5, sums)):
        node.replace_input_with(i, value)
