"""Tensors as a safetensors file."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from typing import Any

import ml_dtypes
import numpy as np

from converter.errors import ConvertError
from converter.frontends.safetensors.reader import DTYPES
from lite_runtime._files import write_atomically
from lite_runtime.graph import Array

__all__ = ["write"]

_STORED = {dtype: stored for stored, dtype in DTYPES.items()}


def write(
    path: str | os.PathLike[str], tensors: Mapping[str, Array], metadata: Mapping[str, str] | None = None
) -> None:
    """Write the tensors by name, in this order, atomically. Raises ConvertError for a dtype that the format does not
    have, and where the file cannot be written."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt", **(metadata or {})}}
    end = 0
    for name, array in tensors.items():
        stored = _STORED.get(array.dtype.newbyteorder("<") if array.dtype.itemsize > 1 else array.dtype)
        if stored is None:
            raise ConvertError(
                f"tensor {name!r}: expected a dtype of {', '.join(map(str, _STORED))}, got {array.dtype}"
            )
        begin, end = end, end + array.nbytes
        header[name] = {"dtype": stored, "shape": list(array.shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)

    def parts() -> Iterator[bytes]:
        yield len(text).to_bytes(8, "little") + text
        for array in tensors.values():
            yield _little(array)

    write_atomically(path, parts(), ConvertError)


def _little(array: Array) -> bytes:
    if array.dtype.itemsize == 1 or array.dtype == ml_dtypes.bfloat16:
        return np.ascontiguousarray(array).tobytes()
    return np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes()
