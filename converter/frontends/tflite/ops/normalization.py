"""Normalisation without parameters."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from converter.frontends.tflite.op import Op, translate

__all__: list[str] = []

_SMALLEST_NORM = np.float32(1e-6)
"""TFLite divides by the norm, but by no less than this."""


@translate("L2_NORMALIZATION")
def l2_normalization(op: Op) -> ir.Value:
    """Divided by the Euclidean norm over the last axis."""
    x = op.real(0)
    norm = op.emit("ReduceL2", [x, op.constant([-1])], {"keepdims": 1})
    return op.activation(op.emit("Div", [x, op.emit("Max", [norm, op.constant(_SMALLEST_NORM)])]))


@translate("LOCAL_RESPONSE_NORMALIZATION")
def local_response(op: Op) -> ir.Value:
    """x / (bias + alpha * sum of squares of the 2 * radius + 1 channels around)^beta. ONNX's alpha is per channel."""
    size = 2 * int(op.option("radius", 0)) + 1
    alpha, beta, bias = (float(op.option(name, 0.0)) for name in ("alpha", "beta", "bias"))
    attrs = {"size": size, "alpha": alpha * size, "beta": beta, "bias": bias}
    return op.nhwc(op.emit("LRN", [op.nchw(op.real(0))], attrs))
