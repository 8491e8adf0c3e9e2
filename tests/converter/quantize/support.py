"""Models for the tests of the quantiser: prepared as the quantiser takes them, and run on onnxruntime."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from converter import export
from converter.pass_lists import PREPARE, optimize, to_ir
from converter.quantize import Samples, calibration_data
from tests import oracles
from tests.converter.support import Builder

__all__ = ["Builder", "outlier_network", "prepared", "run", "samples"]


def prepared(model: onnx.ModelProto) -> ir.Model:
    """IR as `quantize` takes it."""
    made = to_ir(model)
    optimize(made, PREPARE)
    return made


def run(model: ir.Model, inputs: Mapping[str, np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]]:
    """The model's outputs by onnxruntime, its own optimisations switched off."""
    session = oracles.session(onnx.load_from_string(export.onnx_bytes(model.clone())), optimised=False)
    return list(session.run(None, dict(inputs)))


def samples(model: ir.Model, x: np.ndarray[Any, Any]) -> Samples:
    """Calibration rows of a model of one input."""
    return calibration_data({model.graph.inputs[0].name or "": x}, model)


def outlier_network(seed: int = 0, *, width: int = 48, layers: int = 6) -> onnx.ModelProto:
    """A residual network with a classifier, [n, 16] -> [n, 10], that int8 per tensor breaks.

    In the middle block, a few hidden units are a thousand times larger than the others: they share an 8-bit scale, and
    the others fall below one step. The hidden activation, Sigmoid-gated, lets no factor be moved out of it, so
    equalisation cannot help.
    """
    b = Builder(seed=seed)
    rng = b.rng

    def matrix(rows: int, columns: int) -> np.ndarray[Any, Any]:
        return (rng.standard_normal((rows, columns)) / np.sqrt(rows)).astype(np.float32)

    h = b("Relu", b("Gemm", b.input("x", ["n", 16]), b.const(matrix(16, width)), b.const(np.zeros(width, np.float32))))
    for layer in range(layers):
        up, down = matrix(width, 4 * width), matrix(4 * width, width)
        if layer == layers // 2:
            up[:, :3] *= 1000
            down[:3] *= 1e-3
        hidden = b("MatMul", h, b.const(up))
        gated = b("Mul", hidden, b("Sigmoid", hidden))
        h = b("Add", h, b("MatMul", gated, b.const(down)))
    b("Gemm", h, b.const(matrix(width, 10)), b.const(np.zeros(10, np.float32)))
    return b.model(b.nodes[-1].output[0])
