"""Elementwise operators against onnxruntime, and the rules it leaves open."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from lite_runtime.errors import ShapeError, UnsupportedOpError
from tests.lite_runtime.reference.oracle import agree, floats, ints, ours

ANYWHERE = (
    *("Abs", "Atan", "Asinh", "Ceil", "Celu", "Cos", "Cosh", "Elu", "Erf", "Exp", "Floor", "Gelu", "HardSigmoid"),
    *("HardSwish", "IsNaN", "LeakyRelu", "Mish", "Neg", "Reciprocal", "Relu", "Round", "Selu", "Shrink", "Sigmoid"),
    *("Sign", "Sin", "Sinh", "Softplus", "Softsign", "Tan", "Tanh", "ThresholdedRelu"),
)


@pytest.mark.parametrize("op", ANYWHERE)
def test_unary(op: str) -> None:
    agree(op, [floats(3, 4, low=-5, high=5)], rtol=2e-5, atol=2e-6, opset=20 if op in {"Gelu"} else 22)


@pytest.mark.parametrize(
    ("op", "low", "high"), [("Acos", -1, 1), ("Asin", -1, 1), ("Atanh", -0.9, 0.9), ("Acosh", 1, 4)]
)
def test_unary_within(op: str, low: float, high: float) -> None:
    agree(op, [floats(50, low=low, high=high)], atol=2e-6)


@pytest.mark.parametrize("op", ["Log", "Sqrt"])
def test_unary_positive(op: str) -> None:
    agree(op, [floats(50, low=0, high=9)])


@pytest.mark.parametrize(
    ("op", "attrs"),
    [
        ("LeakyRelu", {"alpha": 0.3}),
        ("Elu", {"alpha": 2.0}),
        ("Celu", {"alpha": 0.5}),
        ("Selu", {"alpha": 2.0, "gamma": 3.0}),
        ("ThresholdedRelu", {"alpha": 0.2}),
        ("HardSigmoid", {"alpha": 0.4, "beta": 0.3}),
        ("Gelu", {"approximate": "tanh"}),
        ("Shrink", {"lambd": 0.7, "bias": 0.4}),
    ],
)
def test_parameters(op: str, attrs: dict[str, object]) -> None:
    agree(op, [floats(40)], attrs, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize(
    "op", ["Add", "Sub", "Mul", "Div", "Pow", "PRelu", "Less", "GreaterOrEqual", "Equal", "Max", "Mean"]
)
def test_binary_broadcasts(op: str) -> None:
    a, b = floats(2, 3, 4, low=0.1), floats(3, 1, low=0.1)
    agree(op, [a, b], rtol=2e-5)


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.int8, np.uint8])
def test_integer_division_truncates(dtype: type) -> None:
    a, b = ints(60, dtype=dtype, low=-100 if np.iinfo(dtype).min else 0, high=100), ints(60, dtype=dtype, low=1, high=9)
    agree("Div", [a, b])


@given(hnp.arrays(np.int16, 8), hnp.arrays(np.int16, 8).filter(lambda b: not np.any(b == 0)))
def test_integer_division_is_cs(a: np.ndarray, b: np.ndarray) -> None:
    expected = np.trunc(a.astype(float) / b).astype(np.int32).astype(np.int16)
    np.testing.assert_array_equal(ours("Div", [a, b])[0], expected)


@pytest.mark.parametrize("fmod", [0, 1])
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_mod(fmod: int, dtype: type) -> None:
    agree("Mod", [ints(60, dtype=dtype), ints(60, dtype=dtype, low=1)], {"fmod": fmod})


def test_mod_by_infinity() -> None:
    x, y = np.array([1.0, -1.0], np.float32), np.array([np.inf, np.inf], np.float32)
    assert ours("Mod", [x, y])[0].tolist() == [1.0, np.inf]
    assert ours("Mod", [x, y], {"fmod": 1})[0].tolist() == [1.0, -1.0]


@pytest.mark.parametrize(("base", "exponent"), [(np.float32, np.int64), (np.int32, np.float32), (np.int64, np.int64)])
def test_pow_keeps_the_bases_type(base: type, exponent: type) -> None:
    agree("Pow", [ints(3, 4, dtype=base, low=1), ints(4, dtype=exponent, low=0, high=4)])


@pytest.mark.parametrize("direction", ["LEFT", "RIGHT"])
def test_shift(direction: str) -> None:
    agree(
        "BitShift",
        [ints(30, dtype=np.uint8, low=0, high=255), ints(30, dtype=np.uint8, low=0, high=8)],
        {"direction": direction},
    )


def test_shift_of_signed_and_by_too_much() -> None:
    x, by = np.array([-8, -8, 8, -8], np.int32), np.array([1, 40, -1, 31], np.int32)
    assert ours("BitShift", [x, by], {"direction": "RIGHT"})[0].tolist() == [-4, -1, 0, -1]
    assert ours("BitShift", [x, by], {"direction": "LEFT"})[0].tolist() == [-16, 0, 0, 0]


@pytest.mark.parametrize("bounds", [(-1.0, 1.0), (None, 1.0), (-1.0, None), (1.0, -1.0)])
def test_clip(bounds: tuple[float | None, float | None]) -> None:
    agree("Clip", [floats(30), *(None if b is None else np.array(b, np.float32) for b in bounds)])


def test_where_and_isinf() -> None:
    agree("Where", [ints(3, 1).astype(bool), floats(3, 4), floats(4)])
    agree("IsInf", [np.array([1, np.inf, -np.inf, np.nan], np.float32)], {"detect_negative": 0})


def test_silu_is_swish_with_alpha_one() -> None:
    x = floats(64, low=-30, high=30)
    np.testing.assert_array_equal(ours("Silu", [x])[0], ours("Swish", [x])[0])
    np.testing.assert_allclose(ours("SwiGLU", [x, x])[0], ours("Swish", [x])[0] * x)


@given(hnp.arrays(np.float32, 16, elements=st.floats(-200, 200, width=32)))
def test_sigmoid_neither_overflows_nor_leaves_the_unit_interval(x: np.ndarray) -> None:
    y = ours("Sigmoid", [x])[0]
    assert np.all((y >= 0) & (y <= 1))
    np.testing.assert_allclose(y + ours("Sigmoid", [-x])[0], 1, rtol=1e-6)


@pytest.mark.parametrize("op", ["Relu", "Gelu", "Silu", "Exp", "Erf", "Softplus", "HardSwish"])
def test_float16_is_float32_rounded(op: str) -> None:
    x = floats(100, dtype=np.float16)
    got = ours(op, [x])[0]
    assert got.dtype == np.float16
    np.testing.assert_array_equal(got, ours(op, [x.astype(np.float32)])[0].astype(np.float16))


def test_operands_of_different_types_are_refused() -> None:
    with pytest.raises(ShapeError, match=r"Add 'it'.*float32 and float64"):
        ours("Add", [floats(3), floats(3, dtype=np.float64)])


def test_shapes_that_do_not_broadcast_are_refused() -> None:
    with pytest.raises(ShapeError, match=r"Add 'it'.*float32\[3\], float32\[4\]"):
        ours("Add", [floats(3), floats(4)])


def test_unknown_attribute_is_refused() -> None:
    with pytest.raises(UnsupportedOpError, match="axis"):
        ours("Relu", [floats(3)], {"axis": 1})
