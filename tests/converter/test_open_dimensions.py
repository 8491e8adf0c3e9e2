"""Open sizes: nameless ones, outputs declared with sizes of a traced run, and reports where 1 is no valid size."""

from __future__ import annotations

import numpy as np
import onnx.reference
import pytest
from onnx import TensorProto, helper

import lite_runtime
from converter import convert
from converter.report.html import escape
from converter.report.page import page

RNG = np.random.default_rng(0)


def model(nodes: list[onnx.NodeProto], inputs: dict[str, list], outputs: dict[str, list | None], **weights: np.ndarray):
    def info(name: str, shape: list | None) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)

    graph = helper.make_graph(
        nodes, "g", [info(*v) for v in inputs.items()], [info(*v) for v in outputs.items()],
        [onnx.numpy_helper.from_array(array, name) for name, array in weights.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


KERNEL = RNG.standard_normal((4, 3, 3, 3)).astype(np.float32)
CONV = helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1])


@pytest.mark.parametrize("unknown", ["?", "None", "unknown", "-1", None, -1])
def test_sizes_without_a_name_are_different_sizes(unknown: object) -> None:
    """Exporters write "?" for every size that they do not know: [1, 3, 32, 20] was refused, as sizes differ."""
    proto = model([CONV, helper.make_node("Relu", ["c"], ["y"])], {"x": [None, 3, None, None]}, {"y": None}, w=KERNEL)
    for axis in (0, 2, 3):
        dim = proto.graph.input[0].type.tensor_type.shape.dim[axis]
        if isinstance(unknown, str):
            dim.dim_param = unknown
        elif unknown is not None:
            dim.dim_value = unknown
    loaded = lite_runtime.load(convert(proto).bundle)
    assert loaded.run({"x": np.zeros((1, 3, 32, 20), np.float32)})["y"].shape == (1, 4, 32, 20)
    assert loaded.run({"x": np.zeros((2, 3, 5, 7), np.float32)})["y"].shape == (2, 4, 5, 7)
    assert loaded.inputs()[0].shape == ("x.0", 3, "x.2", "x.3") and loaded.outputs()[0].shape[:2] == ("x.0", 4)


def test_equal_names_still_are_equal_sizes() -> None:
    proto = model([helper.make_node("Add", ["a", "b"], ["y"])], {"a": ["N", 2], "b": ["N", 2]}, {"y": ["N", 2]})
    loaded = lite_runtime.load(convert(proto).bundle)
    with pytest.raises(lite_runtime.InputError):
        loaded.run({"a": np.zeros((3, 2), np.float32), "b": np.zeros((1, 2), np.float32)})


@pytest.mark.parametrize("mode", ["none", "fp16", "int8"])
def test_declared_sizes_of_a_traced_run(mode: str) -> None:
    """An output declared [1, 1, 40, 4] over an open input: its Transpose became a Reshape to 40 columns."""
    nodes = [
        CONV,
        helper.make_node("ReduceMean", ["c"], ["r"], axes=[2], keepdims=1),
        helper.make_node("Transpose", ["r"], ["y"], perm=[0, 2, 3, 1]),
    ]
    proto = model(nodes, {"x": ["N", 3, "H", "W"]}, {"y": [1, 1, 40, 4]}, w=KERNEL)
    data = {"x": RNG.standard_normal((4, 3, 32, 40)).astype(np.float32)} if mode == "int8" else None
    loaded = lite_runtime.load(convert(proto, quantize=mode, calibration=data).bundle)  # type: ignore[arg-type]
    for width in (40, 20):
        x = RNG.standard_normal((1, 3, 32, width)).astype(np.float32)
        want = onnx.reference.ReferenceEvaluator(proto).run(None, {"x": x})[0]
        got = loaded.run({"x": x})["y"]
        assert got.shape == want.shape
        np.testing.assert_allclose(got, want, atol=0.05 * np.abs(want).max())


def test_declared_sizes_of_a_fixed_model_stay() -> None:
    nodes = [helper.make_node("Reshape", ["x", "s"], ["y"])]
    proto = model(nodes, {"x": [6], "s": [2]}, {"y": [2, 3]})
    proto.graph.input[1].type.tensor_type.elem_type = TensorProto.INT64
    assert lite_runtime.load(convert(proto).bundle).outputs()[0].shape == (2, 3)


def test_report_where_one_is_no_valid_size() -> None:
    """The conversion is complete, and the report says what it lacks; calibration data give the sizes."""
    nodes = [
        helper.make_node("Reshape", ["x", "s"], ["r"]),
        helper.make_node("MatMul", ["r", "w"], ["q"]),
        helper.make_node("Mul", ["q", "rate"], ["y"]),
    ]
    weights = RNG.standard_normal((4, 4)).astype(np.float32)
    proto = model(nodes, {"x": ["N", "T"], "rate": []}, {"y": None}, s=np.array([-1, 4], np.int64), w=weights)
    for mode in ("none", "w8"):
        made = convert(proto, quantize=mode, explain=True)  # type: ignore[arg-type]
        assert made.report.arena_bytes == 0
        assert "working memory" in made.report.left_out[-1] and "give calibration data" in made.report.left_out[-1]
        assert escape(made.report.left_out[-1]) in page(made.report)
        x = RNG.standard_normal((1, 8)).astype(np.float32)
        assert lite_runtime.load(made.bundle).run({"x": x, "rate": np.float32(2)})["y"].shape == (2, 4)
    x = RNG.standard_normal((5, 8)).astype(np.float32)
    for rate in (np.float32(2), np.full(5, 2, np.float32)):  # a number for all rows, or one for each
        made = convert(proto, quantize="int8", calibration={"x": x, "rate": rate}, explain=True)
        assert not made.report.left_out and made.report.arena_bytes > 0 and made.report.outputs[0].snr > 30


@pytest.mark.parametrize("op", ["Conv", "ConvTranspose"])
def test_images_of_unknown_rank_have_that_of_the_weights(op: str) -> None:
    """The convolution ran on its reference, as only images of known rank are turned to channels last."""
    weights = RNG.standard_normal((3, 3, 3, 3)).astype(np.float32)
    nodes = [helper.make_node("Reshape", ["x", "s"], ["r"]), helper.make_node(op, ["r", "w"], ["y"])]
    proto = model(nodes, {"x": ["N"], "s": ["K"]}, {"y": None}, w=weights)
    proto.graph.input[1].type.tensor_type.elem_type = TensorProto.INT64
    loaded = lite_runtime.load(convert(proto).bundle)
    inputs = {"x": RNG.standard_normal(3 * 8 * 6).astype(np.float32), "s": np.array([1, 3, 8, 6])}
    want = onnx.reference.ReferenceEvaluator(proto).run(None, inputs)[0]
    np.testing.assert_allclose(loaded.run(inputs)["y"], want, atol=1e-4)
    assert op not in loaded.cost(inputs).reference
