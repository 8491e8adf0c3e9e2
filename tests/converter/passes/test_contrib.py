"""Operators of onnxruntime's optimiser against onnxruntime itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

import lite_runtime
from converter import convert
from converter.errors import UnsupportedOpError

RNG = np.random.default_rng(0)
B, S, H, N = 2, 5, 16, 4
"""Batch, sequence, hidden size, heads."""


def f(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def i32(*values: Any) -> np.ndarray:
    return np.array(values, np.int32)


WIDE = f(B, S, H)
MASK = i32([1, 1, 1, 0, 0], [1, 1, 1, 1, 1])
ANGLES = np.outer(np.arange(8), 1 / 3.0 ** np.arange(2))
CACHE = [np.cos(ANGLES), np.sin(ANGLES)]
CASES: dict[str, tuple[str, list[np.ndarray | None], dict[str, Any], int]] = {
    "FastGelu": ("FastGelu", [WIDE], {}, 1),
    "FastGelu, bias": ("FastGelu", [WIDE, f(H)], {}, 1),
    "BiasGelu": ("BiasGelu", [WIDE, f(H)], {}, 1),
    "FusedMatMul": ("FusedMatMul", [f(3, 4, 5), f(3, 6, 5)], {"transB": 1, "alpha": 0.5}, 1),
    "FusedMatMul, both": ("FusedMatMul", [f(5, 4), f(6, 5)], {"transA": 1, "transB": 1}, 1),
    "FusedConv": ("FusedConv", [f(1, 3, 8, 8), f(4, 3, 3, 3), f(4)], {"activation": "Relu", "pads": [1, 1, 1, 1]}, 1),
    "FusedConv, sum": (
        "FusedConv", [f(1, 3, 8, 8), f(4, 3, 3, 3), f(4), f(1, 4, 6, 6)], {"activation": "Relu"}, 1,
    ),
    "FusedConv, clip": (
        "FusedConv", [f(1, 3, 8, 8), f(4, 3, 3, 3)], {"activation": "Clip", "activation_params": [0.0, 1.5]}, 1,
    ),
    "FusedConv, leaky": (
        "FusedConv", [f(1, 3, 8, 8), f(4, 3, 3, 3)], {"activation": "LeakyRelu", "activation_params": [0.2]}, 1,
    ),
    "FusedGemm": ("FusedGemm", [f(3, 4), f(5, 4), f(5)], {"transB": 1, "activation": "Relu"}, 1),
    "FusedGemm, leaky": (
        "FusedGemm", [f(3, 4), f(4, 5), f(5)], {"activation": "LeakyRelu", "activation_alpha": 0.3}, 1,
    ),
    "SkipLayerNormalization": ("SkipLayerNormalization", [WIDE, f(B, S, H), f(H), f(H)], {"epsilon": 1e-3}, 1),
    "SkipLayerNormalization, bias and sum": (
        "SkipLayerNormalization", [WIDE, f(B, S, H), f(H), f(H), f(H)], {"epsilon": 1e-5}, 4,
    ),
    "SkipSimplifiedLayerNormalization": (
        "SkipSimplifiedLayerNormalization", [WIDE, f(B, S, H), f(H)], {"epsilon": 1e-5}, 4,
    ),
    "EmbedLayerNormalization": (
        "EmbedLayerNormalization",
        [i32([1, 2, 3, 0, 6], [4, 4, 1, 2, 0]), i32([0, 0, 1, 1, 1], [0, 1, 0, 1, 0]), f(7, H), f(9, H), f(2, H), f(H),
         f(H), MASK],
        {"epsilon": 1e-6}, 2,
    ),
    "EmbedLayerNormalization, no segments": (
        "EmbedLayerNormalization", [i32([1, 2, 3]), None, f(7, H), f(9, H), None, f(H), f(H)], {"epsilon": 1e-6}, 2,
    ),
    "Attention": ("Attention", [WIDE, f(H, 3 * H), f(3 * H)], {"num_heads": N}, 1),
    "Attention, flags": ("Attention", [WIDE, f(H, 3 * H), f(3 * H), MASK], {"num_heads": N}, 1),
    "Attention, lengths": ("Attention", [WIDE, f(H, 3 * H), f(3 * H), i32(3, 5)], {"num_heads": N}, 1),
    "Attention, causal": ("Attention", [WIDE, f(H, 3 * H), f(3 * H)], {"num_heads": N, "unidirectional": 1}, 1),
    "MultiHeadAttention": ("MultiHeadAttention", [WIDE, f(B, 7, H), f(B, 7, H)], {"num_heads": N}, 1),
    "MultiHeadAttention, bias and flags": (
        "MultiHeadAttention", [WIDE, f(B, S, H), f(B, S, H), f(3 * H), MASK], {"num_heads": N, "scale": 0.2}, 1,
    ),
    "RotaryEmbedding": (
        "RotaryEmbedding",
        [f(B, N, S, 4), np.array([[0, 1, 2, 3, 4], [2, 3, 4, 5, 6]], np.int64), *(c.astype(np.float32) for c in CACHE)],
        {}, 1,
    ),
}  # fmt: skip


def model(op: str, given: list[np.ndarray | None], attrs: dict[str, Any], results: int) -> onnx.ModelProto:
    """The first operand and all of integers are inputs, the others are weights. Results 1 and 2 of 4 are left out."""
    names = ["" if x is None else f"x{k}" for k, x in enumerate(given)]
    inputs, weights = [], []
    for k, (name, x) in enumerate(zip(names, given, strict=True)):
        if x is None:
            continue
        if k == 0 or x.dtype != np.float32:
            inputs.append(helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape))
        else:
            weights.append(onnx.numpy_helper.from_array(x, name))
    outputs = [f"y{k}" if k in (0, 3) or results == 2 else "" for k in range(results)]
    kinds = {"y1": TensorProto.INT32}
    infos = [helper.make_tensor_value_info(n, kinds.get(n, TensorProto.FLOAT), None) for n in outputs if n]
    node = helper.make_node(op, names, outputs, domain="com.microsoft", **attrs)
    graph = helper.make_graph([node], "g", inputs, infos, weights)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


@pytest.mark.parametrize("case", CASES)
def test_as_onnxruntime(case: str) -> None:
    op, given, attrs, results = CASES[case]
    proto = model(op, given, attrs, results)
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    feeds = {i.name: given[int(i.name[1:])] for i in session.get_inputs()}
    wanted = dict(zip([o.name for o in session.get_outputs()], session.run(None, feeds), strict=True))
    got = lite_runtime.load(convert(proto).bundle).run(feeds)
    assert got.keys() == wanted.keys()
    for name, want in wanted.items():
        assert got[name].shape == want.shape and got[name].dtype == want.dtype
        np.testing.assert_allclose(got[name], want, rtol=1e-4, atol=2e-5)


OLD: dict[str, tuple[list[np.ndarray], dict[str, Any], int]] = {
    "Affine": ([f(2, 3)], {"alpha": 2.5, "beta": -0.5}, 7),
    "Crop": ([f(2, 3, 8, 9)], {"border": [1, 2, 3, 0]}, 7),
    "Crop, size": ([f(1, 3, 8, 9)], {"border": [1, 2, 0, 0], "scale": [4, 5]}, 7),
    "DynamicSlice": ([f(6, 4), np.array([1, 0]), np.array([5, 2])], {}, 9),
    "DynamicSlice, axes": ([f(6, 4), np.array([1]), np.array([-1]), np.array([1])], {}, 9),
    "ImageScaler": ([f(2, 3, 4, 5)], {"scale": 0.5, "bias": [1.0, -2.0, 3.0]}, 7),
    "ParametricSoftplus": ([f(2, 3)], {"alpha": 2.0, "beta": 0.5}, 7),
    "Scale": ([f(2, 3)], {"scale": 0.25}, 7),
    "ScaledTanh": ([f(2, 3)], {"alpha": 1.7159, "beta": 0.6667}, 7),
    "SimplifiedLayerNormalization": ([f(2, 3, 8), f(8)], {"epsilon": 1e-5}, 17),
    "ThresholdedRelu": ([f(2, 3)], {"alpha": 0.3}, 7),
}


@pytest.mark.parametrize("case", OLD)
def test_operators_under_the_standards_domain(case: str) -> None:
    """ONNX dropped them, or never had them; WinML's and transformers' exporters write them under its domain."""
    given, attrs, opset = OLD[case]
    kinds = [helper.np_dtype_to_tensor_dtype(x.dtype) for x in given]
    pairs = zip(kinds, given, strict=True)
    inputs = [helper.make_tensor_value_info(f"x{k}", t, x.shape) for k, (t, x) in enumerate(pairs)]
    node = helper.make_node(case.partition(",")[0], [v.name for v in inputs], ["y"], **attrs)
    after = helper.make_node("Relu", ["y"], ["z"])
    outputs = [helper.make_tensor_value_info("z", TensorProto.FLOAT, None)]
    graph = helper.make_graph([node, after], "g", inputs, outputs)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    feeds = {f"x{k}": x for k, x in enumerate(given)}
    (want,) = session.run(None, feeds)
    got = lite_runtime.load(convert(proto).bundle).run(feeds)["z"]
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_forms_without_an_equivalent_are_named() -> None:
    proto = model("Attention", [WIDE, f(H, 3 * H), f(3 * H)], {"num_heads": N, "do_rotary": 1}, 1)
    with pytest.raises(UnsupportedOpError, match="Attention"):
        convert(proto)
    proto = model("FusedConv", [f(1, 3, 8, 8), f(4, 3, 3, 3)], {"activation": "Softplus"}, 1)
    with pytest.raises(UnsupportedOpError, match="FusedConv"):
        convert(proto)


@pytest.mark.parametrize("quantised", [False, True])
def test_declared_shapes_that_are_wrong_move_nothing(quantised: bool) -> None:
    """Behind an operator that ONNX does not know, shapes are what the file says. A movement that could not have made
    them is left as it is, and the result is that of the operators."""
    n, v = helper.make_node, helper.make_tensor_value_info
    rounded = [n("QuantizeLinear", ["r", "s", "z"], ["q"]), n("DequantizeLinear", ["q", "s", "z"], ["d"])]
    nodes = [
        n("FusedConv", ["x", "w"], ["r"], domain="com.microsoft", activation="Relu"),
        *(rounded if quantised else []),
        n("GlobalAveragePool", ["d" if quantised else "r"], ["p"]),
        n("Flatten", ["p"], ["f"], axis=1),
        n("MatMul", ["f", "m"], ["y"]),
    ]
    constants = {"w": f(4, 2, 1, 1), "m": f(4, 3), "s": np.float32(0.1), "z": np.uint8(3)}
    graph = helper.make_graph(
        nodes, "g", [v("x", 1, ["N", 2, 6, 5])], [v("y", 1, ["N", 3])],
        [onnx.numpy_helper.from_array(np.asarray(x), name) for name, x in constants.items()],
        value_info=[v("p", 1, ["N", 2, 6, 5]), v("f", 1, ["N", 4])],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    wrong = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    right = onnx.ModelProto()
    right.CopyFrom(wrong)
    del right.graph.value_info[:]
    feeds = {"x": f(2, 2, 6, 5)}
    got, want = (lite_runtime.load(convert(m).bundle).run(feeds)["y"] for m in (wrong, right))
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
