"""Matrix products against onnxruntime, and MatMul's extensions against the plain operators they replace."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

import lite_runtime
from converter import convert
from lite_runtime.errors import ShapeError
from tests import oracles
from tests.lite_runtime.reference.oracle import agree, floats, ours


@pytest.mark.parametrize(
    ("a", "b"),
    [((3, 4), (4, 5)), ((2, 3, 4), (4, 5)), ((2, 1, 3, 4), (5, 4, 2)), ((4,), (4, 3)), ((3, 4), (4,)), ((4,), (4,))],
)
def test_matmul(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    agree("MatMul", [floats(*a), floats(*b)])


@pytest.mark.parametrize("attrs", [{}, {"transA": 1}, {"transB": 1, "alpha": 0.5, "beta": 2.0}])
def test_gemm(attrs: dict[str, float]) -> None:
    a, b = floats(3, 4), floats(4, 5)
    inputs = [a.T.copy() if attrs.get("transA") else a, b.T.copy() if attrs.get("transB") else b, floats(5)]
    agree("Gemm", inputs, attrs)
    agree("Gemm", inputs[:2], attrs)


@pytest.mark.parametrize("turn", [(0, 0), (1, 0), (0, 1), (1, 1)])
def test_matmul_with_everything(turn: tuple[int, int]) -> None:
    a, b, bias, residual = floats(2, 3, 4), floats(2, 4, 5), floats(5), floats(2, 3, 5)
    plain = np.maximum(a @ b + bias + residual, 0)
    given = [a.swapaxes(1, 2) if turn[0] else a, b.swapaxes(1, 2) if turn[1] else b, bias, residual]
    got = ours("MatMul", given, {"transA": turn[0], "transB": turn[1], "activation": "Relu"})[0]
    np.testing.assert_allclose(got, plain, rtol=1e-6)


def test_float16_rounds_once() -> None:
    a, b = floats(8, 64, dtype=np.float16), floats(64, 8, dtype=np.float16)
    got = ours("MatMul", [a, b, floats(8, dtype=np.float16)], {"activation": "Relu"})[0]
    assert got.dtype == np.float16
    np.testing.assert_array_equal(
        ours("MatMul", [a, b])[0], (a.astype(np.float32) @ b.astype(np.float32)).astype(np.float16)
    )


@pytest.mark.parametrize("equation", ["ij,jk->ik", "bij, bjk -> bik", "...ij->...ji", "ii->i", "i,j", "bij,bjk"])
def test_einsum(equation: str) -> None:
    shapes = {"i": 3, "j": 3, "k": 3, "b": 2}
    terms = equation.replace(" ", "").replace("...", "b").split("->")[0].split(",")
    agree("Einsum", [floats(*(shapes[c] for c in term)) for term in terms], {"equation": equation})


def test_det() -> None:
    agree("Det", [floats(2, 3, 3)], rtol=1e-4)


@pytest.mark.parametrize("shape", [(3, 3), (2, 1, 4, 4), (0, 2, 2)])
def test_inverse_as_onnxruntime(shape: tuple[int, ...]) -> None:
    x = floats(*shape)
    node = helper.make_node("Inverse", ["x"], ["y"], domain="com.microsoft")
    ends = [[helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)] for name in "xy"]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(helper.make_graph([node], "g", *ends), opset_imports=opsets, ir_version=8)
    (wanted,) = oracles.session(model).run(None, {"x": x})
    for got in (ours("Inverse", [x])[0], lite_runtime.load(convert(model).bundle).run({"x": x})["y"]):
        np.testing.assert_allclose(got, wanted, rtol=1e-3, atol=1e-5)


def test_one_singular_matrix_leaves_the_others() -> None:
    x = np.stack([np.zeros((2, 2)), np.diag([2.0, 4.0])]).astype(np.float32)
    (got,) = ours("Inverse", [x])
    assert not np.isfinite(got[0]).any()
    np.testing.assert_array_equal(got[1], np.diag(np.float32([0.5, 0.25])))


def test_misfits_are_refused() -> None:
    with pytest.raises(ShapeError, match=r"MatMul 'it'.*\(3, 4\) @ \(3, 4\)"):
        ours("MatMul", [floats(3, 4), floats(3, 4)])
    with pytest.raises(ShapeError, match="bias that broadcasts"):
        ours("MatMul", [floats(3, 4), floats(4, 5), floats(2, 3, 5)])
    with pytest.raises(ShapeError, match="square"):
        ours("Det", [floats(2, 3)])
