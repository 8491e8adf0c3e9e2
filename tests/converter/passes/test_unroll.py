"""Scan and Loop with few turns become copies of their body, with the same results."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

import converter
import lite_runtime
from converter import convert
from converter.passes import unroll
from tests.converter.frontends.tflite.support import floats

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


def info(name: str, kind: int, shape: list[int] | None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def proto(nodes: list[onnx.NodeProto], inputs: list[Any], outputs: list[Any], **weights: np.ndarray) -> onnx.ModelProto:
    kept = [onnx.numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "g", inputs, outputs, kept)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def cell(*, axis: int = 0) -> onnx.GraphProto:
    """h = tanh(x @ w + h), y = h * 2; w is outside, the factor a constant of the body."""
    nodes = [
        helper.make_node("MatMul", ["xt", "w"], ["a"]),
        helper.make_node("Add", ["a", "h"], ["s"]),
        helper.make_node("Tanh", ["s"], ["hn"]),
        helper.make_node("Mul", ["hn", "two"], ["yt"]),
    ]
    factor = onnx.numpy_helper.from_array(np.float32(2), "two")
    ends = [info("h", FLOAT, [2, 3]), info("xt", FLOAT, [2, 4])], [info("hn", FLOAT, [2, 3]), info("yt", FLOAT, [2, 3])]
    return helper.make_graph(nodes, "body", *ends, [factor])


@pytest.mark.parametrize("turns", [1, 5])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("back", [(0, 0), (1, 0), (0, 1)])
def test_scan(turns: int, axis: int, back: tuple[int, int]) -> None:
    shape = [2, 4]
    shape.insert(axis, turns)
    node = helper.make_node(
        "Scan", ["h0", "x"], ["last", "y"], body=cell(), num_scan_inputs=1, scan_input_axes=[axis],
        scan_output_axes=[axis], scan_input_directions=[back[0]], scan_output_directions=[back[1]],
    )  # fmt: skip
    ends = [info("h0", FLOAT, [2, 3]), info("x", FLOAT, shape)], [info("last", FLOAT, None), info("y", FLOAT, None)]
    model = proto([node], *ends, w=floats(4, 3))
    check(model, {"h0": floats(2, 3, seed=1), "x": floats(*shape, seed=2)})


@pytest.mark.parametrize("condition", ["handed on", "constant"])
def test_loop(condition: str) -> None:
    """A sum that grows by one column in each turn: shapes differ between turns."""
    nodes = [
        helper.make_node("Cast", ["i"], ["f"], to=FLOAT),
        helper.make_node("Mul", ["x", "f"], ["column"]),
        helper.make_node("Concat", ["v", "column"], ["vn"], axis=1),
        helper.make_node("ReduceSum", ["vn"], ["total"], keepdims=0),
        helper.make_node("Identity", ["c" if condition == "handed on" else "yes"], ["cn"]),
    ]
    body = helper.make_graph(
        nodes, "body",
        [info("i", INT64, []), info("c", BOOL, []), info("v", FLOAT, None)],
        [info("cn", BOOL, []), info("vn", FLOAT, None), info("total", FLOAT, None)],
        [onnx.numpy_helper.from_array(np.array(True), "yes")],
    )  # fmt: skip
    node = helper.make_node("Loop", ["m", "", "x"], ["grown", "totals"], body=body)
    ends = [info("x", FLOAT, [2, 1])], [info("grown", FLOAT, None), info("totals", FLOAT, None)]
    check(proto([node], *ends, m=np.array(4, np.int64)), {"x": floats(2, 1)})


def check(model: onnx.ModelProto, inputs: dict[str, np.ndarray]) -> None:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    want = session.run(None, inputs)
    loaded = lite_runtime.load(convert(model).bundle)
    got = loaded.run(inputs)
    for output, array in zip(model.graph.output, want, strict=True):
        assert got[output.name].shape == array.shape
        np.testing.assert_allclose(got[output.name], array, atol=1e-5)
    assert not {"Scan", "Loop"} & {node.op for node in loaded.bundle.signatures["predict"].walk()}
    assert not loaded.cost(inputs).reference


@pytest.mark.parametrize("why", ["computed trips", "a condition that ends", "too many turns"])
def test_others_stay(why: str) -> None:
    nodes = [
        helper.make_node("Add", ["v", "x"], ["vn"]),
        helper.make_node("ReduceSum", ["vn"], ["t"], keepdims=0),
        helper.make_node("Less", ["t", "limit"], ["cn"]),
    ]
    body = helper.make_graph(
        nodes, "body", [info("i", INT64, []), info("c", BOOL, []), info("v", FLOAT, [2])],
        [info("c" if why != "a condition that ends" else "cn", BOOL, []), info("vn", FLOAT, [2])],
        [onnx.numpy_helper.from_array(np.float32(9), "limit")],
    )  # fmt: skip
    trips = {} if why == "computed trips" else {"m": np.array(unroll.MOST_NODES if "many" in why else 5, np.int64)}
    inputs = [info("x", FLOAT, [2]), *([] if trips else [info("m", INT64, [])])]
    node = helper.make_node("Loop", ["m", "", "x"], ["y"], body=body)
    model = converter.to_ir(proto([node], inputs, [info("y", FLOAT, [2])], **trips))
    assert unroll.run(model) == 0
