"""Recurrent weights stay bytes: LSTM(x, w, DequantizeLinear(r), ...) -> our LSTM(x, w, r, ..., scales); GRU likewise.

Only for constant int8 weights without zero points, with scales per gate row, or in blocks along the summed axis.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from converter.ir import build
from converter.ir.build import Edit
from converter.passes import quantized

__all__ = ["run"]

_INPUTS = {"LSTM": 8, "GRU": 6}
"""The number of operands of ONNX's operator; the scales follow them."""


def run(model: ir.Model) -> int:
    """The number of operators whose recurrent weights stay bytes."""
    return sum(_keep(node) for node in build.nodes(model) if build.is_op(node, *_INPUTS))


def _keep(node: ir.Node) -> bool:
    r, found = quantized.dequantized(node.inputs[2]), quantized.stored(node.inputs[2])
    if r is None or found is None or found.q.dtype != np.int8 or (found.zero is not None and found.zero.any()):
        return False
    scales = _scales(found)
    if scales is None:
        return False
    edit = Edit(node)
    given = [*node.inputs, *[None] * (_INPUTS[node.op_type] - len(node.inputs))]
    given[2] = r.q
    inputs = [*given, edit.const(scales, hint=f"{r.q.name}.scale")]
    attrs = {**node.attributes, "block_size": found.block or found.q.shape[2]}
    made = edit.ops(node.op_type, inputs, attrs, domain=build.DOMAIN, outputs=len(node.outputs))
    for new, old in zip(made, node.outputs, strict=True):
        new.type, new.shape = old.type, old.shape
    edit.replace(*made)
    return True


def _scales(found: quantized.Stored) -> np.ndarray | None:
    """(directions, gates * hidden, blocks); None if they are along another axis."""
    directions, gates, _ = found.q.shape
    if found.axis is None or (found.axis in (0, 1) and not found.block):
        along = [-1 if i == found.axis else 1 for i in range(3)]
        scale = found.scale if found.axis is None else found.scale.reshape(along)
        return np.broadcast_to(scale, (directions, gates, 1)).astype(np.float32)
    return found.scale.astype(np.float32) if found.axis == 2 and found.block else None
