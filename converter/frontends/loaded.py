"""The result of every frontend, and reading a model file."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import onnx_ir as ir

from converter.errors import ConvertError
from converter.frontends.embedding import Embedding
from lite_runtime._mapping import mapped
from lite_runtime.graph import Array, StateUse

__all__ = ["Integers", "Loaded", "Variables", "pieces", "read", "viewed"]

Integers = Literal["exact", "litert"]
"""Arithmetic of quantised operators: real numbers rounded once (QDQ), or the fixed-point steps of LiteRT's kernels."""


@dataclass(frozen=True)
class Variables:
    """What a source's signatures keep between runs: which inputs and outputs are which variable, and initial values."""

    uses: Mapping[str, StateUse] = field(default_factory=dict)
    """By signature; only signatures with variables."""
    initial: Mapping[str, Array] = field(default_factory=dict)


@dataclass(frozen=True)
class Loaded:
    """A source's signatures by name, each a model at its own opset; metadata as plain JSON values; variables."""

    models: Mapping[str, ir.Model]
    metadata: Mapping[str, Any] = field(default_factory=dict)
    format: str = "ONNX"
    """The format's name."""
    variables: Variables = field(default_factory=Variables)
    sections: Mapping[str, bytes] = field(default_factory=dict)
    """Further sections of the bundle, by name."""
    trained: ir.Model | None = None
    """Of a language model with adapters, the graph that learns."""
    language: Mapping[str, Any] = field(default_factory=dict)
    """Of a language model, whose graph needs no optimising and is not quantised further: facts for the report."""
    embedding: Embedding | None = None
    """Of an encoder that turns texts into vectors: how, as the source says it."""
    decoder: Any = None
    """Of a language model, what its file holds: a `decoders.LanguageModel`, from which other graphs can be made."""


_PIECE = 1 << 24


def viewed(path: str | os.PathLike[str]) -> memoryview:
    """The bytes of a model file, which is mapped: only what is looked at is read. Raises ConvertError."""
    try:
        data = mapped(path)
    except FileNotFoundError:
        raise ConvertError(f"no file at {path}; check the path") from None
    except OSError as error:
        raise ConvertError(f"cannot read {path}: {error.strerror or error}") from None
    if data is None:
        raise ConvertError(f"{path}: expected a file, got a folder or device; give the path of a file")
    return data


def pieces(path: str | os.PathLike[str]) -> Iterator[bytes]:
    """The bytes of a model file, some at a time. Raises ConvertError."""
    try:
        with open(path, "rb") as file:
            while piece := file.read(_PIECE):
                yield piece
    except FileNotFoundError:
        raise ConvertError(f"no file at {path}; check the path") from None
    except OSError as error:
        raise ConvertError(f"cannot read {path}: {error.strerror or error}") from None


def read(path: str | os.PathLike[str]) -> bytes:
    """The bytes of a model file. Raises ConvertError."""
    return b"".join(pieces(path))
