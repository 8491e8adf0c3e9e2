"""Quantisation: rounding passes the gradient straight through where the result is not saturated, and stops it where it
is (Bengio, Leonard & Courville, 2013, arXiv:1308.3432). The integers in between carry the gradient of the numbers they
represent."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from converter.ir import build
from converter.ir.grad.rules import At, Gradients, refuse, rule

__all__: list[str] = []


@refuse("QuantizeLinear", "DequantizeLinear")
def _other_operands(node: ir.Node) -> str:
    """Trained scales belong to quantisation-aware training, which `cloud` does."""
    if node.op_type == "DequantizeLinear" and not build.is_op(node.inputs[0].producer(), "QuantizeLinear"):  # type: ignore[union-attr]
        return "integers that QuantizeLinear did not produce have no gradient"
    known = node.outputs[0].dtype if node.op_type == "QuantizeLinear" else None
    return "" if known is None or known.is_integer() else f"only integers are differentiated, got {known.name}"


@rule("DequantizeLinear")
def _dequantize(n: At) -> Gradients:
    return [n.g]


@rule("QuantizeLinear")
def _quantize(n: At) -> Gradients:
    q = n.y.cast(n.x.dtype)
    bits = np.iinfo(n.y.dtype.numpy()) if n.y.dtype.bitwidth >= 8 else None
    low, high = (bits.min, bits.max) if bits else _narrow(n.y.dtype)
    return [n.tape.where(q > float(low), n.tape.where(q < float(high), n.g, 0.0), 0.0)]


def _narrow(dtype: ir.DataType) -> tuple[int, int]:
    """The range of integers narrower than a byte."""
    half = 1 << (dtype.bitwidth - 1)
    return (-half, half - 1) if dtype.is_signed() else (0, 2 * half - 1)
