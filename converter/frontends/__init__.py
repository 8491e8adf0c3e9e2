"""Frontends: source formats to `onnx_ir.Model`.

load(source)      a path, bytes or a model object -> its signatures as models, and the file's metadata
FORMATS           the formats of files as data: what reads each, or the way round
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any, TypeAlias

from converter.errors import ConvertError
from converter.frontends import onnx
from converter.frontends.decoders import Settings
from converter.frontends.formats import FORMATS, TFLITE, Format, by_suffix, recognise, refusal
from converter.frontends.loaded import Integers, Loaded, Variables, pieces, read
from converter.frontends.objects import reader_of

__all__ = [
    "FORMATS",
    "TFLITE",
    "Format",
    "Integers",
    "Loaded",
    "Source",
    "Variables",
    "format_of",
    "load",
    "pieces",
    "read",
]

Source: TypeAlias = onnx.Source | Any
"""A path, bytes, an ONNX model, or an object of a library in `objects.OBJECTS`."""


def load(
    source: Source, examples: Any = None, *, integers: Integers = "exact", language: Settings | None = None
) -> Loaded:
    """The models of a source. `examples`: inputs that an object of another library is recorded with. `integers`
    concerns .tflite files, `language` files of language models. Raises ConvertError: for a format that no frontend
    reads, with the way round."""
    reader = reader_of(source)
    if reader is not None:
        return reader(source, examples)
    if examples is not None:
        raise ConvertError("examples: only Python objects (PyTorch, scikit-learn) need example inputs; omit it")
    found = format_of(source)
    if found is not None:
        if not found.reader:
            raise refusal(found, source)
        given = {"integers": integers, "language": language}
        settings = {name: given[name] for name in found.settings}
        loaded = import_module(found.reader).load(_contents(source, found), **settings)
        return loaded if isinstance(loaded, Loaded) else Loaded({"predict": loaded}, format=found.name)
    try:
        return Loaded({"predict": onnx.load(source)})
    except onnx.NotOnnxError:
        named = by_suffix(source)
        if named is None:
            raise
        raise refusal(named, source) from None


def format_of(source: Source) -> Format | None:
    """The format that a path's or bytes' content shows; None for ONNX and for objects."""
    if isinstance(source, bytes | bytearray | memoryview):
        return recognise(bytes(source))
    return recognise(source) if isinstance(source, str | os.PathLike) else None


def _contents(source: Any, form: Format) -> Any:
    """What the reader takes: bytes or the path."""
    if isinstance(source, bytes | bytearray | memoryview):
        return bytes(source)
    return source if form.by_path or os.path.isdir(source) else read(source)
