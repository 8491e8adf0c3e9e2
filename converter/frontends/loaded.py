"""The result of every frontend, and reading a model file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import onnx_ir as ir

from converter.errors import ConvertError
from lite_runtime.graph import Array, StateUse

__all__ = ["Integers", "Loaded", "Variables", "read"]

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


def read(path: str | os.PathLike[str]) -> bytes:
    """The bytes of a model file. Raises ConvertError."""
    try:
        return Path(path).read_bytes()
    except FileNotFoundError:
        raise ConvertError(f"no file at {path}; check the path") from None
    except OSError as error:
        raise ConvertError(f"cannot read {path}: {error.strerror or error}") from None
