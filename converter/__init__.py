"""The converter: graphs in, bundles out.

    conversion = converter.convert("model.onnx", output="model.mslite")
    model = converter.to_ir("model.onnx")           # onnx_ir.Model, one opset, shapes inferred
    graph = converter.lowering(model)                  # lite_runtime.graph.Graph

Importing this package loads nothing heavy; the names below do when first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from converter.conversion import Conversion, convert
    from converter.errors import ConvertError, UnsupportedOpError
    from converter.lowering import lower
    from converter.pipeline import optimize, to_ir
    from converter.report import Report

__all__ = ["Conversion", "ConvertError", "Report", "UnsupportedOpError", "convert", "lower", "optimize", "to_ir"]

_HOMES = {
    "Conversion": "converter.conversion",
    "ConvertError": "converter.errors",
    "Report": "converter.report",
    "UnsupportedOpError": "converter.errors",
    "convert": "converter.conversion",
    "lower": "converter.lowering",
    "optimize": "converter.pipeline",
    "to_ir": "converter.pipeline",
}
_NEEDS = ("onnx", "onnx_ir", "onnxscript")


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'converter' has no attribute {name!r}")
    try:
        return getattr(import_module(_HOMES[name]), name)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] not in _NEEDS:
            raise
        from lite_runtime.errors import MissingExtraError

        raise MissingExtraError(error.name, "convert", "the converter reads and rewrites ONNX with it") from error


def __dir__() -> list[str]:
    return sorted(__all__)
