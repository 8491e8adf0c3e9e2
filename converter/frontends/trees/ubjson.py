"""Universal Binary JSON (ubjson.org, draft 12) as Python values: what XGBoost writes to `.ubj` files.

Typed arrays become NumPy arrays, all else becomes lists, dictionaries, texts and numbers.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from converter.errors import ConvertError

__all__ = ["parse"]

_NUMBERS = {mark: np.dtype(kind) for mark, kind in zip(b"iUIlLdD", (">i1", ">u1", ">i2", ">i4", ">i8", ">f4", ">f8"),
                                                      strict=True)}  # fmt: skip
_WORDS = {ord("Z"): None, ord("T"): True, ord("F"): False}
_DEEPEST = 64
_SIZES = b"iUIlL"


def parse(data: bytes) -> Any:
    """The value in `data`. Raises ConvertError for anything else."""
    reader = _Reader(data)
    value = reader.value(reader.mark(), 0)
    if reader.at != len(data):
        raise ConvertError(f"UBJSON: expected the end at byte {reader.at}, got {len(data) - reader.at} more")
    return value


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def take(self, count: int) -> bytes:
        if count < 0 or count > len(self.data) - self.at:
            raise ConvertError(f"UBJSON: expected {count} bytes at byte {self.at}, got the end; the file is truncated")
        self.at += count
        return self.data[self.at - count : self.at]

    def mark(self) -> int:
        """The next mark; N means nothing."""
        while (mark := self.take(1)[0]) == ord("N"):
            pass
        return mark

    def number(self, mark: int) -> int | float:
        kind = _NUMBERS[mark]
        found = np.frombuffer(self.take(kind.itemsize), kind)[0].item()
        assert isinstance(found, int | float)
        return found

    def size(self) -> int:
        mark = self.mark()
        if mark not in _SIZES:
            raise ConvertError(f"UBJSON: expected a size at byte {self.at - 1}, got {chr(mark)!r}")
        return int(self.number(mark))

    def text(self) -> str:
        try:
            return self.take(self.size()).decode()
        except UnicodeDecodeError:
            raise ConvertError(f"UBJSON: expected UTF-8 text before byte {self.at}") from None

    def value(self, mark: int, depth: int) -> Any:
        if depth > _DEEPEST:
            raise ConvertError(f"UBJSON: expected at most {_DEEPEST} levels")
        if mark in _NUMBERS:
            return self.number(mark)
        if mark in _WORDS:
            return _WORDS[mark]
        if mark in b"SH":
            return self.text()
        if mark == ord("C"):
            return chr(self.take(1)[0])
        if mark == ord("["):
            return self.array(depth + 1)
        if mark == ord("{"):
            return self.object(depth + 1)
        raise ConvertError(f"UBJSON: expected a value at byte {self.at - 1}, got {chr(mark)!r}")

    def counted(self) -> tuple[int | None, int | None]:
        """(the mark that all elements have, their number), where the container says so."""
        kind = None
        if self.data[self.at : self.at + 1] == b"$":
            self.at += 1
            kind = self.take(1)[0]
        if self.data[self.at : self.at + 1] != b"#":
            if kind is not None:
                raise ConvertError(f"UBJSON: expected a number of elements at byte {self.at}")
            return None, None
        self.at += 1
        return kind, self.size()

    def array(self, depth: int) -> Any:
        kind, count = self.counted()
        if kind in _NUMBERS and count is not None:
            dtype = _NUMBERS[kind]
            return np.frombuffer(self.take(count * dtype.itemsize), dtype).astype(dtype.newbyteorder("="))
        found: list[Any] = []
        while len(found) != count if count is not None else self.more(b"]"):
            # Elements without content would take no bytes, and a count of any size.
            if kind is not None and kind in _WORDS:
                raise ConvertError(f"UBJSON: expected an array of numbers, texts or containers at byte {self.at}")
            found.append(self.value(self.mark() if kind is None else kind, depth))
        return found

    def object(self, depth: int) -> dict[str, Any]:
        kind, count = self.counted()
        found: dict[str, Any] = {}
        done = 0
        while done != count if count is not None else self.more(b"}"):
            key = self.text()
            found[key] = self.value(self.mark() if kind is None else kind, depth)
            done += 1
        return found

    def more(self, end: bytes) -> bool:
        """Whether a container without a count goes on; its end is taken."""
        if self.data[self.at : self.at + 1] == end:
            self.at += 1
            return False
        return True
