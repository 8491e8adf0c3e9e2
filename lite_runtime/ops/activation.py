"""Activations that convolutions and matrix products apply to a tile while it is in cache: codes and parameters.

The kernels' counterpart is `lite_runtime.kernels._math.activate`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from lite_runtime.errors import MsedgeError
from lite_runtime.frozen import NamedTuple
from lite_runtime.operators import Fused, epilogues

__all__ = ["ACTIVATIONS", "Epilogue", "activation"]

Attr = Callable[..., Any]
"""Signature of Binder.attr: (name, default) -> value."""


class Epilogue(NamedTuple):
    """The last three numbers that a kernel receives."""

    code: int
    a: float
    b: float


ACTIVATIONS: Mapping[str, Fused] = {"": Fused(0, ""), **epilogues()}
"""Codes by the `activation` attribute of Conv, ConvTranspose and MatMul."""


def activation(attr: Attr) -> Epilogue:
    """The epilogue that a node's `activation…` attributes specify; `attr` is Binder.attr or Inference.attr."""
    name = attr("activation", "")
    if name not in ACTIVATIONS:
        known = ", ".join(filter(None, ACTIVATIONS))
        raise MsedgeError(f"expected an activation of {known}, got {name!r}")
    row = ACTIVATIONS[name]
    values = [float(attr(key, default)) for key, _, default in row.parameters] + [0.0, 0.0]
    return Epilogue(row.code, values[0], values[1])
