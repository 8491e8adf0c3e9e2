"""Files of elements in array_record format: each record is a JSON head that describes its arrays, and their bytes.

Nothing in a file is executed; a changed bit is found by array_record's checksums, a malformed element by its head.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from cloud.data.columns import stack
from cloud.errors import DataError

__all__ = ["RecordFile", "decode", "decode_columns", "encode", "write_records"]

_HEAD = 4
"""Bytes of the head's length, little-endian."""

_CHUNK, _MOST_TOGETHER = 8192, 64
"""Records are stored in chunks of about so many bytes, and at most so many records. A batch of random records reads a
chunk for each, and costs time in proportion to the number of chunks too."""

_KINDS = "biufc"
"""NumPy's kinds of numbers; other types have no plain bytes."""

_DTYPES = {
    dtype.str: dtype
    for code in np.typecodes["All"]
    for dtype in (np.dtype(code), np.dtype(code).newbyteorder())
    if dtype.kind in _KINDS
} | {
    name: np.dtype(getattr(ml_dtypes, name))
    for name in ("bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "int4", "uint4")
}  # fmt: skip
"""Every type of numbers by the name that `encode` writes. `np.dtype` itself would parse whatever text it is given."""

_TEXT, _BYTES = "text", "bytes"
"""The types of a string, stored as UTF-8, and of bytes; their shape is [length in bytes]."""


def encode(element: Mapping[str, Any]) -> bytes:
    """A dict of arrays, numbers, strings and bytes as bytes; DataError for anything else."""
    if not isinstance(element, Mapping):
        raise DataError(f"expected elements that are dicts of arrays, got {type(element).__name__}")
    parts = [_part(name, value) for name, value in element.items()]
    fields = [[name, code, shape] for name, (code, shape, _) in zip(element, parts, strict=True)]
    head = json.dumps(fields, separators=(",", ":")).encode()
    return b"".join([len(head).to_bytes(_HEAD, "little"), head, *(data for _, _, data in parts)])


def _part(name: str, value: Any) -> tuple[str, list[int], bytes]:
    """(type, shape, bytes) of a value."""
    if isinstance(value, str | bytes):
        data = value.encode() if isinstance(value, str) else bytes(value)
        return (_TEXT if isinstance(value, str) else _BYTES), [len(data)], data
    array = np.asarray(value)
    code = array.dtype.name if array.dtype.name in _DTYPES else array.dtype.str
    if code not in _DTYPES:
        raise DataError(
            f"records hold numbers, strings and bytes, got dtype {array.dtype} for {name!r}; an array of strings: one "
            "value for each, or their numbers"
        )
    return code, list(array.shape), array.tobytes()


def decode(record: bytes) -> dict[str, Any]:
    """The argument of `encode`; ValueError for a malformed record."""
    fields, start = _fields(record)
    element: dict[str, Any] = {}
    for name, code, dtype, shape in fields:
        count = math.prod(shape)
        data = record[start : start + count * dtype.itemsize]
        if code == _TEXT:
            element[name] = data.decode()
        elif code == _BYTES:
            element[name] = data
        else:
            element[name] = np.frombuffer(data, dtype).reshape(shape)
        start += len(data)
    return element


def decode_columns(records: Sequence[bytes]) -> dict[str, Any]:
    """Columns of the decoded records; ValueError for a malformed one, DataError for ragged ones. Arrays of records with
    equal heads are read at once."""
    first = records[0]
    fields, start = _fields(first)
    head, size = first[:start], len(first)
    texts = any(code in (_TEXT, _BYTES) for _, code, _, _ in fields)
    if texts or any(len(record) != size or record[:start] != head for record in records):
        columns: dict[str, Any] = stack([decode(record) for record in records], "records")
        return columns
    rows = np.frombuffer(b"".join(records), np.uint8).reshape(len(records), size)
    columns = {}
    for name, _, dtype, shape in fields:
        end = start + math.prod(shape) * dtype.itemsize
        columns[name] = np.ascontiguousarray(rows[:, start:end]).view(dtype).reshape(len(records), *shape)
        start = end
    return columns


def _fields(record: bytes) -> tuple[list[tuple[str, str, np.dtype[Any], list[int]]], int]:
    """(name, type, dtype, shape) of each value, and where the values begin; ValueError for a malformed record."""
    start = _HEAD + int.from_bytes(record[:_HEAD], "little")
    fields = json.loads(record[_HEAD:start])
    if not isinstance(fields, list) or not all(isinstance(f, list) and len(f) == 3 for f in fields):
        raise ValueError("its head is not a list of names, types and shapes")
    found, end = [], start
    for name, code, shape in fields:
        plain = code in (_TEXT, _BYTES) if isinstance(code, str) else False
        dtype = np.dtype(np.uint8) if plain else _DTYPES.get(code) if isinstance(code, str) else None
        if not isinstance(name, str) or dtype is None or not _is_shape(shape) or (plain and len(shape) != 1):
            raise ValueError(f"its head has no such array: {[name, code, shape]}")
        end += math.prod(shape) * dtype.itemsize
        if end > len(record):
            raise ValueError(f"{name!r} extends beyond the end of the record")
        found.append((name, code, dtype, shape))
    if end != len(record):
        raise ValueError(f"{len(record) - end} bytes remain after the arrays")
    return found, start


def write_records(path: str | os.PathLike[str], elements: Iterable[Mapping[str, Any]]) -> int:
    """Write elements (dicts of arrays, numbers, strings and bytes) to a file that `records` reads; returns their
    number. bfloat16 and other types of ml_dtypes are numbers too.

    The file is written atomically. Raises DataError for other elements, and with the path if it cannot be written.
    """
    from cloud.data._grain import record_writer

    shown = os.fspath(path)
    temporary = os.path.join(os.path.dirname(os.path.abspath(shown)), f".msedge-records-{os.urandom(8).hex()}.tmp")
    count = 0
    try:
        encoded = map(encode, elements)
        first = next(encoded, None)
        together = 1 if first is None else max(1, min(_MOST_TOGETHER, _CHUNK // len(first)))
        with record_writer(temporary, together) as write:
            for record in encoded if first is None else chain([first], encoded):
                write(record)
                count += 1
        with open(temporary, "rb") as written:
            os.fsync(written.fileno())
        os.replace(temporary, shown)
    except (OSError, RuntimeError) as problem:
        raise DataError(f"cannot write {shown!r}: {problem}; check the folder and the disk") from problem
    finally:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
    return count


_CORRUPT = (OSError, RuntimeError, ValueError, TypeError, RecursionError)
"""What array_record and `decode` raise for a damaged record."""


class RecordFile:
    """The elements of a file of records by number; opened again in a worker."""

    guards = True  # arrays are views of bytes

    def __init__(self, path: str) -> None:
        from cloud.data import _grain

        self._path = path
        if not os.path.isfile(path):
            raise DataError(f"no file {path!r}: expected one written by write_records")
        try:
            self._reader = _grain.record_reader(path)
            self._count = int(self._reader.num_records())
        except (OSError, RuntimeError, ValueError) as problem:
            raise DataError(f"{path!r} is not a complete file of records: {problem}") from problem

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: int) -> dict[str, Any]:
        if not 0 <= number < self._count:
            raise IndexError(f"expected a record from 0 to {self._count - 1} of {self._path!r}, got {number}")
        try:
            return decode(self._reader.read([number])[0])
        except _CORRUPT as problem:
            raise DataError(f"record {number} of {self._path!r} is corrupt: {problem}") from problem

    def __getitems__(self, numbers: Sequence[int]) -> list[dict[str, Any]]:
        """Several elements, read at once."""
        found: list[dict[str, Any]] = self._together(numbers, lambda records: list(map(decode, records)))
        return found

    def take_rows(self, numbers: npt.NDArray[np.intp]) -> dict[str, Any]:
        """Columns of several elements."""
        found: dict[str, Any] = self._together(numbers.tolist(), decode_columns)
        return found

    def _together(self, numbers: Sequence[int], decoded: Callable[[Sequence[bytes]], Any]) -> Any:
        try:
            return decoded(self._reader.read(numbers))
        except _CORRUPT as problem:
            for number in numbers:
                self[number]  # which one it is
            raise DataError(f"a record of {self._path!r} is corrupt: {problem}") from problem

    def __reduce__(self) -> tuple[type[RecordFile], tuple[str]]:
        return RecordFile, (self._path,)


def _is_shape(shape: Any) -> bool:
    return isinstance(shape, list) and all(isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in shape)
