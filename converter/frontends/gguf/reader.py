"""A GGUF file's metadata and tensors, every count, offset and size of which is checked against the file.

https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and 3, little-endian. The file is mapped: tensors
are views of it, and what is decoded (metadata) is at most a fixed multiple of the bytes that it takes in the file.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Mapping
from math import prod
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from converter.errors import ConvertError
from converter.frontends.gguf.blocks import TYPES, Type
from converter.frontends.loaded import viewed

__all__ = ["File", "Tensor", "Value", "read"]

Value: TypeAlias = "int | float | bool | str | np.ndarray | list[Value]"
"""A metadata value; arrays of numbers are NumPy's, arrays of texts and of arrays are lists."""

_MAGIC, _VERSIONS = b"GGUF", (2, 3)
_SCALARS: Mapping[int, np.dtype[Any]] = {
    0: np.dtype("<u1"), 1: np.dtype("<i1"), 2: np.dtype("<u2"), 3: np.dtype("<i2"), 4: np.dtype("<u4"),
    5: np.dtype("<i4"), 6: np.dtype("<f4"), 7: np.dtype("?"), 10: np.dtype("<u8"), 11: np.dtype("<i8"),
    12: np.dtype("<f8"),
}  # fmt: skip
"""By the number of a metadata value's type."""
_TEXT, _ARRAY = 8, 9
_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")
_MAX_DEPTH, _MAX_RANK, _MAX_KEY, _MAX_SIZE = 4, 4, 1 << 10, 1 << 40
_AGAIN = "the file is truncated or damaged; download it again"


class Tensor(NamedTuple):
    """One tensor: `shape` with the axis last whose elements are neighbours in memory; `data` is a view of the file."""

    name: str
    shape: tuple[int, ...]
    type: Type
    data: memoryview


class File(NamedTuple):
    """What a file contains."""

    metadata: Mapping[str, Value]
    tensors: Mapping[str, Tensor]


def read(source: str | os.PathLike[str] | bytes) -> File:
    """The contents of a path, which is mapped, or of bytes. Raises ConvertError for what is not a sound file."""
    return _parse(memoryview(source) if isinstance(source, bytes) else viewed(source))


def _parse(data: memoryview) -> File:
    cursor = _Cursor(data)
    if bytes(cursor.take(4, "header")) != _MAGIC:
        raise ConvertError(f"expected a GGUF file, which begins with {_MAGIC!r}, got {bytes(data[:4])!r}")
    version = cursor.u32("header, version")
    if version not in _VERSIONS:
        swapped = int.from_bytes(version.to_bytes(4, "little"), "big") in _VERSIONS
        got = "a big-endian file" if swapped else str(version)
        raise ConvertError(f"header: expected GGUF version 2 or 3, little-endian, got {got}; convert the model again")
    tensors, values = cursor.u64("header, tensor count"), cursor.u64("header, metadata count")
    cursor.need(tensors, 24, "header, tensor count")
    cursor.need(values, 13, "header, metadata count")
    metadata: dict[str, Value] = {}
    for i in range(values):
        key = cursor.text(f"metadata {i}, key", _MAX_KEY)
        if key in metadata:
            raise ConvertError(f"metadata: expected {key!r} once, got it twice; {_AGAIN}")
        metadata[key] = cursor.value(f"metadata {key!r}")
    rows = [_row(cursor, i) for i in range(tensors)]
    return File(metadata, _placed(data, cursor.at, _alignment(metadata), rows))


class _Cursor:
    """Reads a file from its start to its end."""

    def __init__(self, data: memoryview) -> None:
        self.data, self.at = data, 0

    def take(self, size: int, where: str) -> memoryview:
        """The next `size` bytes."""
        left = len(self.data) - self.at
        if size > left:
            raise ConvertError(f"{where}: expected {size} bytes at byte {self.at}, got {left}: {_AGAIN}")
        self.at += size
        return self.data[self.at - size : self.at]

    def need(self, count: int, size: int, where: str) -> None:
        """Raise ConvertError unless `count` items of at least `size` bytes may follow."""
        left = len(self.data) - self.at
        if count * size > left:
            most = left // size
            raise ConvertError(f"{where}: expected at most {most} in the bytes that follow, got {count}: {_AGAIN}")

    def u32(self, where: str) -> int:
        """An unsigned number of 4 bytes."""
        found: int = _U32.unpack(self.take(4, where))[0]
        return found

    def u64(self, where: str) -> int:
        """An unsigned number of 8 bytes."""
        found: int = _U64.unpack(self.take(8, where))[0]
        return found

    def text(self, where: str, longest: int = 1 << 31) -> str:
        """A length, and as many bytes of UTF-8."""
        size = self.u64(where)
        if size > longest:
            raise ConvertError(f"{where}: expected at most {longest} bytes of text, got {size}: {_AGAIN}")
        raw = self.take(size, where)
        try:
            return str(raw, "utf-8")
        except UnicodeDecodeError:
            raise ConvertError(f"{where}: expected UTF-8, got {bytes(raw[:20])!r}: {_AGAIN}") from None

    def value(self, where: str) -> Value:
        """A type's number and a value of it."""
        kind = self.u32(where)
        return self._array(where, 1) if kind == _ARRAY else self._one(kind, where)

    def _one(self, kind: int, where: str) -> Value:
        if kind == _TEXT:
            return self.text(where)
        found: Value = self._numbers(kind, 1, where)[0].item()
        return found

    def _numbers(self, kind: int, count: int, where: str) -> np.ndarray:
        dtype = _SCALARS.get(kind)
        if dtype is None:
            raise ConvertError(f"{where}: expected a value type from 0 to 12, got {kind}: {_AGAIN}")
        raw = self.take(count * dtype.itemsize, where)
        if kind == 7 and count and max(raw) > 1:
            raise ConvertError(f"{where}: expected 0 or 1 for a bool, got {max(raw)}: {_AGAIN}")
        return np.frombuffer(raw, dtype)

    def _array(self, where: str, depth: int) -> Value:
        kind, count = self.u32(where), self.u64(where)
        if kind == _ARRAY:
            if depth >= _MAX_DEPTH:
                raise ConvertError(f"{where}: expected arrays nested at most {_MAX_DEPTH} deep, got more: {_AGAIN}")
            self.need(count, 12, where)
            return [self._array(where, depth + 1) for _ in range(count)]
        if kind == _TEXT:
            self.need(count, 8, where)
            return [self.text(f"{where}, {i}") for i in range(count)]
        return self._numbers(kind, count, where)


class _Row(NamedTuple):
    name: str
    shape: tuple[int, ...]
    type: Type
    offset: int
    size: int


def _row(cursor: _Cursor, i: int) -> _Row:
    """The description of tensor `i`."""
    name = cursor.text(f"tensor {i}, name", _MAX_KEY)
    where = f"tensor {name!r}"
    rank = cursor.u32(where)
    if not 1 <= rank <= _MAX_RANK:
        raise ConvertError(f"{where}: expected 1 to {_MAX_RANK} sizes, got {rank}: {_AGAIN}")
    shape = tuple(cursor.u64(where) for _ in range(rank))[::-1]
    number = cursor.u32(where)
    offset = cursor.u64(where)
    kind = TYPES.get(number)
    if kind is None:
        known = ", ".join(t.name for t in TYPES.values())
        raise ConvertError(f"{where}: expected a type of {known}, got number {number}; quantise it to one of these")
    if not all(shape) or prod(shape) > _MAX_SIZE:
        raise ConvertError(f"{where}: expected 1 to {_MAX_SIZE} elements, got shape {list(shape)}: {_AGAIN}")
    if shape[-1] % kind.elements:
        wanted = f"rows of blocks of {kind.elements} ({kind.name})"
        raise ConvertError(f"{where}: expected {wanted}, got {shape[-1]} columns: {_AGAIN}")
    return _Row(name, shape, kind, offset, prod(shape) // kind.elements * kind.size)


def _alignment(metadata: Mapping[str, Value]) -> int:
    found = metadata.get("general.alignment", 32)
    if not isinstance(found, int) or isinstance(found, bool) or found < 8 or found > 1 << 20 or found & (found - 1):
        raise ConvertError(f"general.alignment: expected a power of two from 8 to {1 << 20}, got {found!r}; {_AGAIN}")
    return found


def _placed(data: memoryview, end: int, alignment: int, rows: Iterable[_Row]) -> dict[str, Tensor]:
    """Tensors where the rows say that they are: inside the file, aligned, none over another. The offsets count from
    the first aligned byte after the header, which ends at byte `end`."""
    start = -(-end // alignment) * alignment
    found: dict[str, Tensor] = {}
    taken = 0
    for row in sorted(rows, key=lambda row: row.offset):
        where = f"tensor {row.name!r}"
        if row.name in found:
            raise ConvertError(f"{where}: expected one tensor of that name, got two: {_AGAIN}")
        if row.offset % alignment:
            raise ConvertError(f"{where}: expected an offset in steps of {alignment}, got {row.offset}: {_AGAIN}")
        if row.offset < taken:
            got = f"{row.offset}, inside another tensor"
            raise ConvertError(f"{where}: expected an offset from {taken}, got {got}: {_AGAIN}")
        taken = row.offset + row.size
        if start + taken > len(data):
            raise ConvertError(f"{where}: expected {row.size} bytes at byte {start + row.offset}, but the file has "
                               f"{len(data)}: {_AGAIN}")  # fmt: skip
        found[row.name] = Tensor(row.name, row.shape, row.type, data[start + row.offset : start + taken])
    return found
