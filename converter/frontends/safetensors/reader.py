"""A safetensors file's tensors: 8 bytes of length, a JSON object, and the data, every extent of which is checked.

https://huggingface.co/docs/safetensors. The file is mapped: tensors are views of it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from math import prod
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from converter.errors import ConvertError
from converter.frontends.loaded import viewed

__all__ = ["DTYPES", "Tensor", "read"]

_MAX_HEADER = 100_000_000
"""The format's own limit."""
DTYPES: Mapping[str, np.dtype[Any]] = {
    "F64": np.dtype("<f8"), "F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "BF16": np.dtype(ml_dtypes.bfloat16),
    "I64": np.dtype("<i8"), "I32": np.dtype("<i4"), "I16": np.dtype("<i2"), "I8": np.dtype("i1"),
    "U64": np.dtype("<u8"), "U32": np.dtype("<u4"), "U16": np.dtype("<u2"), "U8": np.dtype("u1"), "BOOL": np.dtype("?"),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn), "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
}  # fmt: skip
_AGAIN = "the file is truncated or damaged; download it again"


class Tensor(NamedTuple):
    """One tensor: `array` is a view of the file, `stored` the type as the file names it."""

    array: np.ndarray
    stored: str


def read(source: str | os.PathLike[str] | bytes) -> dict[str, Tensor]:
    """The tensors by name of a path, which is mapped, or of bytes. Raises ConvertError for what is not a sound file."""
    if isinstance(source, bytes):
        return _parse(memoryview(source), "the file")
    return _parse(viewed(source), os.path.basename(os.fspath(source)))


def _parse(data: memoryview, where: str) -> dict[str, Tensor]:
    size = int.from_bytes(data[:8], "little")
    if len(data) < 8 or not 2 <= size <= min(_MAX_HEADER, len(data) - 8):
        raise ConvertError(f"{where}: expected a header of 2 to {max(len(data) - 8, 0)} bytes, got {size}: {_AGAIN}")
    header, body = _header(data[8 : 8 + size], where), data[8 + size :]
    found, taken = {}, 0
    rows = (_row(name, row, f"{where}, tensor {name!r}") for name, row in header.items() if name != "__metadata__")
    for row in sorted(rows, key=lambda row: row.begin):
        if row.begin != taken or row.end > len(body):
            got = f"{row.begin} to {row.end}"
            raise ConvertError(f"{row.where}: expected bytes from {taken}, at most to {len(body)}, got {got}: {_AGAIN}")
        taken = row.end
        array = np.frombuffer(body[row.begin : row.end], DTYPES[row.stored]).reshape(row.shape)
        found[row.name] = Tensor(array, row.stored)
    if taken != len(body):
        raise ConvertError(f"{where}: expected data up to byte {len(body)}, got tensors up to {taken}: {_AGAIN}")
    return found


class _Row(NamedTuple):
    name: str
    stored: str
    shape: tuple[int, ...]
    begin: int
    end: int
    where: str


def _row(name: str, row: object, where: str) -> _Row:
    """A tensor's description, checked."""
    if not isinstance(row, dict) or row.keys() != {"dtype", "shape", "data_offsets"}:
        raise ConvertError(f"{where}: expected dtype, shape and data_offsets, got {str(row)[:80]}: {_AGAIN}")
    stored, shape, extent = row["dtype"], row["shape"], row["data_offsets"]
    if not isinstance(stored, str) or stored not in DTYPES:
        raise ConvertError(f"{where}: expected a type of {', '.join(DTYPES)}, got {str(stored)[:20]!r}")
    if not (_sizes(shape) and len(shape) <= 8 and _sizes(extent) and len(extent) == 2):
        got = f"{str(shape)[:60]} and {str(extent)[:60]}"
        raise ConvertError(f"{where}: expected a shape of sizes and two offsets, got {got}: {_AGAIN}")
    size = prod(shape) * DTYPES[stored].itemsize
    if extent[1] - extent[0] != size:
        raise ConvertError(f"{where}: expected {size} bytes, got offsets {extent}: {_AGAIN}")
    return _Row(name, stored, tuple(shape), extent[0], extent[1], where)


def _sizes(value: object) -> bool:
    """Whether it is a list of numbers that sizes may be."""
    return isinstance(value, list) and all(type(n) is int and 0 <= n < 1 << 48 for n in value)


def _header(raw: memoryview, where: str) -> dict[str, Any]:
    try:
        found = json.loads(str(raw, "utf-8"), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise ConvertError(f"{where}: expected a header of JSON, got {str(error)[:80]}: {_AGAIN}") from None
    if not isinstance(found, dict):
        raise ConvertError(f"{where}: expected a JSON object as header, got {type(found).__name__}: {_AGAIN}")
    return found


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        raise ValueError("a name twice in an object")
    return made
