"""onnxruntime's CropAndResize and MoE against onnxruntime on random operands, with open sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import lite_runtime
from converter import convert
from converter.errors import UnsupportedOpError
from tests.oracles import CPU

RNG = np.random.default_rng(4)
Given = dict[str, tuple[np.ndarray, list[Any]]]
"""By name: an input and its declared shape."""


def f(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def built(op: str, order: list[str], given: Given, weights: dict[str, np.ndarray], **attrs: Any) -> onnx.ModelProto:
    kinds = {name: helper.np_dtype_to_tensor_dtype(x.dtype) for name, (x, _) in given.items()}
    inputs = [helper.make_tensor_value_info(name, kinds[name], shape) for name, (_, shape) in given.items()]
    constants = [numpy_helper.from_array(x, name) for name, x in weights.items()]
    node = helper.make_node(op, order, ["y"], domain="com.microsoft", **attrs)
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph([node], "g", inputs, [output], constants)
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def compare(model: onnx.ModelProto, given: Given) -> np.ndarray:
    feeds = {name: x for name, (x, _) in given.items()}
    want = onnxruntime.InferenceSession(model.SerializeToString(), providers=CPU).run(None, feeds)[0]
    got = lite_runtime.load(convert(model).bundle).run(feeds)["y"]
    assert got.shape == want.shape and got.dtype == want.dtype
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    return np.asarray(want)


def crops(boxes: np.ndarray, shape: tuple[int, ...], size: list[int], **attrs: Any) -> tuple[onnx.ModelProto, Given]:
    batch = RNG.integers(0, shape[0], len(boxes)).astype(np.int32)
    given: Given = {"x": (f(*shape), ["N", shape[1], "H", "W"]), "boxes": (boxes, ["R", 4]), "batch": (batch, ["R"])}
    order = ["x", "boxes", "batch", "size"]
    return built("CropAndResize", order, given, {"size": np.array(size, np.int32)}, **attrs), given


@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
@pytest.mark.parametrize("size", [[3, 4], [1, 5], [7, 1], [1, 1], [2, 2]])
@pytest.mark.parametrize("shape", [(2, 3, 9, 11), (1, 1, 5, 1), (3, 2, 1, 6)])
def test_crops(shape: tuple[int, ...], size: list[int], mode: str) -> None:
    """Boxes inside and outside the image, turned around, of no size, and none at all."""
    boxes = np.concatenate([
        RNG.uniform(-0.3, 1.3, (20, 4)), [[0, 0, 1, 1], [1, 1, 0, 0], [0.5, 0.25, 0.5, 0.25], [2, 2, 3, 3]],
    ]).astype(np.float32)  # fmt: skip
    want = compare(*crops(boxes, shape, size, mode=mode, extrapolation_value=7.5))
    assert (want == 7.5).any() and (want != 7.5).any()
    compare(*crops(boxes[:0], shape, size, mode=mode))


def test_places_that_are_as_near_to_two_pixels() -> None:
    boxes = np.array([[0, 0, 1, 1], [0.125, 0.125, 0.875, 0.875]], np.float32)
    compare(*crops(boxes, (1, 2, 5, 5), [9, 7], mode="nearest"))


def test_sizes_that_are_computed_are_refused() -> None:
    model, _ = crops(np.zeros((1, 4), np.float32), (1, 1, 4, 4), [2, 2])
    del model.graph.initializer[:]
    model.graph.input.append(helper.make_tensor_value_info("size", TensorProto.INT32, [2]))
    with pytest.raises(UnsupportedOpError, match="CropAndResize"):
        convert(model)


def experts(kind: str, x: np.ndarray, k: int, biased: bool, **attrs: Any) -> tuple[onnx.ModelProto, Given]:
    count, size, inner = 6, x.shape[-1], 10
    wide = 2 * inner if kind == "swiglu" else inner
    weights = {"w1": f(count, wide, size) * np.float32(0.3), "w2": f(count, size, inner) * np.float32(0.3)}
    if biased:
        weights |= {"b1": f(count, wide), "b2": f(count, size)}
    router = f(x.size // size, count)
    router[::3] = np.round(router[::3])  # with equal ones
    given: Given = {"x": (x, [*"ABC"[: x.ndim - 1], size]), "router": (router, ["T", count])}
    order = ["x", "router", "w1", "b1" if biased else "", "w2", "b2" if biased else ""]
    return built("MoE", order, given, weights, k=k, activation_type=kind, **attrs), given


@pytest.mark.parametrize("kind", ["relu", "gelu", "silu", "identity", "swiglu"])
@pytest.mark.parametrize("k", [1, 2, 6])
@pytest.mark.parametrize("normal", [0, 1])
def test_experts(normal: int, k: int, kind: str) -> None:
    more: dict[str, Any] = {"swiglu_fusion": 1} if kind == "swiglu" else {}
    for x, biased in ((f(2, 7, 8), True), (f(15, 8), False), (f(1, 8), True)):
        compare(*experts(kind, x, k, biased, normalize_routing_weights=normal, **more))


def test_limits_of_gates() -> None:
    more = {"swiglu_fusion": 1, "activation_alpha": 1.702, "activation_beta": 1.0}
    compare(*experts("swiglu", f(9, 8), 2, True, **more))
    compare(*experts("swiglu", f(9, 8), 2, True, swiglu_limit=0.5, **more))


@pytest.mark.parametrize("attrs", [{"use_sparse_mixer": 1}, {"swiglu_fusion": 2}, {"swiglu_limit_after_activation": 1}])
def test_other_experts_are_refused(attrs: dict[str, Any]) -> None:
    model, _ = experts("swiglu", f(3, 8), 2, True, **{"swiglu_fusion": 1, **attrs})
    with pytest.raises(UnsupportedOpError, match="MoE"):
        convert(model)
