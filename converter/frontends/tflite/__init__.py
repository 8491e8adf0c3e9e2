"""The TensorFlow Lite frontend: a .tflite file's signatures as ONNX models, quantised ones in QDQ form.

    load(path or bytes)    -> Loaded(models by signature, metadata)
    custom("MyOp")         registers the rule of a custom operator

From bytes to graph: `flatbuffer` and `schema` (checked access) -> `reader` -> `model` (plain data) -> `signatures` and
`scope` (a graph under construction), where each operator's rule, in `ops`, uses `op.Op`.
"""

from __future__ import annotations

import os

from converter.frontends.loaded import Integers, Loaded, read
from converter.frontends.tflite import ops
from converter.frontends.tflite.custom import custom
from converter.frontends.tflite.metadata import describe
from converter.frontends.tflite.model import Quant
from converter.frontends.tflite.op import Op, translate
from converter.frontends.tflite.reader import read as parse
from converter.frontends.tflite.signatures import entry_points, to_ir
from converter.frontends.tflite.state import variables
from converter.ir import quantization

__all__ = ["Op", "custom", "load", "translate"]

ops.register()


def load(source: str | os.PathLike[str] | bytes, *, integers: Integers = "exact") -> Loaded:
    """A file's signatures as models at the pinned opset, its metadata (`metadata.describe`) and its variables.

    Without signatures, or with a single one, the only model is "predict"; with several, each has its key, and the first
    is also named "predict" if no signature has that key. `integers`: with "litert", operators whose results differ from
    exact arithmetic become integer operators that compute LiteRT's results instead of QDQ. Raises ConvertError for a
    damaged file, UnsupportedOpError (a ConvertError) listing all operators without a rule.
    """
    data = source if isinstance(source, bytes) else read(source)
    model = parse(data)
    made = {key: to_ir(model, signature, integers) for key, signature in entry_points(model).items()}
    kept = variables({key: entry.states for key, entry in made.items()})
    scales = {key: {n: _plain(q) for n, q in entry.quants.items() if not q.block} for key, entry in made.items()}
    found = {**describe(model, data), **quantization.metadata(scales)}
    return Loaded({key: entry.model for key, entry in made.items()}, found, "TensorFlow Lite", kept)


def _plain(quant: Quant) -> quantization.Scales:
    return quantization.Scales(quant.scale.reshape(-1).tolist(), quant.zero_point.reshape(-1).tolist(), quant.axis)
