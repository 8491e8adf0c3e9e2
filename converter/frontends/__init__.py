"""Frontends: source formats to `onnx_ir.Model`.

load(source)      a path, bytes or a model object -> its signatures as models, and the file's metadata
"""

from __future__ import annotations

import os

from converter.frontends import onnx
from converter.frontends.loaded import Integers, Loaded, Variables, read
from converter.frontends.onnx import Source

__all__ = ["Integers", "Loaded", "Source", "Variables", "load", "read"]

_TFLITE = b"TFL3"


def load(source: Source, *, integers: Integers = "exact") -> Loaded:
    """The models of a source, whose format its first bytes decide; `integers` concerns .tflite. Raises ConvertError."""
    if _is_tflite(source):
        from converter.frontends import tflite

        assert isinstance(source, str | os.PathLike | bytes | bytearray | memoryview)
        return tflite.load(source if isinstance(source, str | os.PathLike) else bytes(source), integers=integers)
    return Loaded({"predict": onnx.load(source)})


def _is_tflite(source: Source) -> bool:
    """Whether bytes 4 to 8 are the file identifier (FlatBuffers: the root's offset, then the identifier)."""
    if isinstance(source, bytes | bytearray | memoryview):
        return bytes(source[4:8]) == _TFLITE
    if isinstance(source, str | os.PathLike):
        try:
            with open(source, "rb") as file:
                return file.read(8)[4:] == _TFLITE
        except OSError:
            return False
    return False
