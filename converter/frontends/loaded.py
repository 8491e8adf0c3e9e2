"""The result of every frontend, and reading a model file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx_ir as ir

from converter.errors import ConvertError

__all__ = ["Loaded", "read"]


@dataclass(frozen=True)
class Loaded:
    """A source's signatures by name, each a model at its own opset, and its metadata as plain JSON values."""

    models: Mapping[str, ir.Model]
    metadata: Mapping[str, Any] = field(default_factory=dict)
    format: str = "onnx"


def read(path: str | os.PathLike[str]) -> bytes:
    """The bytes of a model file. Raises ConvertError."""
    try:
        return Path(path).read_bytes()
    except FileNotFoundError:
        raise ConvertError(f"no file at {path}; check the path") from None
    except OSError as error:
        raise ConvertError(f"cannot read {path}: {error.strerror or error}") from None
