"""Reads a step's words back by the names of its declaration, for reports and tests."""

from __future__ import annotations

import struct
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from lite_runtime.frozen import NamedTuple
from lite_runtime.steps.declaration import FLAGS, HEAD, LENGTH, REAL, Field, Layout, Step, declared

__all__ = ["Place", "Read", "read"]


class Place(NamedTuple):
    """An operand of a written step: its role and its address; base 0 means that it is left out."""

    name: str
    role: str
    base: int
    offset: int


class Read(NamedTuple):
    """A written step. `numbers`: integers, floats, and tails as tuples of integers or of rows (name -> integer)."""

    kernel: str
    flags: int
    operands: tuple[Place, ...]
    numbers: Mapping[str, Any]


def read(kernel: str, record: Sequence[int]) -> Read:
    """The words of one record; `kernel` is "family.name". Raises KeyError for a kernel without a declaration,
    ValueError for a record whose length differs from its declaration."""
    owner = declared(kernel)
    layout = owner.layout
    if len(record) != int(record[LENGTH]):
        raise ValueError(f"{kernel}: expected the {int(record[LENGTH])} words that the record says, got {len(record)}")
    operands = _operands(layout, record)
    start = 0 if layout.fixed else HEAD + 2 * len(operands)
    numbers: dict[str, Any] = {}
    tails = [field for field in layout.numbers if field.length == 0]
    for field in layout.numbers:
        if field not in tails:
            numbers[field.name] = _number(field, record, start if field.word >= 0 else len(record))
    at = start + tails[0].word if tails else len(record)
    for field in tails:
        found = _Tail(owner, field, numbers).read(record[at:])
        numbers[field.name] = found.rows
        at += found.length
    behind = sum(field.word < 0 for field in layout.numbers)
    last = layout.numbers[-1]
    end = at + behind if tails else last.word + last.length
    if end != len(record):
        raise ValueError(f"{kernel}: expected a record of {end} words, got {len(record)}")
    in_order = {name: numbers[name] for name in layout.by_name if name in numbers}
    return Read(kernel, int(record[FLAGS]), operands, in_order)


def _operands(layout: Layout, record: Sequence[int]) -> tuple[Place, ...]:
    fields = list(layout.operands)
    if not layout.fixed:  # as many as give the number of operands in the record's last word
        many = next(i for i, field in enumerate(fields) if field.length == 0)
        fields[many : many + 1] = [fields[many]] * (int(record[-1]) - len(fields) + 1)
    words = [(int(record[HEAD + 2 * i]), int(record[HEAD + 2 * i + 1])) for i in range(len(fields))]
    return tuple(Place(field.name, field.role, *pair) for field, pair in zip(fields, words, strict=True))


def _number(field: Field, record: Sequence[int], start: int) -> int | float | tuple[int, ...]:
    words = [int(word) for word in record[start + field.word :][: field.length]]
    if field.kind == REAL:
        value: float = struct.unpack("<f", struct.pack("<I", words[0]))[0]
        return value
    return words[0] if field.length == 1 else tuple(words)


class _Rows(NamedTuple):
    rows: tuple[Any, ...]
    length: int


class _Tail:
    """How a tail's words are divided into rows: by the type in its annotation and the integers that count."""

    def __init__(self, owner: type[Step], field: Field, numbers: Mapping[str, Any]) -> None:
        counts = owner.layout.counts
        self._count = int(numbers[counts[field.name]])
        kind = getattr(sys.modules[owner.__module__], field.row, None)
        self._names: tuple[str, ...] = kind.names() if kind is not None else ()
        self._inner = {name: int(numbers[counts[name]]) for name in self._names if name in counts}

    def read(self, words: Sequence[int]) -> _Rows:
        """The rows at the start of these words."""
        rows, at = [], 0
        for _ in range(self._count):
            row: dict[str, Any] = {}
            for name in self._names or ("",):
                size = self._inner.get(name, 1)
                some = [int(word) for word in words[at : at + size]]
                row[name] = tuple(some) if name in self._inner else some[0]
                at += size
            rows.append(row if self._names else row[""])
        return _Rows(tuple(rows), at)
