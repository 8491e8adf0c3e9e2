"""What characters are: categories, and the sets that normalisers and pre-tokenisers ask for.

The tables are those of the library `tokenizers`, Unicode 16 for patterns and older versions elsewhere, so that tokens
do not depend on the Unicode version of the Python in use.
"""

from __future__ import annotations

import re
from base64 import b85decode
from bisect import bisect_right
from collections.abc import Iterator
from functools import cache
from itertools import accumulate
from zlib import decompress

from lite_runtime.language.tokenizers._tables import TABLES

__all__ = ["CATEGORIES", "WORD", "Characters", "category", "cell", "class_of", "lower_case", "ranges", "set_of"]

CATEGORIES = "Cn Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Co".split()
WORD = 32
"""Added to a cell whose characters are part of words (a regular expression's \\w)."""


def _numbers(name: str) -> Iterator[int]:
    """A table's varints."""
    value = shift = 0
    for byte in decompress(b85decode(TABLES[name])):
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            yield value
            value = shift = 0


@cache
def _cells() -> tuple[list[int], list[int]]:
    """First characters of runs, and the cells of the runs."""
    numbers = list(_numbers("cells"))
    return list(accumulate(numbers[:-2:2], initial=0)), numbers[1::2]


def cell(character: str) -> int:
    """The cell of a character: the place of its category in `CATEGORIES`, plus `WORD` for a character of words."""
    starts, cells = _cells()
    return cells[bisect_right(starts, ord(character)) - 1]


def category(character: str) -> str:
    """The general category of a character, such as "Lu"."""
    return CATEGORIES[cell(character) % WORD]


@cache
def ranges(name: str) -> tuple[int, ...]:
    """The borders of a set's ranges: first character, first after it, and so on."""
    return tuple(accumulate(_numbers(name)))


@cache
def class_of(name: str) -> re.Pattern[str]:
    """A set of `set_of` as a regular expression: one character of it."""
    borders = ranges(name)
    pairs = zip(borders[::2], borders[1::2], strict=True)
    return re.compile("[" + "".join(f"\\U{start:08x}-\\U{end - 1:08x}" for start, end in pairs) + "]")


class Characters:
    """A set of characters."""

    def __init__(self, name: str) -> None:
        self._borders = ranges(name)

    def __contains__(self, character: str) -> bool:
        return bool(bisect_right(self._borders, ord(character)) % 2)


@cache
def set_of(name: str) -> Characters:
    """One of the sets `numeric`, `punctuation`, `marks`, `bert_marks`, `bert_removed`, `bert_spaces`, `chinese`,
    `nmt_removed`, `nmt_spaces`, `words`, `extends` and `prepended` (to and before other characters of a grapheme) and
    `inert` (characters without decomposition or combining class)."""
    return Characters(name)


@cache
def lower_case() -> dict[int, int]:
    """Letters whose lower case is newer than Unicode 14."""
    numbers = list(_numbers("lower"))
    return dict(zip(numbers[::2], numbers[1::2], strict=True))
