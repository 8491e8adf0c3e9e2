"""Products natively equal the reference, whatever the shape, the layout of the operands and the workers."""

from __future__ import annotations

import numpy as np
import pytest

from lite_runtime.errors import ShapeError
from lite_runtime.graph import Node
from lite_runtime.ops.registry import INFERS, Inference, Spec
from tests.lite_runtime.ops.one_node import check

RNG = np.random.default_rng(11)
SHAPES = [(1, 1, 1), (1, 5, 3), (7, 13, 17), (50, 64, 80), (49, 33, 200), (1, 300, 1000), (130, 1, 96), (97, 20, 48)]


def _f(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize(("m", "k", "n"), SHAPES)
@pytest.mark.parametrize("constants", [(), (1,)])
def test_matrix_times_matrix(m: int, k: int, n: int, constants: tuple[int, ...]) -> None:
    check("MatMul", [_f(m, k), _f(k, n)], constants=constants, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("attrs", [{"transA": 1}, {"transB": 1}, {"transA": 1, "transB": 1}])
@pytest.mark.parametrize("constants", [(), (1,)])
def test_transposed_operands(attrs: dict[str, int], constants: tuple[int, ...]) -> None:
    a, b = _f(3, 31, 9), _f(3, 9, 22)
    a = np.swapaxes(a, 1, 2).copy() if "transA" in attrs else a
    b = np.swapaxes(b, 1, 2).copy() if "transB" in attrs else b
    check("MatMul", [a, b], attrs, constants=constants, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ((4, 5, 6), (6, 7)),
        ((2, 3, 5, 6), (2, 3, 6, 7)),
        ((2, 3, 5, 6), (1, 1, 6, 7)),
        ((5, 6), (4, 6, 7)),
        ((6,), (6, 7)),
        ((5, 6), (6,)),
        ((6,), (6,)),
    ],
)
def test_batches_and_vectors(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    check("MatMul", [_f(*left), _f(*right)], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("attrs", [{}, {"transA": 1, "transB": 1}])
@pytest.mark.parametrize("constants", [(), (1,)])
@pytest.mark.parametrize(
    ("left", "right"),
    [
        ((2, 3), (2, 1)),
        ((2, 1), (2, 3)),
        ((1, 1, 21), (3, 21)),
        ((2, 1, 4), (1, 3, 1)),
        ((0, 2), (1, 2)),
        ((2,), (3, 1)),
    ],
)
def test_batches_that_share_matrices(
    left: tuple[int, ...], right: tuple[int, ...], constants: tuple[int, ...], attrs: dict[str, int]
) -> None:
    """Heads that share keys: neither operand has one matrix, or all."""
    a, b = ((5, 6), (6, 7)) if not attrs else ((6, 5), (7, 6))
    check("MatMul", [_f(*left, *a), _f(*right, *b)], attrs, constants=constants, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("activation", ["Relu", "Sigmoid", "Tanh", "HardSwish", "Silu", "Gelu", "GeluTanh"])
def test_bias_residual_and_activation(activation: str) -> None:
    operands = [_f(33, 21), _f(21, 45), _f(45), _f(33, 45)]
    check("MatMul", operands, {"activation": activation}, constants=(1, 2), rtol=1e-4, atol=1e-4)


def test_a_clamp() -> None:
    attrs = {"activation": "Clip", "activation_min": -0.5, "activation_max": 0.25}
    result = check("MatMul", [_f(9, 8), _f(8, 40)], attrs, constants=(1,), rtol=1e-4, atol=1e-4)[0]
    assert result.min() == -0.5 and result.max() == 0.25


def test_nan_goes_through_the_clamp() -> None:
    a = _f(3, 4)
    a[1, 2] = np.nan
    result = check("MatMul", [a, _f(4, 5)], {"activation": "Relu"}, rtol=1e-4, atol=1e-4)[0]
    assert np.isnan(result[1]).all() and not np.isnan(result[[0, 2]]).any()


def test_gemm() -> None:
    check("Gemm", [_f(7, 9), _f(12, 9), _f(12)], {"transB": 1}, constants=(1, 2), rtol=1e-4, atol=1e-4)


def test_an_empty_reduction_gives_zeros() -> None:
    check("MatMul", [_f(3, 0), _f(0, 4)], native=False)


@pytest.mark.parametrize(("left", "right"), [((2, 3), (4, 5)), ((), (3, 3)), ((2, 3, 4), (5, 4, 6))])
def test_operands_that_do_not_fit_are_named(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    node = Node("MatMul", ("a", "b"), ("y",), {}, "mm")
    with pytest.raises(ShapeError, match="mm"):
        INFERS["MatMul"](Inference(node, [Spec("float32", left), Spec("float32", right)], [None, None]))
