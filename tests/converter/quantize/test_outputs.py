"""Quantising models whose outputs are not numbers, or that have none."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import converter
from converter import QuantizeError
from converter.frontends import load
from tests.converter.support import Builder


def test_sequences_have_no_noise() -> None:
    b = Builder(opset=21)
    x = b.input("x", [1, 4])
    y = b("MatMul", x, b.weight(4, 4))
    model = b.model(b("SequenceConstruct", y, y), y)
    rows = [{"x": np.ones((1, 4), np.float32)}, {"x": np.zeros((1, 4), np.float32)}]
    report = converter.convert(model, quantize="int8", calibration=rows).report
    assert report.quantization is not None


def test_rows_of_other_ranks_are_compared_no_further() -> None:
    b = Builder(opset=21)
    y = b("Relu", b.input("x", [None, None, None]))
    model = b.model(y)
    model.graph.input[0].type.tensor_type.ClearField("shape")
    model.graph.output[0].type.tensor_type.ClearField("shape")
    rows = [{"x": np.ones((2, 3, 4), np.float32)}, {"x": np.zeros(5, np.float32)}]
    assert converter.convert(model, quantize="int8", calibration=rows).bundle


def test_a_model_without_outputs() -> None:
    b = Builder(opset=21)
    model = load(b.model(b("Relu", b.input("x", [1, 4])))).models["predict"]
    model.graph.outputs.clear()
    with pytest.raises((QuantizeError, converter.ConvertError), match="outputs"):
        converter.convert(model, quantize="int8", calibration=[{"x": np.ones((1, 4), np.float32)}])
    with pytest.raises(converter.ConvertError, match="no outputs"):
        converter.convert(onnx.helper.make_model(onnx.helper.make_graph([], "g", [], [])))
