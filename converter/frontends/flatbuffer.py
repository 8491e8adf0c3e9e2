"""A FlatBuffers reader that checks every offset and length against the file: tables by a schema, fields by name.

A schema is text of which a line is

    Name: field type[=default], ...

with fields in slot order, "-" for a slot that nothing reads. Types: i1 i2 i4 i8 u1 u2 u4 u8 f4 f8 (numpy's codes), b
for a bool, str, [type] for a vector, another table's name, and `union`, which the field before it, ending in _type,
selects.

A malicious file may point anywhere and claim any length. Nothing is read outside the file, and the work is bounded by
the file's size even when many offsets point to the same place, because decoded bytes count against a budget.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from converter.errors import ConvertError

__all__ = ["Field", "File", "Table", "parse"]

_SCALARS = {
    kind: struct.Struct("<" + code)
    for kind, code in zip("i1 i2 i4 i8 u1 u2 u4 u8 f4 f8 b".split(), "bhiqBHIQfd?", strict=True)
}
_BUDGET, _BUDGET_PER_BYTE = 1 << 16, 8
"""Decoded bytes allowed per byte of the file: without shared parts a file needs less than 1; some writers share."""


class Field(NamedTuple):
    """One field of a table: `type` is the element's when `vector`. `default` is what an absent scalar means."""

    name: str
    type: str
    vector: bool
    default: float


def parse(text: str) -> dict[str, tuple[Field | None, ...]]:
    """Tables by name from the text form above; None stands for a slot that nothing reads."""
    found = {}
    for line in text.replace("\n    ", " ").strip().splitlines():
        name, _, fields = line.partition(": ")
        found[name] = tuple(_field(entry) for entry in fields.split(", "))
    return found


def _field(entry: str) -> Field | None:
    if entry == "-":
        return None
    name, _, kind = entry.partition(" ")
    kind, _, default = kind.partition("=")
    return Field(name, kind.strip("[]"), kind.startswith("["), float({"True": 1, "": 0}.get(default, default)))


class File:
    """The bytes, the layout of their tables, and what may still be decoded from them."""

    def __init__(self, data: bytes | memoryview, tables: Mapping[str, tuple[Field | None, ...]]) -> None:
        self.data = memoryview(data)
        self.tables = {name: {f.name: (i, f) for i, f in enumerate(row) if f} for name, row in tables.items()}
        self._budget = _BUDGET + _BUDGET_PER_BYTE * len(self.data)
        self.top = ""
        """The type of the root table, which errors about its parts do not name."""

    def root(self, name: str, identifier: bytes, what: str) -> Table:
        """The root table, of type `name`. Raises ConvertError when the file does not carry `identifier`."""
        if len(self.data) < 8 or bytes(self.data[4:8]) != identifier:
            got = bytes(self.data[4:8])
            raise ConvertError(f"expected {what} (identifier {identifier!r} at byte 4), got {got!r}")
        self.top = name
        return Table(self, name, self.number("u4", 0, name), name)

    def number(self, kind: str, at: int, where: str) -> int | float | bool:
        """A scalar at byte `at`."""
        code = _SCALARS[kind]
        self.span(at, code.size, where)
        found: int | float | bool = code.unpack_from(self.data, at)[0]
        return found

    def span(self, at: int, size: int, where: str) -> memoryview:
        """`size` bytes from byte `at`. Raises ConvertError if they are not all inside the file."""
        if at < 0 or size < 0 or at + size > len(self.data):
            raise ConvertError(
                f"{where}: expected {size} bytes at byte {at}, but the file has {len(self.data)}; "
                "it is truncated or damaged"
            )
        return self.data[at : at + size]

    def charge(self, size: int, where: str) -> None:
        """Count `size` decoded bytes. Raises ConvertError when the total far exceeds the file's size."""
        self._budget -= size
        if self._budget < 0:
            raise ConvertError(
                f"{where}: the file refers to the same bytes too often, expected at most {_BUDGET_PER_BYTE} times "
                "its size in total; it is damaged"
            )


class Table:
    """A table at byte `at` of the file; `where` names it in errors."""

    def __init__(self, file: File, name: str, at: int | float, where: str) -> None:
        self._file, self._fields, self._at, self.where = file, file.tables.get(name, {}), int(at), where
        file.charge(8, where)
        vtable = self._at - int(file.number("i4", self._at, where))
        self._slots_size = int(file.number("u2", vtable, where))
        self._size = int(file.number("u2", vtable + 2, where))
        if self._slots_size < 4 or self._slots_size % 2:
            raise ConvertError(f"{where}: expected a list of fields of even size from 4, got {self._slots_size} bytes")
        self._slots = file.span(vtable, self._slots_size, where)
        file.span(self._at, self._size, where)

    @property
    def fields(self) -> Mapping[str, tuple[int, Field]]:
        """Slot and description by field name."""
        return self._fields

    def has(self, name: str) -> bool:
        """Whether the file stores this field."""
        field = self._fields[name][1]
        scalar = None if field.vector else _SCALARS.get(field.type)
        return self._place(name, scalar.size if scalar else 4) is not None

    def _place(self, name: str, size: int = 4) -> int | None:
        slot = 4 + 2 * self._fields[name][0]
        if slot + 2 > self._slots_size:
            return None
        offset = int.from_bytes(self._slots[slot : slot + 2], "little")
        if not offset:
            return None
        if offset + size > self._size:
            raise ConvertError(
                f"{self.where}: field {name} is at byte {offset} of a table of {self._size} bytes; the file is damaged"
            )
        return self._at + offset

    def _target(self, name: str) -> int | None:
        place = self._place(name)
        return None if place is None else place + int(self._file.number("u4", place, f"{self.where}, {name}"))

    def number(self, name: str) -> float:
        """A scalar field, or its default."""
        field = self._fields[name][1]
        place = self._place(name, _SCALARS[field.type].size)
        return field.default if place is None else self._file.number(field.type, place, self.where)

    def integer(self, name: str) -> int:
        """An integer, bool or enum field, or its default."""
        return int(self.number(name))

    def text(self, name: str) -> str:
        """A string field, "" when absent. Raises ConvertError when it is not UTF-8."""
        at = self._target(name)
        return "" if at is None else self._text(at, f"{self.where}, {name}")

    def _text(self, at: int, where: str) -> str:
        data = self._file.span(at + 4, int(self._file.number("u4", at, where)), where)
        self._file.charge(len(data), where)
        try:
            return str(data, "utf-8")
        except UnicodeDecodeError:
            raise ConvertError(f"{where}: expected UTF-8, got {bytes(data[:20])!r}; the file is damaged") from None

    def vector(self, name: str) -> np.ndarray:
        """A vector of scalars as a view of the file; empty when absent."""
        field = self._fields[name][1]
        dtype = np.dtype("?" if field.type == "b" else "<" + field.type)
        at = self._target(name)
        if at is None:
            return np.zeros(0, dtype)
        where = f"{self.where}, {name}"
        count = int(self._file.number("u4", at, where))
        return np.frombuffer(self._file.span(at + 4, count * dtype.itemsize, where), dtype)

    def ints(self, name: str) -> tuple[int, ...]:
        """A vector of integers as a tuple."""
        found = self.vector(name)
        self._file.charge(found.nbytes, self.where)
        return tuple(int(v) for v in found)

    def floats(self, name: str) -> tuple[float, ...]:
        """A vector of floats as a tuple."""
        found = self.vector(name)
        self._file.charge(found.nbytes, self.where)
        return tuple(float(v) for v in found)

    def blob(self, name: str) -> memoryview:
        """A vector of bytes as a view of the file."""
        return self.vector(name).data.cast("B")

    def copied(self, name: str) -> bytes:
        """A vector of bytes, copied."""
        found = self.blob(name)
        self._file.charge(len(found), self.where)
        return bytes(found)

    def table(self, name: str, kind: str = "") -> Table | None:
        """A table field; `kind` is the table's type where the field is a union."""
        at = self._target(name)
        return None if at is None else Table(self._file, kind or self._fields[name][1].type, at, self._inner(name))

    def union(self, name: str, kinds: tuple[str, ...]) -> tuple[str, Table | None]:
        """A union field: which of `kinds` it holds ("NONE" when absent), and its table."""
        number = self.integer(name + "_type")
        if not 0 <= number < len(kinds):
            raise ConvertError(
                f"{self.where}: expected {name}_type of 0 to {len(kinds) - 1}, got {number}; the file is damaged, or "
                "newer than this converter"
            )
        kind = kinds[number]
        return (kind, self.table(name, kind)) if kind != "NONE" else (kind, None)

    def tables(self, name: str) -> list[Table]:
        """A vector of tables."""
        where, kind = self._inner(name), self._fields[name][1].type
        return [Table(self._file, kind, at, f"{where} {i}") for i, at in enumerate(self._targets(name, where))]

    def texts(self, name: str) -> list[str]:
        """A vector of strings. Raises ConvertError when one is not UTF-8."""
        where = self._inner(name)
        return [self._text(at, f"{where} {i}") for i, at in enumerate(self._targets(name, where))]

    def _targets(self, name: str, where: str) -> Iterator[int]:
        """Where the elements of a vector of offsets are."""
        at = self._target(name)
        if at is None:
            return
        count = int(self._file.number("u4", at, where))
        self._file.span(at + 4, 4 * count, where)
        self._file.charge(4 * count, where)
        for place in range(at + 4, at + 4 + 4 * count, 4):
            yield place + int(self._file.number("u4", place, where))

    def _inner(self, name: str) -> str:
        words = name.removesuffix("s").replace("_", " ")
        return words if self.where == self._file.top else f"{self.where}, {words}"
