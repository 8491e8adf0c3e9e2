"""The TensorFlow Lite frontend: a .tflite file's signatures as ONNX models, quantised ones in QDQ form.

    load(path or bytes)    -> Loaded(models by signature, metadata)
    custom("MyOp")         registers the rule of a custom operator

From bytes to graph: `flatbuffer` and `schema` (checked access) -> `reader` -> `model` (plain data) -> `signatures` and
`scope` (a graph under construction), where each operator's rule, in `ops`, uses `op.Op`.
"""

from __future__ import annotations

import os

from converter.frontends.loaded import Loaded, read
from converter.frontends.tflite import ops
from converter.frontends.tflite.custom import custom
from converter.frontends.tflite.metadata import describe
from converter.frontends.tflite.op import Op, translate
from converter.frontends.tflite.reader import read as parse
from converter.frontends.tflite.signatures import entry_points, to_ir
from converter.frontends.tflite.state import described

__all__ = ["Op", "custom", "load", "translate"]

ops.register()


def load(source: str | os.PathLike[str] | bytes) -> Loaded:
    """A file's signatures as models at the pinned opset, and its metadata (see `metadata.describe`, `state.described`).

    Without signatures, or with a single one, the only model is "predict"; with several, each has its key, and the first
    is also named "predict" if no signature has that key. Raises ConvertError for a damaged file, UnsupportedOpError (a
    ConvertError) listing all operators without a rule.
    """
    data = source if isinstance(source, bytes) else read(source)
    model = parse(data)
    models = {key: to_ir(model, signature) for key, signature in entry_points(model).items()}
    return Loaded(models, {**describe(model, data), **described(models)}, "tflite")
