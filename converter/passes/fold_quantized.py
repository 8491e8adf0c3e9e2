"""Operations on quantised constants are applied to their integers, so that the file still stores integers.

1. QuantizeLinear of a constant: the integers.
2. Transpose, Reshape, Flatten, Squeeze, Unsqueeze of a DequantizeLinear of constants: the DequantizeLinear of the
   moved integers, its axis moved along.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import onnx_ir as ir

from converter.ir import build
from converter.ir.build import Edit, attr
from converter.passes import quantized
from converter.passes.quantized import Stored
from lite_runtime.errors import MsedgeError
from lite_runtime.operators import having

__all__ = ["run"]


def run(model: ir.Model) -> int:
    """The number of operators evaluated."""
    count = 0
    for node in build.nodes(model):
        if node.graph is not None and node.domain == "":
            count += _quantize(node) if node.op_type == "QuantizeLinear" else _move(node)
    return count


def _quantize(node: ir.Node) -> bool:
    from lite_runtime.reference import DEFINITIONS

    operands = [build.array(v) for v in node.inputs]
    if any(a is None and v is not None for a, v in zip(operands, node.inputs, strict=True)):
        return False
    attrs = {name: a.value for name, a in node.attributes.items()}
    try:
        with np.errstate(all="ignore"):
            made = DEFINITIONS["QuantizeLinear"](*operands, **attrs)
    except MsedgeError:
        return False
    edit = Edit(node)
    edit.replace(edit.const(made, hint=node.outputs[0].name or ""))
    return True


def _move(node: ir.Node) -> bool:
    move = _MOVES.get(node.op_type)
    weight = quantized.stored(node.inputs[0]) if move is not None else None
    moved = move(node, weight) if move is not None and weight is not None else None
    if moved is None:
        return False
    edit = Edit(node)
    edit.replace(moved.emit(edit))
    return True


def _transpose(node: ir.Node, weight: Stored) -> Stored:
    return weight.transposed(attr(node, "perm", None) or tuple(reversed(range(weight.q.ndim))))


def _reshape(node: ir.Node, weight: Stored) -> Stored | None:
    shape = build.static_dims(node.outputs[0])
    return None if shape is None else weight.reshaped(shape)


_MOVES: Mapping[str, Callable[[ir.Node, Stored], Stored | None]] = {
    "Transpose": _transpose,
    **dict.fromkeys(having("view"), _reshape),
}
