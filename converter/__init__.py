"""The converter: from model files to bundles.

    conversion = converter.convert("model.onnx", output="model.mslite")
    model = converter.to_ir("model.onnx")           # onnx_ir.Model, one opset, shapes inferred
    model = converter.from_torch(module, {"x": x})  # the same, to train it
    graph = converter.lower(model)                  # lite_runtime.graph.Graph
    converter.build("model.mslite", "web", "wasm32") # a folder for browsers and Node

Importing this package loads nothing heavy; each public name is imported when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lite_runtime._lazy import lazy

if TYPE_CHECKING:
    from converter.ahead import Built, build
    from converter.conversion import Conversion, convert
    from converter.cutting import cut
    from converter.errors import ConvertError, QuantizeError, TrainingError, UnsupportedOpError
    from converter.frontends.embedding import Embedding
    from converter.frontends.safetensors import load_language_model
    from converter.frontends.tflite import custom
    from converter.frontends.tflite.op import Op
    from converter.frontends.torch import from_torch
    from converter.ir.grad import differentiate
    from converter.lowering import lower
    from converter.pass_lists import optimize, to_ir
    from converter.quantize.accuracy.evaluation import Accuracy
    from converter.quantize.options import Options
    from converter.report import Report
    from converter.training.options import Lora, Training
    from converter.weights import load_weights, save_weights

__all__ = [
    "Accuracy",
    "Built",
    "Conversion",
    "ConvertError",
    "Embedding",
    "Lora",
    "Op",
    "Options",
    "QuantizeError",
    "Report",
    "Training",
    "TrainingError",
    "UnsupportedOpError",
    "build",
    "convert",
    "custom",
    "cut",
    "differentiate",
    "from_torch",
    "load_language_model",
    "load_weights",
    "lower",
    "optimize",
    "save_weights",
    "to_ir",
]

_HOMES = {
    "Accuracy": "converter.quantize.accuracy.evaluation",
    "Built": "converter.ahead",
    "build": "converter.ahead",
    "Conversion": "converter.conversion",
    "ConvertError": "converter.errors",
    "Embedding": "converter.frontends.embedding",
    "Lora": "converter.training.options",
    "Op": "converter.frontends.tflite.op",
    "Options": "converter.quantize.options",
    "QuantizeError": "converter.errors",
    "Report": "converter.report",
    "Training": "converter.training.options",
    "TrainingError": "converter.errors",
    "UnsupportedOpError": "converter.errors",
    "convert": "converter.conversion",
    "custom": "converter.frontends.tflite.custom",
    "cut": "converter.cutting",
    "differentiate": "converter.ir.grad",
    "from_torch": "converter.frontends.torch",
    "load_language_model": "converter.frontends.safetensors",
    "load_weights": "converter.weights",
    "lower": "converter.lowering",
    "optimize": "converter.pass_lists",
    "save_weights": "converter.weights",
    "to_ir": "converter.pass_lists",
}
"""Every public name and the module that defines it."""

__getattr__ = lazy("converter", _HOMES, "convert", "the converter reads and rewrites ONNX with it")


def __dir__() -> list[str]:
    return sorted(__all__)
