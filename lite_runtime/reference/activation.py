"""The activations that can be fused into a node, and the elementwise functions that they share with operators."""

from __future__ import annotations

from collections.abc import Callable
from math import erf as exact_erf

import numpy as np

from lite_runtime.errors import UnsupportedOpError
from lite_runtime.graph import Array

__all__ = ["ACTIVATIONS", "activate", "elu", "erf", "gelu", "gelu_tanh", "hard_sigmoid", "leaky_relu", "sigmoid"]


def erf(x: Array) -> Array:
    """The error function, in the type of `x`; computed by the C library for each element."""
    values = np.fromiter(map(exact_erf, x.ravel().tolist()), np.float64, x.size)
    return values.reshape(x.shape).astype(x.dtype)


def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x)) without overflow."""
    small = np.exp(-np.abs(x))  # in (0, 1]
    return np.asarray(np.where(x >= 0, 1 / (1 + small), small / (1 + small)).astype(x.dtype))


def leaky_relu(x: Array, alpha: float = 0.01) -> Array:
    """x if x >= 0, otherwise alpha * x."""
    return np.where(x >= 0, x, x * x.dtype.type(alpha))


def elu(x: Array, alpha: float = 1.0) -> Array:
    """x if x > 0, otherwise alpha * (exp(x) - 1)."""
    return np.where(x > 0, x, x.dtype.type(alpha) * np.expm1(np.minimum(x, 0)))


def hard_sigmoid(x: Array, alpha: float = 0.2, beta: float = 0.5) -> Array:
    """alpha * x + beta, clamped to [0, 1]."""
    return np.asarray(np.clip(x.dtype.type(alpha) * x + x.dtype.type(beta), 0, 1))


def gelu(x: Array) -> Array:
    """x * Phi(x), where Phi is the standard normal distribution function."""
    t = x.dtype.type
    return np.asarray(t(0.5) * x * (1 + erf(x * t(np.sqrt(0.5)))))


def gelu_tanh(x: Array) -> Array:
    """The tanh approximation of `gelu`."""
    t = x.dtype.type
    return np.asarray(t(0.5) * x * (1 + np.tanh(t(np.sqrt(2 / np.pi)) * (x + t(0.044715) * x * x * x))))


def _clip(x: Array, low: float, high: float) -> Array:
    return np.asarray(np.minimum(np.maximum(x, x.dtype.type(low)), x.dtype.type(high)))


ACTIVATIONS: dict[str, tuple[Callable[..., Array], dict[str, float]]] = {
    "": (lambda x: x, {}),
    "Relu": (lambda x: np.maximum(x, 0), {}),
    "Clip": (
        lambda x, activation_min, activation_max: _clip(x, activation_min, activation_max),
        {"activation_min": -np.inf, "activation_max": np.inf},
    ),
    "LeakyRelu": (lambda x, activation_alpha: leaky_relu(x, activation_alpha), {"activation_alpha": 0.01}),
    "Sigmoid": (sigmoid, {}),
    "Tanh": (np.tanh, {}),
    "HardSwish": (lambda x: x * hard_sigmoid(x, 1 / 6, 0.5), {}),
    "HardSigmoid": (
        lambda x, activation_alpha, activation_beta: hard_sigmoid(x, activation_alpha, activation_beta),
        {"activation_alpha": 0.2, "activation_beta": 0.5},
    ),
    "Silu": (lambda x: x * sigmoid(x), {}),
    "Gelu": (gelu, {}),
    "GeluTanh": (gelu_tanh, {}),
    "Elu": (lambda x, activation_alpha: elu(x, activation_alpha), {"activation_alpha": 1.0}),
}
"""Name -> (function, its parameters with their defaults)."""


def activate(x: Array, activation: str = "", **parameters: float) -> Array:
    """Apply a node's fused activation. Parameters that the activation does not take are refused."""
    if activation not in ACTIVATIONS:
        known = ", ".join(name for name in ACTIVATIONS if name)
        raise UnsupportedOpError(f"expected activation of {known} or none, got {activation!r}")
    fn, defaults = ACTIVATIONS[activation]
    strange = sorted(set(parameters) - {"activation_alpha", "activation_beta", "activation_min", "activation_max"})
    if strange:
        raise UnsupportedOpError(f"expected no attributes beyond ONNX's and activation_*, got {', '.join(strange)}")
    return fn(x, **{name: parameters.get(name, default) for name, default in defaults.items()})
