"""Activations that convolutions and matrix products apply to a tile while it is in cache: numbers and parameters.

The kernels' side is `lite_runtime.kernels._math.activate`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from lite_runtime.errors import MsedgeError
from lite_runtime.frozen import NamedTuple
from lite_runtime.operators import Fused, epilogues

__all__ = ["ACTIVATIONS", "Epilogue", "activation"]

Attr = Callable[..., Any]
"""Binder.attr: (name, default) -> value."""


class Epilogue(NamedTuple):
    """What a kernel is handed: its last three numbers."""

    code: int
    a: float
    b: float


ACTIVATIONS: Mapping[str, Fused] = {"": Fused(0, ""), **epilogues()}
"""By the `activation` attribute of Conv, ConvTranspose and MatMul."""


def activation(attr: Attr) -> Epilogue:
    """The epilogue a node asks for through its `activation…` attributes; `attr` is Binder.attr or Inference.attr."""
    name = attr("activation", "")
    if name not in ACTIVATIONS:
        known = ", ".join(filter(None, ACTIVATIONS))
        raise MsedgeError(f"expected an activation of {known}, got {name!r}")
    row = ACTIVATIONS[name]
    values = [float(attr(key, default)) for key, _, default in row.parameters] + [0.0, 0.0]
    return Epilogue(row.code, values[0], values[1])
