"""Preparation of a model before lowering and before export: both must see the same nodes and initialisers."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir
import onnx_ir.passes.common as ir_passes

from cloud.errors import EngineError

__all__ = ["STATISTICS", "batch_norms", "prepared"]

STATISTICS = (3, 4)
"""The operands of BatchNormalization that hold the running mean and variance."""


def batch_norms(graph: ir.Graph) -> Iterator[ir.Node]:
    """The BatchNormalization nodes of the main graph."""
    return (node for node in graph if node.op_type == "BatchNormalization" and node.domain in ("", "ai.onnx"))


def prepared(model: ir.Model) -> ir.Model:
    """A copy with functions inlined, and with separate running statistics for every BatchNormalization.

    Tools that merge equal initialisers make new layers share one array of zeros; training needs separate ones.
    Weight tensors are shared with `model`, which is not changed.
    """
    copy = model.clone()
    if copy.functions:
        ir_passes.InlinePass()(copy)
    for node in batch_norms(copy.graph):
        for operand in STATISTICS:
            _untie(copy.graph, node, operand)
    return copy


def _untie(graph: ir.Graph, node: ir.Node, operand: int) -> None:
    value = node.inputs[operand] if len(node.inputs) > operand else None
    if value is None:
        raise EngineError(f"BatchNormalization {node.name!r} must have 5 inputs, got {len(node.inputs)}")
    if value.name not in graph.initializers or (len(value.uses()) == 1 and not value.is_graph_output()):
        return
    name = f"{value.name}:{node.outputs[0].name}:{operand}"
    own = ir.Value(name=name, shape=value.shape, type=value.type, const_value=value.const_value)
    graph.register_initializer(own)
    node.replace_input_with(operand, own)
