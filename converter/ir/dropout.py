"""Dropout as an input: a network whose random masks the caller chooses, so that a device can draw several answers."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from converter.errors import ConvertError
from converter.ir import build
from lite_runtime.active.dropout import MASK

__all__ = ["dropout_inputs"]


def dropout_inputs(model: ir.Model) -> ir.Model:
    """A copy of `model` where each Dropout is a product with a new input, `dropout_mask:RATE:NAME`, float32 of the
    shape of one row [1, ...]. A mask of ones leaves the network as it is without dropout.

    Convert the copy, and let `lite_runtime.active.dropout_draws` make the masks. Raises ConvertError for a network
    without dropout, with one of unknown rate, or on values whose sizes behind the batch are open.
    """
    found = model.clone()
    graph = found.graph
    nodes = [node for node in graph if node.op_type == "Dropout" and node.domain in ("", "ai.onnx")]
    if not nodes:
        raise ConvertError("expected a network with Dropout, got none; was it exported in training form?")
    for number, node in enumerate(nodes):
        x, rate = node.inputs[0], _rate(node)
        shape = build.dims(x) if x is not None else None
        if x is None or not shape or not all(isinstance(size, int) for size in shape[1:]):
            raise ConvertError(f"Dropout {node.name!r}: expected fixed sizes behind the batch, got {shape}")
        mask = ir.val(f"{MASK}{rate:g}:{node.name or number}", ir.DataType.FLOAT, [1, *shape[1:]])
        graph.inputs.append(mask)
        product = ir.node("Mul", [x, mask], name=node.name)
        old, new = node.outputs[0], product.outputs[0]
        new.shape, new.type = old.shape, old.type
        graph.insert_before(node, product)
        old.replace_all_uses_with(new, replace_graph_outputs=True)
        new.name, old.name = old.name, None
        graph.remove(node, safe=True)
    return found


def _rate(node: ir.Node) -> float:
    """The ratio: the second input, or 0.5."""
    ratio = node.inputs[1] if len(node.inputs) > 1 else None
    if ratio is None:
        return 0.5
    if ratio.const_value is None:
        raise ConvertError(f"Dropout {node.name!r}: expected a constant ratio, got a computed one")
    return float(np.asarray(ratio.const_value.numpy()).reshape(()))
