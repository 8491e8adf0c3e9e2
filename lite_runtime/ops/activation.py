"""Activations that convolutions and matrix products apply to a tile while it is in cache: numbers and parameters.

The kernels' side is `lite_runtime.kernels._math.activate`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from lite_runtime.errors import MsedgeError

__all__ = ["ACTIVATIONS", "Activation", "Epilogue", "activation"]

Attr = Callable[..., Any]
"""Binder.attr: (name, default) -> value."""


class Activation(NamedTuple):
    """A row of the table: what `activate` calls it and where its two parameters come from."""

    code: int
    parameters: tuple[tuple[str, float], ...] = ()
    """(attribute, default) of at most two parameters."""


class Epilogue(NamedTuple):
    """What a kernel is handed: its last three numbers."""

    code: int
    a: float
    b: float


_INFINITY = float("inf")
ACTIVATIONS: dict[str, Activation] = {
    "": Activation(0),
    "Relu": Activation(1),
    "Clip": Activation(2, (("activation_min", -_INFINITY), ("activation_max", _INFINITY))),
    "LeakyRelu": Activation(3, (("activation_alpha", 0.01),)),
    "Sigmoid": Activation(4),
    "Tanh": Activation(5),
    "HardSwish": Activation(6),
    "HardSigmoid": Activation(7, (("activation_alpha", 0.2), ("activation_beta", 0.5))),
    "Silu": Activation(8),
    "Gelu": Activation(9),
    "GeluTanh": Activation(10),
    "Elu": Activation(11, (("activation_alpha", 1.0),)),
}
"""By the `activation` attribute of Conv, ConvTranspose and MatMul."""


def activation(attr: Attr) -> Epilogue:
    """The epilogue a node asks for through its `activation…` attributes; `attr` is Binder.attr or Inference.attr."""
    name = attr("activation", "")
    if name not in ACTIVATIONS:
        known = ", ".join(filter(None, ACTIVATIONS))
        raise MsedgeError(f"expected an activation of {known}, got {name!r}")
    code, parameters = ACTIVATIONS[name]
    values = [float(attr(key, default)) for key, default in parameters] + [0.0, 0.0]
    return Epilogue(code, values[0], values[1])
