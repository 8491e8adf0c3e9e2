"""Activations of one operand."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from converter.frontends.tflite.op import Op, named, translate
from converter.frontends.tflite.ops.operands import cast

__all__: list[str] = []

_PLAIN = named({"ELU": "Elu", "HARD_SWISH": "HardSwish", "LOGISTIC": "Sigmoid", "RELU": "Relu", "TANH": "Tanh"})
_CLIPS = {"RELU6": (0.0, 6.0), "RELU_N1_TO_1": (-1.0, 1.0), "RELU_0_TO_1": (0.0, 1.0)}


@translate(*_PLAIN)
def plain(op: Op) -> ir.Value:
    """One ONNX operator with its default attributes."""
    return op.emit(_PLAIN[op.name], [op.real(0)])


@translate(*_CLIPS)
def clip(op: Op) -> ir.Value:
    """Cut to a fixed range."""
    x = op.real(0)
    dtype = np.dtype(x.dtype.numpy() if x.dtype else np.float32)
    least = 0.0 if dtype.kind == "u" else -np.inf  # -1 is no unsigned number
    low, high = (op.constant(np.asarray(max(v, least), dtype)) for v in _CLIPS[op.name])
    return op.emit("Clip", [x, low, high])


@translate("GELU")
def gelu(op: Op) -> ir.Value:
    """x * Phi(x), exactly or by tanh."""
    return op.emit("Gelu", [op.real(0)], {"approximate": "tanh" if op.option("approximate") else "none"})


@translate("LEAKY_RELU")
def leaky_relu(op: Op) -> ir.Value:
    """x, or alpha * x where negative."""
    return op.emit("LeakyRelu", [op.real(0)], {"alpha": float(op.option("alpha", 0.0))})


@translate("PRELU")
def prelu(op: Op) -> ir.Value:
    """x, or slope * x where negative; the slope broadcasts from the right, as ONNX's does."""
    return op.emit("PRelu", [op.real(0), op.real(1)])


@translate("SOFTMAX")
def softmax(op: Op) -> ir.Value:
    """exp(beta * x), normalised over the last axis."""
    x, beta = op.real(0), float(op.option("beta", 1.0))
    if beta != 1.0:
        x = op.emit("Mul", [x, cast(op, op.constant(beta), x.dtype)])
    return op.emit("Softmax", [x], {"axis": -1})


@translate("LOG_SOFTMAX")
def log_softmax(op: Op) -> ir.Value:
    """The logarithm of softmax over the last axis."""
    return op.emit("LogSoftmax", [op.real(0)], {"axis": -1})
