"""Parsed JSON of unknown origin, read field by field: what is not as expected is an error that says where."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from cloud.errors import PlanError

__all__ = ["Reading"]

MOST = 1 << 63


class Reading:
    """The value at one place of a file. All methods raise `PlanError`."""

    __slots__ = ("data", "file", "where")

    def __init__(self, data: Any, file: str, where: str = "") -> None:
        self.data, self.file, self.where = data, file, where

    def wrong(self, expected: str) -> PlanError:
        """The error that something else was expected here."""
        got = repr(self.data)
        got = got if len(got) <= 60 else f"{got[:60]}…"
        return PlanError(f"plan {self.file}: {self.where or 'the file'}: expected {expected}; got {got}")

    def at(self, key: str) -> Reading:
        """A field, which must be there."""
        if not isinstance(self.data, dict):
            raise self.wrong("an object")
        if key not in self.data:
            raise self.wrong(f"a field {key!r}")
        return Reading(self.data[key], self.file, f"{self.where}.{key}" if self.where else key)

    def only(self, *keys: str) -> Reading:
        """Itself, with no other fields than these."""
        if not isinstance(self.data, dict) or not {*self.data} <= {*keys}:
            raise self.wrong(f"an object with {', '.join(keys)}")
        return self

    def items(self) -> Iterator[Reading]:
        """Of a list."""
        if not isinstance(self.data, list | tuple):
            raise self.wrong("a list")
        return (Reading(one, self.file, f"{self.where}[{i}]") for i, one in enumerate(self.data))

    def whole(self, least: int = 0, below: int = MOST) -> int:
        """A whole number."""
        if type(self.data) is not int or not least <= self.data < below:
            raise self.wrong(f"a whole number from {least} to below {'2^63' if below == MOST else below}")
        return self.data

    def number(self, most: float = math.inf) -> float:
        """A number of at least 0."""
        if isinstance(self.data, bool) or not isinstance(self.data, int | float) or not 0 <= self.data <= most:
            raise self.wrong("a number of at least 0" + (f" and at most {most:g}" if most < math.inf else ""))
        if not math.isfinite(self.data):
            raise self.wrong("a finite number")
        return float(self.data)

    def text(self) -> str:
        """A text."""
        if not isinstance(self.data, str):
            raise self.wrong("a text")
        return self.data

    def truth(self) -> bool:
        """True or false."""
        if not isinstance(self.data, bool):
            raise self.wrong("true or false")
        return self.data
