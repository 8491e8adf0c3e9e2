"""Gemm becomes our MatMul with bias, transA and transB.

1. alpha = 1, or a constant B into which alpha is multiplied.
2. beta = 1, or a constant C into which beta is multiplied, or no C.
The factor of a quantised constant is multiplied into its scales.
Anything else stays Gemm.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx_ir as ir

from converter.ir import build
from converter.ir.build import Edit, attr
from converter.passes import quantized

__all__ = ["run"]


def run(model: ir.Model) -> int:
    """The number of Gemm operators replaced."""
    return sum(_replace(node) for node in build.nodes(model) if build.is_op(node, "Gemm"))


def _replace(node: ir.Node) -> bool:
    a, b = node.inputs[:2]
    c = node.inputs[2] if len(node.inputs) > 2 else None
    if a is None or b is None or a.dtype not in (ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16):
        return False
    edit = Edit(node)
    scaled_b, scaled_c = _scaled(edit, b, attr(node, "alpha", 1.0)), _scaled(edit, c, attr(node, "beta", 1.0))
    if scaled_b is None or (c is not None and scaled_c is None):
        return False
    attrs = {"transA": attr(node, "transA", 0), "transB": attr(node, "transB", 0)}
    inputs = [a, scaled_b] if scaled_c is None else [a, scaled_b, scaled_c]
    edit.replace(edit.op("MatMul", inputs, attrs, domain=build.DOMAIN, like=node.outputs[0]))
    return True


def _scaled(edit: Edit, value: ir.Value | None, factor: float) -> ir.Value | None:
    if value is None or factor == 1.0:
        return value
    weight = quantized.stored(value)
    if weight is not None and factor > 0:
        scale = (weight.scale.astype(np.float64) * factor).astype(np.float32)
        return replace(weight, scale=scale).emit(edit)
    found = build.array(value)
    if found is None:
        return None
    return edit.const((found.astype(np.float64) * factor).astype(found.dtype), hint=value.name or "")
