"""The cloud: train ONNX graphs with JAX. Importing this package imports neither JAX nor ONNX; its rooms do.

`cloud.engine` turns an `onnx_ir.Model` into a JAX function and back, `cloud.train` fits it, `cloud.zoo` holds models.
"""

from __future__ import annotations

import importlib
from types import ModuleType

__all__ = ["data", "engine", "errors", "train", "zoo"]


def __getattr__(name: str) -> ModuleType:
    if name in __all__:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(__all__)}")


def __dir__() -> list[str]:
    return sorted(__all__)
