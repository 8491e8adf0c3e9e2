"""Activation functions, and the softmax family."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from cloud.engine.lowering.registry import Tensor, lowering

__all__ = ["ACTIVATIONS"]


@lowering("Relu")
def relu(x: Tensor) -> Tensor:
    return jax.nn.relu(x)


@lowering("LeakyRelu")
def leaky_relu(x: Tensor, *, alpha: float = 0.01) -> Tensor:
    return jnp.where(x >= 0, x, alpha * x)


@lowering("PRelu")
def prelu(x: Tensor, slope: Tensor) -> Tensor:
    return jnp.where(x >= 0, x, slope * x)


@lowering("ThresholdedRelu")
def thresholded_relu(x: Tensor, *, alpha: float = 1.0) -> Tensor:
    return jnp.where(x > alpha, x, 0)


@lowering("Elu")
def elu(x: Tensor, *, alpha: float = 1.0) -> Tensor:
    return jax.nn.elu(x, alpha)


@lowering("Celu")
def celu(x: Tensor, *, alpha: float = 1.0) -> Tensor:
    return jax.nn.celu(x, alpha)


@lowering("Selu")
def selu(x: Tensor, *, alpha: float = 1.67326319217681884765625, gamma: float = 1.05070102214813232421875) -> Tensor:
    return gamma * jax.nn.elu(x, alpha)


@lowering("Gelu")
def gelu(x: Tensor, *, approximate: str = "none") -> Tensor:
    return jax.nn.gelu(x, approximate=approximate == "tanh")


@lowering("Sigmoid")
def sigmoid(x: Tensor) -> Tensor:
    return jax.nn.sigmoid(x)


@lowering("HardSigmoid")
def hard_sigmoid(x: Tensor, *, alpha: float = 0.2, beta: float = 0.5) -> Tensor:
    return jnp.clip(alpha * x + beta, 0, 1)


@lowering("HardSwish")
def hard_swish(x: Tensor) -> Tensor:
    return x * hard_sigmoid(x, alpha=1 / 6, beta=0.5)


@lowering("Swish")
def swish(x: Tensor, *, alpha: float = 1.0) -> Tensor:
    return x * jax.nn.sigmoid(alpha * x)


@lowering("QuickGelu")
def quick_gelu(x: Tensor, *, alpha: float = 1.702) -> Tensor:
    return swish(x, alpha=alpha)


@lowering("SwiGLU")
def swiglu(gate: Tensor, value: Tensor, *, alpha: float = 1.0) -> Tensor:
    return swish(gate, alpha=alpha) * value


@lowering("Mish")
def mish(x: Tensor) -> Tensor:
    return x * jnp.tanh(jax.nn.softplus(x))


@lowering("Softplus")
def softplus(x: Tensor) -> Tensor:
    return jax.nn.softplus(x)


@lowering("Softsign")
def softsign(x: Tensor) -> Tensor:
    return x / (1 + jnp.abs(x))


@lowering("Shrink")
def shrink(x: Tensor, *, bias: float = 0.0, lambd: float = 0.5) -> Tensor:
    return jnp.where(x < -lambd, x + bias, jnp.where(x > lambd, x - bias, 0)).astype(x.dtype)


@lowering("Softmax")
def softmax(x: Tensor, *, axis: int = -1) -> Tensor:
    return jax.nn.softmax(x, axis=axis)


@lowering("LogSoftmax")
def log_softmax(x: Tensor, *, axis: int = -1) -> Tensor:
    return jax.nn.log_softmax(x, axis=axis)


@lowering("Hardmax")
def hardmax(x: Tensor, *, axis: int = -1) -> Tensor:
    """1 at the first largest element, 0 elsewhere."""
    return jax.nn.one_hot(jnp.argmax(x, axis=axis), x.shape[axis], axis=axis, dtype=x.dtype)


def _scaled_tanh(x: Tensor, *, alpha: float = 1.0, beta: float = 1.0) -> Tensor:
    return alpha * jnp.tanh(beta * x)


def _affine(x: Tensor, *, alpha: float = 1.0, beta: float = 0.0) -> Tensor:
    return alpha * x + beta


# Activations of recurrent operators (names are case-insensitive there): function, and which of alpha and beta it takes.
ACTIVATIONS = {
    "affine": (_affine, ("alpha", "beta")),
    "elu": (elu, ("alpha",)),
    "hardsigmoid": (hard_sigmoid, ("alpha", "beta")),
    "leakyrelu": (leaky_relu, ("alpha",)),
    "relu": (relu, ()),
    "scaledtanh": (_scaled_tanh, ("alpha", "beta")),
    "sigmoid": (sigmoid, ()),
    "softplus": (softplus, ()),
    "softsign": (softsign, ()),
    "tanh": (jnp.tanh, ()),
    "thresholdedrelu": (thresholded_relu, ("alpha",)),
}
