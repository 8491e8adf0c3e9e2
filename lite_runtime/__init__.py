"""The device runtime: loads a bundle and runs it. Needs only NumPy; uses native kernels if available."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lite_runtime.errors import BundleError, InputError, MissingExtraError, MsedgeError, ShapeError, UnsupportedOpError

if TYPE_CHECKING:
    from lite_runtime.custom import CustomOperator, register
    from lite_runtime.graph import Spec
    from lite_runtime.running.interpreter import Interpreter
    from lite_runtime.running.session import Model, load

__all__ = [
    "BundleError",
    "CustomOperator",
    "InputError",
    "Interpreter",
    "MissingExtraError",
    "Model",
    "MsedgeError",
    "ShapeError",
    "Spec",
    "UnsupportedOpError",
    "load",
    "register",
]

ARCHIVE = "reference.zip"
"""The archive with the references in a device's wheel: rarely needed there, and compressed to a tenth of the size."""
__path__.append(f"{__path__[0]}/{ARCHIVE}")

_LAZY = {
    "CustomOperator": "lite_runtime.custom",
    "Interpreter": "lite_runtime.running.interpreter",
    "Model": "lite_runtime.running.session",
    "Spec": "lite_runtime.graph",
    "load": "lite_runtime.running.session",
    "register": "lite_runtime.custom",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        import gc
        from importlib import import_module

        # Importing modules makes no garbage; a collection over all of NumPy's objects takes 1.3 ms of a start.
        collecting = gc.isenabled()
        gc.disable()
        try:
            return getattr(import_module(_LAZY[name]), name)
        finally:
            if collecting:
                gc.enable()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
