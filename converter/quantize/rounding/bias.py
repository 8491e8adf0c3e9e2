"""Finding the bias of a contraction, and adding to it."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir

from converter.ir import build

__all__ = ["AXES", "Place", "compensate", "integers", "place"]

Array = np.ndarray[Any, np.dtype[Any]]
AXES = {"Conv": 1, "ConvTranspose": 1, "Gemm": -1, "MatMul": -1}
"""Contractions -> the channel axis of their result."""
_INT32 = np.iinfo(np.int32)


class Place(NamedTuple):
    """The bias is operand `operand` of `holder`: the contraction itself, or an Add after it."""

    holder: ir.Node
    operand: int

    def add(self, shift: Array) -> bool:
        """Add `shift` (float32 [channels]) to the bias, whatever its form; returns whether it changed."""
        if not shift.any():
            return False
        holder, operand = self
        old = holder.inputs[operand] if operand < len(holder.inputs) else None
        edit, stored = build.Edit(holder), integers(old)
        if stored is not None:
            assert old is not None
            values, scales = stored
            moved = np.clip(np.rint(values + shift / scales), _INT32.min, _INT32.max).astype(values.dtype)
            producer = old.producer()
            assert producer is not None
            made = edit.op("DequantizeLinear", [edit.const(moved), *producer.inputs[1:]], {"axis": 0}, like=old)
            changed = bool((moved != values).any())
        else:
            bias = build.array(old)
            hint = f"{holder.outputs[0].name}.bias"
            made = edit.const((shift if bias is None else bias + shift).astype(np.float32), hint=hint)
            changed = True
        if operand >= len(holder.inputs):
            holder.resize_inputs(operand + 1)
        holder.replace_input_with(operand, made)
        return changed


def place(node: ir.Node) -> Place | None:
    """The place of a contraction's bias; None if it has no constant one and no place for one."""
    if node.domain != "" or node.op_type not in AXES or not build.rank(node.outputs[0]):
        return None
    if node.op_type != "MatMul":
        bias = node.inputs[2] if len(node.inputs) > 2 else None
        return Place(node, 2) if bias is None or build.array(bias) is not None or integers(bias) is not None else None
    adder = build.sole_use(node.outputs[0])
    if adder is None or not build.is_op(adder, "Add"):
        return None
    operand = 1 if adder.inputs[0] is node.outputs[0] else 0
    values, width = build.array(adder.inputs[operand]), build.dims(node.outputs[0])
    fits = values is not None and width is not None and values.shape == (width[-1],)
    return Place(adder, operand) if fits else None


def compensate(node: ir.Node, shift: Array | None) -> None:
    """Add the correction for rounded weights (`weights.Quantized.shift`), if there is one, to a contraction's bias."""
    found = None if shift is None else place(node)
    if found is not None and shift is not None:
        found.add(shift)


def integers(value: ir.Value | None) -> tuple[Array, Array] | None:
    """(integers, scales) of a DequantizeLinear of constants, else None."""
    node = None if value is None else value.producer()
    if node is None or not build.is_op(node, "DequantizeLinear"):
        return None
    stored, scales = build.array(node.inputs[0]), build.array(node.inputs[1])
    return None if stored is None or scales is None else (stored, scales)
