"""The public face of msedge: every name a user needs, each imported when it is first asked for.

    import msedge

    msedge.convert("model.onnx", output="model.mslite")
    model = msedge.load("model.mslite", threads=2)
    model.run({"x": x})

`import msedge` costs next to nothing. A name whose packages are not installed raises `MissingExtraError`, which says
what to install.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__all__ = [
    "BundleError",
    "Client",
    "Conversion",
    "ConvertError",
    "GatewayError",
    "InputError",
    "Interpreter",
    "Lora",
    "MissingExtraError",
    "Model",
    "MsedgeError",
    "ShapeError",
    "Trainer",
    "Training",
    "UnsupportedOpError",
    "convert",
    "load",
]

if TYPE_CHECKING:
    from cloud.train import Trainer
    from converter import Conversion, ConvertError, convert
    from converter.training import Lora, Training
    from edge.client import Client
    from edge.gateway.errors import GatewayError
    from lite_runtime import Interpreter, Model, load
    from lite_runtime.errors import (
        BundleError,
        InputError,
        MissingExtraError,
        MsedgeError,
        ShapeError,
        UnsupportedOpError,
    )

_HOME = {
    **dict.fromkeys(("Interpreter", "Model", "load"), "lite_runtime"),
    **dict.fromkeys(("Conversion", "ConvertError", "convert"), "converter"),
    **dict.fromkeys(("Lora", "Training"), "converter.training"),
    "Trainer": "cloud.train",
    "Client": "edge.client",
    "GatewayError": "edge.gateway.errors",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'msedge' has no attribute {name!r}; it offers {', '.join(__all__)}")
    try:
        value = getattr(import_module(_HOME.get(name, "lite_runtime.errors")), name)
    except ModuleNotFoundError as error:
        from edge.extras import explain_missing

        raise explain_missing(error) or error from error
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, *(n for n in globals() if n.startswith("__"))]
