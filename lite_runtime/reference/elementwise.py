"""Elementwise operators, with NumPy broadcasting."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce

import numpy as np

from lite_runtime.errors import UnsupportedOpError
from lite_runtime.graph import Array
from lite_runtime.operators import family
from lite_runtime.reference.activation import elu, erf, gelu, gelu_tanh, hard_sigmoid, leaky_relu, sigmoid
from lite_runtime.reference.registry import define
from lite_runtime.reference.support import in_float32, optional_scalar, require

__all__: list[str] = []

_FUNCTIONS: dict[str, Callable[[Array], Array]] = {
    "Erf": erf,
    "HardSwish": lambda x: x * hard_sigmoid(x, 1 / 6, 0.5),
    "Mish": lambda x: x * np.tanh(np.logaddexp(x, x.dtype.type(0))),
    "Reciprocal": lambda x: x.dtype.type(1) / x,
    "Relu": lambda x: np.maximum(x, x.dtype.type(0)),
    "Sigmoid": sigmoid,
    "Silu": lambda x: x * sigmoid(x),
    "Softplus": lambda x: np.logaddexp(x, x.dtype.type(0)),
    "Softsign": lambda x: x / (1 + np.abs(x)),
}
"""Functions of one operand without attributes that NumPy lacks."""


def _define_unary(op: str, fn: Callable[[Array], Array]) -> None:
    @define(op)
    @in_float32
    def unary(x: Array, /) -> Array:
        return np.asarray(fn(x))


def _define_binary(op: str, fn: Callable[[Array, Array], Array]) -> None:
    @define(op)
    @in_float32
    def binary(a: Array, b: Array, /) -> Array:
        _same_type(a, b)
        return np.asarray(fn(a, b))


def _same_type(a: Array, b: Array) -> None:
    strings = {a.dtype.kind, b.dtype.kind} <= set("OUT")
    require(a.dtype == b.dtype or strings, f"expected operands of the same dtype, got {a.dtype} and {b.dtype}")


for _op, _function in _FUNCTIONS.items():
    _define_unary(_op, _function)
for _record in (*family("elementwise"), *family("activation")):
    if _record.numpy:
        (_define_unary if _record.unary else _define_binary)(_record.name, getattr(np, _record.numpy))


@define("Div")
@in_float32
def _div(a: Array, b: Array, /) -> Array:
    """Integer division truncates towards zero; division by zero gives 0 (ONNX leaves it undefined)."""
    _same_type(a, b)
    if a.dtype.kind not in "iu":
        return np.asarray(a / b)
    quotient = np.asarray(a // b)
    inexact = (quotient * b != a) & (b != 0)
    return np.asarray(quotient + (inexact & ((a < 0) != (b < 0)))).astype(a.dtype)


@define("Mod")
@in_float32
def _mod(a: Array, b: Array, /, fmod: int = 0) -> Array:
    _same_type(a, b)
    return np.asarray(np.fmod(a, b) if fmod else np.mod(a, b))


@define("Pow")
@in_float32
def _pow(x: Array, y: Array, /) -> Array:
    """The result has the base's type, whatever the exponent's."""
    if x.dtype.kind in "iu" and y.dtype.kind in "iu" and np.any(y < 0):
        y = y.astype(np.float64)
    return np.asarray(np.power(x, y)).astype(x.dtype)


@define("BitShift")
def _bit_shift(x: Array, y: Array, /, direction: str) -> Array:
    """Right shifts of signed numbers keep the sign. An amount outside [0, bits) gives 0; to the right -1 if x < 0."""
    _same_type(x, y)
    require(direction in ("LEFT", "RIGHT"), f"expected direction LEFT or RIGHT, got {direction!r}")
    bits = 8 * x.dtype.itemsize
    far = (y < 0) | (y >= bits)
    amount = np.where(far, 0, y).astype(x.dtype)
    if direction == "LEFT":
        return np.where(far, 0, np.left_shift(x, amount)).astype(x.dtype)
    return np.where(far, np.where(x < 0, -1, 0), np.right_shift(x, amount)).astype(x.dtype)


def _variadic(fn: Callable[[Array, Array], Array]) -> Callable[..., Array]:
    @in_float32
    def fold(*data: Array) -> Array:
        require(len(data) > 0, "expected at least one input, got none")
        return np.asarray(reduce(fn, data))

    return fold


define("Max")(_variadic(np.maximum))
define("Min")(_variadic(np.minimum))
define("Sum")(_variadic(np.add))


@define("Mean")
@in_float32
def _mean(*data: Array) -> Array:
    require(len(data) > 0, "expected at least one input, got none")
    total = reduce(np.add, data)
    return np.asarray(total / total.dtype.type(len(data)))


@define("Where")
def _where(condition: Array, x: Array, y: Array, /) -> Array:
    _same_type(x, y)
    return np.where(condition, x, y).astype(x.dtype)


@define("Clip")
def _clip(x: Array, low: Array | None = None, high: Array | None = None, /) -> Array:
    """If low > high, every element becomes high."""
    low, high = optional_scalar(low, None, "min"), optional_scalar(high, None, "max")
    x = x if low is None else np.maximum(x, low)
    return np.asarray(x if high is None else np.minimum(x, high))


@define("IsInf")
@in_float32
def _is_inf(x: Array, /, detect_negative: int = 1, detect_positive: int = 1) -> Array:
    positive = np.isposinf(x) if detect_positive else np.zeros(x.shape, bool)
    return np.asarray(positive | np.isneginf(x) if detect_negative else positive)


@define("LeakyRelu")
@in_float32
def _leaky_relu(x: Array, /, alpha: float = 0.01) -> Array:
    return leaky_relu(x, alpha)


@define("PRelu")
@in_float32
def _prelu(x: Array, slope: Array, /) -> Array:
    return np.where(x >= 0, x, x * slope).astype(x.dtype)


@define("Elu")
@in_float32
def _elu(x: Array, /, alpha: float = 1.0) -> Array:
    return elu(x, alpha)


@define("Selu")
@in_float32
def _selu(x: Array, /, alpha: float = 1.67326319217681884765625, gamma: float = 1.05070102214813232421875) -> Array:
    return np.asarray(x.dtype.type(gamma) * elu(x, alpha))


@define("Celu")
@in_float32
def _celu(x: Array, /, alpha: float = 1.0) -> Array:
    a = x.dtype.type(alpha)
    return np.asarray(np.maximum(x, 0) + np.minimum(0, a * np.expm1(x / a)))


@define("ThresholdedRelu")
@in_float32
def _thresholded_relu(x: Array, /, alpha: float = 1.0) -> Array:
    return np.where(x > alpha, x, 0).astype(x.dtype)


@define("HardSigmoid")
@in_float32
def _hard_sigmoid(x: Array, /, alpha: float = 0.2, beta: float = 0.5) -> Array:
    return hard_sigmoid(x, alpha, beta)


@define("Gelu")
@in_float32
def _gelu(x: Array, /, approximate: str = "none") -> Array:
    forms = {"none": gelu, "tanh": gelu_tanh}
    if approximate not in forms:
        raise UnsupportedOpError(f"expected approximate none or tanh, got {approximate!r}")
    return forms[approximate](x)


@define("Swish")
@in_float32
def _swish(x: Array, /, alpha: float = 1.0) -> Array:
    return np.asarray(x * sigmoid(x.dtype.type(alpha) * x))


@define("QuickGelu")
@in_float32
def _quick_gelu(x: Array, /, alpha: float = 1.702) -> Array:
    """An approximation of Gelu, as in onnxruntime."""
    return np.asarray(x * sigmoid(x.dtype.type(alpha) * x))


@define("SwiGLU")
@in_float32
def _swiglu(gate: Array, value: Array, /, alpha: float = 1.0) -> Array:
    require(gate.shape == value.shape, f"expected inputs of the same shape, got {gate.shape} and {value.shape}")
    return np.asarray(gate * sigmoid(gate.dtype.type(alpha) * gate) * value)


@define("Shrink")
@in_float32
def _shrink(x: Array, /, lambd: float = 0.5, bias: float = 0.0) -> Array:
    return np.where(x < -lambd, x + bias, np.where(x > lambd, x - bias, 0)).astype(x.dtype)
