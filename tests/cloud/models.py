"""Small models the tests share."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
from onnx import parser

from cloud.zoo import Builder

__all__ = ["parsed", "run_onnx", "tiny_net"]


def parsed(body: str, opset: int = 22) -> ir.Model:
    """A model from ONNX's text form."""
    return ir.from_proto(parser.parse_model(f'<ir_version: 10, opset_import: ["" : {opset}]> {body}'))


def run_onnx(model: ir.Model, **inputs: np.ndarray) -> list[np.ndarray]:
    """What onnxruntime makes of it."""
    text = ir.to_proto(model)
    onnx.checker.check_model(text)
    session = onnxruntime.InferenceSession(text.SerializeToString(), providers=["CPUExecutionProvider"])
    return list(session.run(None, inputs))


def tiny_net(seed: int = 0, dropout: float = 0.0) -> ir.Model:
    """Images [batch, 1, 8, 8] to 10 logits: one convolution with batch norm, pooled and dense."""
    b = Builder("tiny", seed)
    y = b.conv_bn_relu(b.input("x", ("batch", 1, 8, 8)), 6, 3, stride=2, name="stem")
    flat = b.op("Flatten", b.dropout(y, dropout, name="drop"), shape=("batch", 96), axis=1)
    return b.model(logits=b.dense(flat, 10, name="head"))
