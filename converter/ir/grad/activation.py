"""Activations with parameters, and those that are compositions.

As in `elementwise`, derivatives are expressed by the result where possible.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import pi, sqrt

from converter.ir.grad.rules import At, Gradients, rule
from converter.ir.grad.tape import Term

__all__ = ["ACTIVATIONS"]


def _sign_of(n: At, alpha: float) -> Term:
    """A value that is above 0 exactly where x is: y, if its other branch stays below 0."""
    return n.y if alpha > 0 else n.x


def _leaky(n: At) -> Term:
    alpha = n.attr("alpha", 0.01)
    return n.tape.where(_sign_of(n, alpha) > 0, n.g, n.g * alpha)


def _elu(n: At) -> Term:
    """alpha * (exp x - 1) below 0, whose derivative is y + alpha."""
    alpha = n.attr("alpha", 1.0)
    return n.g * n.tape.where(_sign_of(n, alpha) > 0, 1.0, n.y + alpha)


def _celu(n: At) -> Term:
    """alpha * (exp(x / alpha) - 1) below 0: y / alpha + 1."""
    alpha = n.attr("alpha", 1.0)
    return n.g * n.tape.where(_sign_of(n, alpha) > 0, 1.0, n.y * (1 / alpha) + 1)


def _selu(n: At) -> Term:
    alpha = n.attr("alpha", 1.67326319217681884765625)
    gamma = n.attr("gamma", 1.05070102214813232421875)
    return n.g * n.tape.where(_sign_of(n, alpha * gamma) > 0, gamma, n.y + alpha * gamma)


def _hard_sigmoid(n: At) -> Term:
    inside = n.tape.where(n.y > 0, n.g * n.attr("alpha", 0.2), 0.0)
    return n.tape.where(n.y < 1, inside, 0.0)


def _hard_swish(n: At) -> Term:
    """x * clip(x / 6 + 1/2, 0, 1)."""
    inside = n.tape.where(n.x > -3, n.g * (n.x * (1 / 3) + 0.5), 0.0)
    return n.tape.where(n.x < 3, inside, n.g)


def _swish(n: At, default: float = 1.0) -> Term:
    """x * s(alpha x): s + alpha y (1 - s)."""
    alpha = n.attr("alpha", default)
    s = (n.x if alpha == 1 else n.x * alpha).op("Sigmoid")
    rest = n.y * (1 - s)
    return n.g * (s + (rest if alpha == 1 else rest * alpha))


def _gelu(n: At) -> Term:
    """x * normal(x): normal(x) + x * density(x), or the derivative of the tanh approximation."""
    x = n.x
    if n.attr("approximate", "none") == "tanh":
        k, c = sqrt(2 / pi), 0.044715
        t = ((x + x * x * x * c) * k).op("Tanh")
        slope = (x * x * (3 * c) + 1) * k
        return n.g * ((t + 1) * 0.5 + x * 0.5 * (1 - t * t) * slope)
    normal = ((x * sqrt(0.5)).op("Erf") + 1) * 0.5
    density = (x * x * -0.5).op("Exp") * (1 / sqrt(2 * pi))
    return n.g * (normal + x * density)


def _mish(n: At) -> Term:
    """x * tanh(softplus x)."""
    t = n.x.op("Softplus").op("Tanh")
    return n.g * (t + n.x * n.x.op("Sigmoid") * (1 - t * t))


def _thresholded(n: At) -> Term:
    return n.tape.where(n.x > n.attr("alpha", 1.0), n.g, 0.0)


def _shrink(n: At) -> Term:
    return n.tape.where(n.x.op("Abs") > n.attr("lambd", 0.5), n.g, 0.0)


ACTIVATIONS: Mapping[str, Callable[[At], Term]] = {
    "LeakyRelu": _leaky,
    "Elu": _elu,
    "Celu": _celu,
    "Selu": _selu,
    "HardSigmoid": _hard_sigmoid,
    "HardSwish": _hard_swish,
    "QuickGelu": lambda n: _swish(n, 1.702),
    "Silu": _swish,
    "Swish": _swish,
    "Gelu": _gelu,
    "Mish": _mish,
    "ThresholdedRelu": _thresholded,
    "Shrink": _shrink,
}


@rule(*ACTIVATIONS)
def _activation(n: At) -> Gradients:
    return [ACTIVATIONS[n.node.op_type](n)]


@rule("PRelu")
def _prelu(n: At) -> Gradients:
    x, slope = n.input(0), n.input(1)
    above = x > 0
    return [
        n.tape.where(above, n.g, n.g * slope),
        n.tape.where(above, 0.0, n.g * x).reduce_to(slope) if n.wants(1) else None,
    ]


@rule("SwiGLU")
def _swiglu(n: At) -> Gradients:
    """swish(gate) * value."""
    gate, value, alpha = n.input(0), n.input(1), n.attr("alpha", 1.0)
    s = (gate if alpha == 1 else gate * alpha).op("Sigmoid")
    swish = gate * s
    rest = swish * (1 - s)
    slope = s + (rest if alpha == 1 else rest * alpha)
    return [
        n.g * value * slope if n.wants(0) else None,
        n.g * swish if n.wants(1) else None,
    ]


@rule("Softmax")
def _softmax(n: At) -> Gradients:
    axis, weighted = n.axis(-1), n.g * n.y
    return [weighted - n.y * weighted.sum([axis], keepdims=True)]


@rule("LogSoftmax")
def _log_softmax(n: At) -> Gradients:
    return [n.g - n.y.op("Exp") * n.g.sum([n.axis(-1)], keepdims=True)]
