"""How lowering translates attributes, types and constants."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from converter import ConvertError, convert
from converter.lowering import halve_weights, lower
from converter.pass_lists import to_ir
from lite_runtime.graph import Graph, Node, Value
from tests.converter.support import Builder


def test_attributes_are_python_values():
    b = Builder()
    value = onnx.helper.make_tensor("v", 1, [1], [2.0])
    x = b("Conv", b.input("x", [1, 1, 4, 4]), b.weight(1, 1, 1, 1), strides=[1, 2], auto_pad="VALID")
    y = b("ConstantOfShape", b("Shape", x), value=value)
    nodes = lower(to_ir(b.model(b("LeakyRelu", y, alpha=0.25)))).nodes
    assert nodes[0].attrs == {"strides": (1, 2), "auto_pad": "VALID"}
    assert nodes[2].attrs["value"].tolist() == [2.0] and nodes[3].attrs["alpha"] == 0.25


def test_optional_operands_left_out():
    b = Builder()
    nodes = lower(to_ir(b.model(b("Clip", b.input("x", [2]), "", b.const(1.0, np.float32))))).nodes
    assert nodes[0].inputs[1] == "" and len(nodes[0].inputs) == 3


def test_required_outputs_without_readers_are_kept():
    b = Builder()
    values, _ = b("TopK", b.input("x", [4]), b.const(np.array([2])), outputs=2)
    (node,) = lower(to_ir(b.model(values))).nodes
    assert len(node.outputs) == 2 and node.outputs[1] == ""


def test_text_constants_are_strings():
    b = Builder()
    text = b.const(np.array(["a", "é"], object))
    b.inputs.append(onnx.helper.make_tensor_value_info("x", onnx.TensorProto.STRING, [2]))
    graph = lower(to_ir(b.model(b("Equal", "x", text))))
    assert next(iter(graph.constants.values())).tolist() == ["a", "é"]
    assert graph.inputs[0].dtype == "string"


def test_constants_are_not_copied():
    b = Builder()
    model = to_ir(b.model(b("MatMul", b.input("x", [2, 3]), b.weight(3, 4))))
    weights = np.ones((3, 4), np.float32)
    next(iter(model.graph.initializers.values())).const_value = ir.tensor(weights)
    assert np.shares_memory(next(iter(lower(model).constants.values())), weights)


def test_unknown_types_are_refused():
    model = to_ir(relu())
    model.graph.outputs[0].type = None
    with pytest.raises(ConvertError, match="element type is unknown"):
        lower(model)


def relu():
    b = Builder()
    return b.model(b("Relu", b.input("x", [2])))


def test_halving_skips_small_and_overflowing_constants():
    constants = {
        "small": np.ones(8, np.float32),
        "large": np.ones(64, np.float32),
        "huge": np.full(64, 1e30, np.float32),
        "infinite": np.full(64, np.inf, np.float32),
        "int": np.ones(64, np.int64),
    }
    out = Value("y", "float32", (64,))
    graph = Graph((), (out,), (Node("Add", ("large", "huge"), ("y",)),), constants)
    halved = halve_weights(graph)
    assert (halved.stored, halved.overflowed) == (2, 1)
    assert {n: c.dtype.name for n, c in halved.graph.constants.items()} == {
        "small": "float32",
        "large.float16": "float16",
        "huge": "float32",
        "infinite.float16": "float16",
        "int": "int64",
    }


def test_a_window_larger_than_the_input_is_refused():
    """onnx's inference gives a negative size; the bundle would not open."""
    b = Builder()
    y = b("MaxPool", b.input("x", [1, 3, 32, 32]), kernel_shape=[255, 2])
    with pytest.raises(ConvertError, match=r"MaxPool .* the shape \[1, 3, -222, 31\]: its window is larger"):
        convert(b.model(y))
