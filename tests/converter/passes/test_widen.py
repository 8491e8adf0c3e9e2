"""Models in half precision compute in float32, and keep their inputs, outputs and explicit Casts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper

import converter
import lite_runtime
from lite_runtime.bundle import Bundle
from tests import oracles

F, H = T.FLOAT, T.FLOAT16
RNG = np.random.default_rng(0)
X = RNG.standard_normal((2, 6)).astype(np.float16)
W = RNG.standard_normal((6, 6)).astype(np.float16)


def value(name: str, kind: int = H, shape: Sequence[Any] | None = (2, 6)) -> onnx.ValueInfoProto:
    return h.make_tensor_value_info(name, kind, shape)


def node(op: str, inputs: str, outputs: str, **attrs: Any) -> onnx.NodeProto:
    return h.make_node(op, inputs.split(), outputs.split(), **attrs)


def model(
    nodes: Sequence[onnx.NodeProto],
    outputs: Sequence[onnx.ValueInfoProto],
    inputs: Sequence[onnx.ValueInfoProto] = (value("x"),),
    weights: Mapping[str, np.ndarray] | None = None,
) -> onnx.ModelProto:
    held = [numpy_helper.from_array(a, n) for n, a in {"w": W, **(weights or {})}.items()]
    graph = h.make_graph(nodes, "g", inputs, outputs, held)
    return h.make_model(graph, opset_imports=[h.make_opsetid("", 21)], ir_version=10)


def branch(op: str) -> onnx.GraphProto:
    return h.make_graph([node(op, "m", f"{op}_out")], op, [], [value(f"{op}_out", H, None)])


LOOP = h.make_graph(
    [node("Add", "s m", "s2"), node("Identity", "go", "go2"), node("Mul", "s2 m", "row")],
    "body",
    [value("i", T.INT64, []), value("go", T.BOOL, []), value("s", H, [2, 6])],
    [value("go2", T.BOOL, []), value("s2", H, [2, 6]), value("row", H, [2, 6])],
)
PRODUCT = node("MatMul", "x w", "m")
CASES: dict[str, onnx.ModelProto] = {
    "a product": model([PRODUCT, node("Relu", "m", "y")], [value("y")]),
    "an output that is read": model([PRODUCT, node("Softmax", "m", "y")], [value("m"), value("y")]),
    "an input that is an output": model([node("Relu", "x", "y")], [value("x"), value("y")]),
    "a weight that is an output": model([node("MatMul", "x w", "y")], [value("y"), value("w", H, [6, 6])]),
    "if": model(
        [PRODUCT, node("If", "c", "y", then_branch=branch("Relu"), else_branch=branch("Neg"))],
        [value("y")],
        [value("x"), value("c", T.BOOL, [])],
    ),
    "loop": model(
        [PRODUCT, node("Loop", "n go x", "last rows", body=LOOP)],
        [value("last"), value("rows", H, [3, 2, 6])],
        [value("x"), value("n", T.INT64, [])],
        {"go": np.array(True)},
    ),
    "a cast in the middle rounds": model(
        [node("Mul", "z c", "a"), node("Cast", "a", "b", to=H), node("Cast", "b", "y", to=F)],
        [value("y", F)],
        [value("z", F), value("x")],
        {"c": np.float32(1.001)},
    ),
    "cast like": model(
        [node("CastLike", "z x", "a"), node("Add", "a x", "y"), node("Cast", "a", "k", to=F)],
        [value("y"), value("k", F)],
        [value("x"), value("z", F)],
    ),
    "created": model(
        [
            node("Shape", "x", "n"),
            node("ConstantOfShape", "n", "f", value=numpy_helper.from_array(np.array([0.3], np.float16), "v")),
            node("EyeLike", "x", "e", dtype=H),
            node("Constant", "", "k", value=numpy_helper.from_array(np.float16([[0.7]]), "k")),
            node("Sum", "f e x k", "y"),
        ],
        [value("y")],
    ),
    "sequence": model(
        [PRODUCT, node("SequenceConstruct", "x m", "s"), node("ConcatFromSequence", "s", "y", axis=0)],
        [value("y", H, [4, 6])],
    ),
    "quantised": model(
        [
            node("QuantizeLinear", "x h z", "q"),
            node("DequantizeLinear", "q h z", "d"),
            node("MatMul", "d w", "y"),
        ],
        [value("y")],
        weights={"h": np.float16(0.05), "z": np.int8(3)},
    ),
    "to integers": model([node("Cast", "x", "k", to=T.INT32)], [value("k", T.INT32)]),
}


def feeds_of(proto: onnx.ModelProto) -> dict[str, np.ndarray]:
    known = {"x": X, "z": RNG.standard_normal((2, 6)).astype(np.float32), "c": np.array(False), "n": np.array(3)}
    return {v.name: known[v.name] for v in proto.graph.input}


@pytest.mark.parametrize("case", CASES)
def test_as_onnxruntime(case: str) -> None:
    proto = CASES[case]
    onnx.checker.check_model(proto)
    feeds = feeds_of(proto)
    session = oracles.session(proto)
    wanted = dict(zip([o.name for o in session.get_outputs()], session.run(None, feeds), strict=True))
    held = lite_runtime.load(converter.convert(proto).bundle)
    got = held.run(feeds)
    assert got.keys() == wanted.keys()
    for name, want in wanted.items():
        assert got[name].dtype == want.dtype and got[name].shape == want.shape, name
        if want.dtype.kind == "f":
            np.testing.assert_allclose(got[name], want, rtol=2e-3, atol=1e-3)
        else:
            assert (got[name] == want).all()
    assert [v.dtype for v in held.bundle.at_first("predict").inputs] == [str(x.dtype) for x in feeds.values()]


def test_casts_round() -> None:
    proto, feeds = CASES["a cast in the middle rounds"], {"z": np.float32([[1, 2, 3, 4, 5, 6]] * 2), "x": X}
    got = lite_runtime.load(converter.convert(proto).bundle).run(feeds)["y"]
    np.testing.assert_array_equal(got, (feeds["z"] * np.float32(1.001)).astype(np.float16).astype(np.float32))


def test_text_is_that_of_half_precision() -> None:
    proto = model([node("Cast", "x", "t", to=T.STRING)], [value("t", T.STRING)])
    got = lite_runtime.load(converter.convert(proto).bundle).run({"x": X})["t"]
    assert [float(text) for text in got.flat] == [float(str(v)) for v in X.flat]


def test_nothing_runs_by_reference_and_weights_stay_small() -> None:
    wide = RNG.standard_normal((64, 256)).astype(np.float16)
    proto = model(
        [node("MatMul", "x v", "m"), node("Relu", "m", "y")], [value("y", H, [2, 256])], [value("x", H, [2, 64])],
        {"v": wide},
    )  # fmt: skip
    data = converter.convert(proto).bundle
    assert lite_runtime.load(data).cost({"x": np.zeros((2, 64), np.float16)}).reference == ()
    stored = {str(c.dtype) for c in graph_of(data).constants.values() if c.size > 999}
    assert stored == {"float16"}


def test_bits_are_those_of_half_precision() -> None:
    proto = model([PRODUCT, node("BitCast", "m", "y", to=T.INT16)], [value("y", T.INT16)])
    proto.opset_import[0].version, proto.ir_version = 26, 13
    got = lite_runtime.load(converter.convert(proto).bundle).run({"x": X})["y"]
    exact = (X.astype(np.float32) @ W.astype(np.float32)).astype(np.float16)
    np.testing.assert_allclose(got.view(np.float16), exact, rtol=2e-3)


def test_bfloat16() -> None:
    """ONNX Runtime's CPU provider has no MatMul of bfloat16."""
    weights = numpy_helper.from_array(W.astype(ml_dtypes.bfloat16), "w")
    proto = model([PRODUCT, node("Relu", "m", "y")], [value("y", T.BFLOAT16)], [value("x", T.BFLOAT16)])
    proto.graph.initializer[0].CopyFrom(weights)
    x = X.astype(ml_dtypes.bfloat16)
    got = lite_runtime.load(converter.convert(proto).bundle).run({"x": x})["y"]
    exact = np.maximum(x.astype(np.float32) @ W.astype(ml_dtypes.bfloat16).astype(np.float32), 0)
    assert got.dtype == x.dtype
    np.testing.assert_allclose(got.astype(np.float32), exact, rtol=2**-8)


def test_models_that_are_exported_keep_their_types() -> None:
    exported = onnx.load_from_string(converter.convert(CASES["a product"], to="onnx").bundle)
    assert {t.data_type for t in exported.graph.initializer if len(t.dims) == 2} == {H}


def graph_of(data: bytes) -> Any:
    held: Bundle = lite_runtime.load(data).bundle
    return held.at_first("predict")
