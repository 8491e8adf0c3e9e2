"""Activations that convolutions and matrix products apply to a tile while it is in cache: numbers and parameters.

The kernels' side is `lite_runtime.kernels._math.activate`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from lite_runtime.errors import MsedgeError
from lite_runtime.operators import epilogues

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


ACTIVATIONS: dict[str, Activation] = {
    "": Activation(0),
    **{
        name: Activation(row.code, tuple((attribute, default) for attribute, _, default in row.parameters))
        for name, row in epilogues().items()
    },
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
