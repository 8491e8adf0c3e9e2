"""Elementwise operators, activations, comparisons and selection against LiteRT."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import lite_runtime
from converter import convert
from tests.converter.frontends.tflite.builder import Builder, Quant
from tests.converter.frontends.tflite.support import (
    C,
    Out,
    X,
    check_op,
    fitted,
    floats,
    integers,
    run,
    stored,
    translated,
)

BINARY = {
    "ADD": np.add,
    "SUB": np.subtract,
    "MUL": np.multiply,
    "SQUARED_DIFFERENCE": lambda a, b: (a - b) ** 2,
    "MAXIMUM": np.maximum,
    "MINIMUM": np.minimum,
}
SHAPES = [((2, 3, 5), (2, 3, 5)), ((2, 3, 5), (5,)), ((1, 4, 1), (3, 1, 2))]


@pytest.mark.parametrize("name", [*BINARY, "DIV", "FLOOR_DIV", "FLOOR_MOD"])
@pytest.mark.parametrize(("left", "right"), SHAPES)
def test_binary_float(name: str, left: tuple[int, ...], right: tuple[int, ...]) -> None:
    check_op(name, [X(floats(*left) * 3), X(floats(*right, seed=1))])


def test_atan2() -> None:
    y, x = floats(5, 9), floats(5, 9, seed=1)
    y[0, :3], x[0, 1:4] = 0, 0
    check_op("ATAN2", [X(y), X(x)])


@pytest.mark.parametrize("name", ["ADD", "SUB", "MUL", "DIV"])
@pytest.mark.parametrize("activation", ["RELU", "RELU6", "RELU_N1_TO_1"])
def test_fused_activation(name: str, activation: str) -> None:
    check_op(name, [X(floats(3, 7) * 4), X(floats(3, 7, seed=1))], fused_activation_function=activation)


@pytest.mark.parametrize("op", ["MUL", "DIV"])
def test_results_of_four_bits_take_the_rule_on_real_numbers(op: str) -> None:
    """LiteRT has integer kernels for wider results alone."""
    builder = Builder()
    x, y = (builder.input(name, (3,), "int8", quant=Quant(0.5)) for name in "xy")
    builder.output(builder.op(op, [x, y], (3,), "int4", quant=Quant(0.25)))
    assert convert(builder.build()).bundle is not None


@pytest.mark.parametrize("dtype", ["uint8", "uint32", "int32"])
def test_relu_n1_to_1_of_integers_that_may_have_no_sign(dtype: str) -> None:
    builder = Builder()
    builder.output(builder.op("RELU_N1_TO_1", [builder.input("x", (3,), dtype)], (3,), dtype))
    made = convert(builder.build()).bundle
    assert made is not None
    (got,) = lite_runtime.load(made).run({"x": np.array([0, 1, 9], dtype)}).values()
    assert got.tolist() == [0, 1, 1] and got.dtype == dtype


@pytest.mark.parametrize("activation", ["RELU6", "RELU_N1_TO_1"])
def test_activation_of_unsigned_integers(activation: str) -> None:
    """No bound below 0. LiteRT multiplies no such integers."""
    b = Builder()
    x = b.input("x", (8,), "uint64")
    b.output(b.op("MUL", [x, b.const(np.full(8, 2, np.uint64))], (8,), "uint64", fused_activation_function=activation))
    (got,) = run(translated(b.build()), [np.arange(8, dtype=np.uint64)])
    np.testing.assert_array_equal(got, np.minimum(2 * np.arange(8), 6 if activation == "RELU6" else 1))


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("name", ["ADD", "SUB", "MUL", "MAXIMUM", "MINIMUM", "FLOOR_DIV", "FLOOR_MOD"])
def test_binary_integer(name: str, dtype: Any) -> None:
    right = integers(2, 7, seed=1, low=1, dtype=dtype) * np.where(integers(2, 7, seed=2) < 0, -1, 1).astype(dtype)
    if name != "FLOOR_DIV" or dtype == np.int32:  # LiteRT has no FLOOR_DIV of int64
        check_op(name, [X(integers(2, 7, low=-50, high=50, dtype=dtype)), X(right)])


def test_binary_integer_only() -> None:
    a, b = integers(4, 5, low=-50, high=50), integers(4, 5, seed=1, low=1)
    check_op("DIV", [X(a), X(b)])
    check_op("SQUARED_DIFFERENCE", [X(a), X(b)])
    check_op("POW", [X(integers(4, 5, low=0, high=6)), X(integers(4, 5, low=0, high=5, seed=3))])
    check_op("BITWISE_XOR", [X(a), X(b)])
    check_op("RIGHT_SHIFT", [X(a), X(integers(4, 5, low=0, high=7))])


def test_pow_float() -> None:
    check_op("POW", [X(floats(3, 4, low=0.1, high=3)), X(floats(3, 4, seed=2))])


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
@pytest.mark.parametrize("name", BINARY)
def test_binary_quantised(name: str, dtype: Any) -> None:
    left, right = floats(2, 3, 17), floats(2, 3, 17, seed=1)
    if name in ("MAXIMUM", "MINIMUM"):
        same = fitted(np.concatenate([left, right]), dtype)
        check_op(name, [stored(left, dtype, same), stored(right, dtype, same)], [Out(dtype, same)], steps=0)
        return
    if name == "SQUARED_DIFFERENCE" and dtype == np.uint8:
        return
    out = fitted(BINARY[name](left, right), dtype)
    check_op(name, [stored(left, dtype), stored(right, dtype)], [Out(dtype, out)], version=2)


def test_binary_int16() -> None:
    left, right = floats(2, 33), floats(2, 33, seed=1)
    for name in ("ADD", "SUB", "MUL"):
        out = fitted(BINARY[name](left, right), np.int16)
        operands = [stored(left, np.int16), stored(right, np.int16)]
        check_op(name, operands, [Out(np.int16, out)], steps=2, version=3)


def test_add_n() -> None:
    check_op("ADD_N", [X(floats(3, 4, seed=i)) for i in range(4)])


UNARY = (
    "ABS CEIL COS ELU EXP FLOOR HARD_SWISH LOGISTIC NEG RELU RELU6 RELU_N1_TO_1 RELU_0_TO_1 ROUND SIGN SIN SQUARE TANH"
)


@pytest.mark.parametrize("name", UNARY.split())
def test_unary_float(name: str) -> None:
    x = floats(3, 5, 7) * 3
    if name in ("ROUND", "FLOOR", "CEIL"):
        x = np.concatenate([x.ravel(), np.float32([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 0, -0.0])])
    check_op(name, [X(x)])


@pytest.mark.parametrize("name", ["LOG", "SQRT", "RSQRT"])
def test_unary_of_positive(name: str) -> None:
    check_op(name, [X(floats(3, 5, low=0.01, high=9))])


@pytest.mark.parametrize("name", ["ABS", "NEG"])
def test_unary_integer(name: str) -> None:
    check_op(name, [X(integers(3, 5))])


UNARY_INT8 = {
    "ABS": None,
    "ELU": None,
    "EXP": None,
    "HARD_SWISH": None,
    "LOGISTIC": Quant(1 / 256, -128),
    "TANH": Quant(1 / 128, 0),
    "RELU": None,
    "RELU6": None,
    "GELU": None,
}
NUMPY = {
    "ABS": np.abs,
    "ELU": lambda x: np.where(x < 0, np.expm1(x), x),
    "EXP": np.exp,
    "HARD_SWISH": lambda x: x * np.clip(x / 6 + 0.5, 0, 1),
    "RELU": lambda x: np.maximum(x, 0),
    "RELU6": lambda x: np.clip(x, 0, 6),
    "GELU": lambda x: np.maximum(x, -0.17),
}


@pytest.mark.parametrize("name", UNARY_INT8)
def test_unary_int8(name: str) -> None:
    """Every stored value."""
    x = np.arange(-128, 128).astype(np.int8)
    quant = Quant(0.04, 11)
    out = UNARY_INT8[name] or fitted(NUMPY[name](quant.real(x)))
    check_op(name, [X(x, quant)], [Out(np.int8, out)], version=2 if name in ("LOGISTIC", "TANH", "RELU") else 1)


@pytest.mark.parametrize("approximate", [True, False])
def test_gelu(approximate: bool) -> None:
    check_op("GELU", [X(floats(4, 9) * 2)], approximate=approximate, limit=1e-5)


def test_leaky_relu() -> None:
    check_op("LEAKY_RELU", [X(floats(4, 9))], alpha=0.17)
    x = floats(4, 9)
    check_op("LEAKY_RELU", [stored(x)], [Out(np.int8, fitted(np.where(x < 0, 0.17 * x, x)))], alpha=0.17, version=2)


@pytest.mark.parametrize("slopes", [(1, 1, 5), (3, 4, 5), (1, 1, 1)])
def test_prelu(slopes: tuple[int, ...]) -> None:
    x, alpha = floats(2, 3, 4, 5), floats(*slopes, low=0.0, high=0.5)
    check_op("PRELU", [X(x), C(alpha)])
    out = fitted(np.where(x < 0, x * alpha, x))
    check_op("PRELU", [stored(x), stored(alpha, const=True)], [Out(np.int8, out)])


@pytest.mark.parametrize("beta", [1.0, 0.3])
@pytest.mark.parametrize("shape", [(3, 10), (2, 4, 5), (1, 1001)])
def test_softmax(shape: tuple[int, ...], beta: float) -> None:
    check_op("SOFTMAX", [X(floats(*shape) * 3)], beta=beta)
    check_op("SOFTMAX", [stored(floats(*shape) * 3)], [Out(np.int8, Quant(1 / 256, -128))], beta=beta, version=2)


def test_softmax_uint8() -> None:
    check_op("SOFTMAX", [stored(floats(4, 9) * 3, np.uint8)], [Out(np.uint8, Quant(1 / 256, 0))], beta=1.0)


def test_log_softmax() -> None:
    check_op("LOG_SOFTMAX", [X(floats(4, 9) * 3)])
    check_op("LOG_SOFTMAX", [stored(floats(4, 9) * 3)], [Out(np.int8, Quant(16 / 256, 127))], version=2)


COMPARISONS = ["EQUAL", "NOT_EQUAL", "LESS", "LESS_EQUAL", "GREATER", "GREATER_EQUAL"]


@pytest.mark.parametrize("name", COMPARISONS)
@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.int64])
def test_comparison(name: str, dtype: Any) -> None:
    x, y = (integers(3, 1, 4, seed=s, low=0, high=3).astype(dtype) for s in (0, 1))
    check_op(name, [X(x), X(y[:, :, :1] * np.ones((1, 2, 1), dtype))], [Out(np.bool_)])


@pytest.mark.parametrize("name", COMPARISONS)
def test_comparison_int8(name: str) -> None:
    quant = Quant(0.5, 3)
    x, y = (integers(4, 9, seed=s, low=-5, high=5, dtype=np.int8) for s in (0, 1))
    check_op(name, [X(x, quant), X(y, quant)], [Out(np.bool_)])


def test_logic() -> None:
    x, y = (integers(4, 9, seed=s, low=0, high=2).astype(bool) for s in (0, 1))
    check_op("LOGICAL_AND", [X(x), X(y)])
    check_op("LOGICAL_OR", [X(x), X(y[:1])])
    check_op("LOGICAL_NOT", [X(x)])


@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.int64, np.bool_])
def test_select(dtype: Any) -> None:
    condition = integers(4, 5, low=0, high=2).astype(bool)
    x, y = (integers(4, 5, seed=s).astype(dtype) for s in (1, 2))
    check_op("SELECT", [X(condition), X(x), X(y)], [Out(dtype)])
    check_op("SELECT", [X(condition[:, 0]), X(x), X(y)], [Out(dtype)])
    check_op("SELECT_V2", [X(condition[:1]), X(x), X(y[:, :1])], [Out(dtype)])


def test_select_int8() -> None:
    condition, quant = integers(4, 5, low=0, high=2).astype(bool), Quant(0.1, -3)
    x, y = (integers(4, 5, seed=s, dtype=np.int8) for s in (1, 2))
    check_op("SELECT_V2", [X(condition), X(x, quant), X(y, quant)], [Out(np.int8, quant)], steps=0)


INT16: dict[str, tuple[Quant | None, int, dict[str, Any]]] = {
    "LOGISTIC": (Quant(1 / 32768), 1, {"version": 3}),
    "TANH": (Quant(1 / 32768), 4, {"version": 3}),
    "SOFTMAX": (Quant(1 / 32768), 8, {"version": 3, "beta": 1.0}),
    "RELU": (None, 1, {"version": 2}),
    "LEAKY_RELU": (None, 1, {"version": 2, "alpha": 0.1}),
}
"""Results of int16 and how many of LiteRT's 65,536 steps its tables are off."""


@pytest.mark.parametrize("name", INT16)
def test_unary_int16(name: str) -> None:
    x = stored(floats(4, 33) * 3, np.int16)
    out, steps, options = INT16[name]
    check_op(name, [x], [Out(np.int16, out or x.quant)], steps=steps, **options)


@pytest.mark.parametrize("name", ["SQRT", "RSQRT", "LOG"])
def test_unary_of_positive_int8(name: str) -> None:
    x = floats(4, 33, low=0.1, high=4)
    out = {"SQRT": np.sqrt, "RSQRT": lambda v: 1 / np.sqrt(v), "LOG": np.log}[name](x)
    check_op(name, [stored(x)], [Out(np.int8, fitted(out))], version=2)


def test_div_uint8() -> None:
    x, y = floats(4, 33), floats(4, 33, low=0.5, high=3)
    check_op("DIV", [stored(x, np.uint8), stored(y, np.uint8)], [Out(np.uint8, fitted(x / y, np.uint8))], version=2)
