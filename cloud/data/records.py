"""Files of elements in array_record format: each record is a JSON head that describes its arrays, and their bytes.

Nothing in a file is executed; a changed bit is found by array_record's checksums, a malformed element by its head.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from cloud.errors import DataError

__all__ = ["RecordFile", "decode", "encode", "write_records"]

_HEAD = 4
"""Bytes of the head's length, little-endian."""

_KINDS = "biufc"
"""NumPy's kinds of numbers; other types have no plain bytes."""

_DTYPES = {
    dtype.str: dtype
    for code in np.typecodes["All"]
    for dtype in (np.dtype(code), np.dtype(code).newbyteorder())
    if dtype.kind in _KINDS
}
"""Every type of numbers by the name that `encode` writes. `np.dtype` itself would parse whatever text it is given."""


def encode(element: Mapping[str, Any]) -> bytes:
    """A dict of arrays and numbers as bytes; DataError for anything else."""
    if not isinstance(element, Mapping):
        raise DataError(f"expected elements that are dicts of arrays, got {type(element).__name__}")
    arrays = {name: np.asarray(value) for name, value in element.items()}
    for name, array in arrays.items():
        if array.dtype.kind not in _KINDS:
            raise DataError(f"records hold numbers, got dtype {array.dtype} for {name!r}")
    fields = [[name, array.dtype.str, list(array.shape)] for name, array in arrays.items()]
    head = json.dumps(fields, separators=(",", ":")).encode()
    return b"".join([len(head).to_bytes(_HEAD, "little"), head, *(array.tobytes() for array in arrays.values())])


def decode(record: bytes) -> dict[str, Any]:
    """The argument of `encode`; ValueError for a malformed record."""
    start = _HEAD + int.from_bytes(record[:_HEAD], "little")
    fields = json.loads(record[_HEAD:start])
    if not isinstance(fields, list) or not all(isinstance(f, list) and len(f) == 3 for f in fields):
        raise ValueError("its head is not a list of names, types and shapes")
    element: dict[str, Any] = {}
    for name, code, shape in fields:
        dtype = _DTYPES.get(code) if isinstance(code, str) else None
        if not isinstance(name, str) or dtype is None or not _is_shape(shape):
            raise ValueError(f"its head has no such array: {[name, code, shape]}")
        count = math.prod(shape)
        if start + count * dtype.itemsize > len(record):
            raise ValueError(f"{name!r} extends beyond the end of the record")
        element[name] = np.frombuffer(record, dtype, count, start).reshape(shape)
        start += count * dtype.itemsize
    if start != len(record):
        raise ValueError(f"{len(record) - start} bytes remain after the arrays")
    return element


def write_records(path: str | os.PathLike[str], elements: Iterable[Mapping[str, Any]]) -> int:
    """Write elements (dicts of arrays and numbers) to a file that `records` reads; returns their number.

    The file is written atomically. Raises DataError for other elements, and with the path if it cannot be written.
    """
    from cloud.data._grain import record_writer

    shown = os.fspath(path)
    temporary = os.path.join(os.path.dirname(os.path.abspath(shown)), f".msedge-records-{os.urandom(8).hex()}.tmp")
    count = 0
    try:
        with record_writer(temporary) as write:
            for element in elements:
                write(encode(element))
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


class RecordFile:
    """The elements of a file of records by number; opened again in a worker."""

    def __init__(self, path: str) -> None:
        from cloud.data._grain import record_reader

        self._path = path
        if not os.path.isfile(path):
            raise DataError(f"no file {path!r}: expected one written by write_records")
        try:
            self._records = record_reader(path)
            self._count = len(self._records)
        except (OSError, RuntimeError, ValueError) as problem:
            raise DataError(f"{path!r} is not a complete file of records: {problem}") from problem

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: int) -> dict[str, Any]:
        try:
            return decode(self._records[number])
        except (OSError, RuntimeError, ValueError, TypeError, RecursionError) as problem:
            raise DataError(f"record {number} of {self._path!r} is corrupt: {problem}") from problem

    def __reduce__(self) -> tuple[type[RecordFile], tuple[str]]:
        return RecordFile, (self._path,)


def _is_shape(shape: Any) -> bool:
    return isinstance(shape, list) and all(isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in shape)
