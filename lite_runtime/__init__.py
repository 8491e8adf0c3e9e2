"""The device runtime: load one small file, run it. Needs NumPy alone; native where kernels are kept."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lite_runtime.errors import BundleError, InputError, MissingExtraError, MsedgeError, ShapeError, UnsupportedOpError

if TYPE_CHECKING:
    from lite_runtime.interpreter import Interpreter
    from lite_runtime.session import Model, load

__all__ = [
    "BundleError",
    "InputError",
    "Interpreter",
    "MissingExtraError",
    "Model",
    "MsedgeError",
    "ShapeError",
    "UnsupportedOpError",
    "load",
]

_LAZY = {"Interpreter": "lite_runtime.interpreter", "Model": "lite_runtime.session", "load": "lite_runtime.session"}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        from importlib import import_module

        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
