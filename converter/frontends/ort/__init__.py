"""The frontend of ONNX Runtime's own files (`.ort`): an ONNX model after its optimisations, in a flatbuffer.

    load(bytes)    -> the model as IR
    read(bytes)    -> the same as onnx.ModelProto, for ONNX Runtime itself

`reader` turns tables into ONNX's messages one for one; the ONNX frontend checks what they mean, and passes turn ONNX
Runtime's operators into ONNX's, both as in an `.onnx` file that ONNX Runtime has optimised.
"""

from __future__ import annotations

import onnx_ir as ir

from converter.frontends import onnx
from converter.frontends.ort.reader import read

__all__ = ["load", "read"]


def load(data: bytes) -> ir.Model:
    """The model of a file at its own opset. Raises ConvertError."""
    return onnx.load(read(data))
