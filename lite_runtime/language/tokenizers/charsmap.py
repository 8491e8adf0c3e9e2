"""SentencePiece's precompiled table of a normaliser: which characters become which.

    size of the trie in bytes (uint32), the trie, replacements as UTF-8, each with a zero byte after it

It is a double array of 32-bit units (Yata's darts-clone): the child of unit u for a byte b is at u ^ offset(u) ^ b
if that unit's label is b; a unit with a value has its child of label zero. Bits of a unit: 0 to 7 the label, 8 a value
follows, 9 the offset is times 256, 10 to 30 the offset, 31 this is a value. Indices are checked: nothing outside the
table is read, whatever it holds.

SentencePiece replaces the longest match at every place. The library `tokenizers` takes the shortest match of a whole
grapheme of less than six bytes, and of single characters otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from lite_runtime.bundle.refusal import refuse
from lite_runtime.language.tokenizers.characters import category, set_of
from lite_runtime.language.tokenizers.description import SECTION

__all__ = ["CharsMap"]

_GRAPHEME = 6
"""Bytes from which a grapheme is seen character by character."""
_REMEMBERED = 1 << 14
_LONGEST = 256
"""Bytes of a key and of a replacement: the longest of Unicode's have 18 and 33."""


class CharsMap:
    """The normaliser of a table.

    longest: match as SentencePiece does, and not as `tokenizers`. Raises BundleError for a table that is none; so does
    `normalized` where a table turns out to be damaged.
    """

    def __init__(self, table: bytes, longest: bool) -> None:
        size = int.from_bytes(table[:4], "little")
        if len(table) < 4 or size % 4 or not size or 4 + size > len(table):
            refuse(f"{SECTION}, charsmap", "a trie of 32-bit units within the table", f"{size} of {len(table)} bytes")
        self._units: list[int] = np.frombuffer(table, "<u4", size // 4, 4).tolist()
        self._texts = table[4 + size :]
        self._longest = longest
        self._known: dict[str, str | None] = {}

    def normalized(self, text: str, most: int) -> str:
        """The text with everything replaced that the table replaces; no more than about `most` characters of it."""
        parts, size = list[str](), 0
        for part in self._by_longest(text) if self._longest else self._by_grapheme(text):
            parts.append(part)
            size += len(part)
            if size > most:
                break
        return "".join(parts)

    def _by_longest(self, text: str) -> Iterator[str]:
        data, at = text.encode("utf-8"), 0
        while at < len(data):
            matches = list(self._matches(data, at))
            if matches:
                at, value = matches[-1]
                yield self._text(value)
            else:
                yield data[at : (at := at + _width(data[at]))].decode("utf-8", "replace")

    def _by_grapheme(self, text: str) -> Iterator[str]:
        known = self._known
        for grapheme in graphemes(text):
            if len(grapheme) > 1:
                found = self._shortest(grapheme) if len(grapheme.encode("utf-8")) < _GRAPHEME else None
                if found is not None:
                    yield found
                    continue
            for c in grapheme:
                if c not in known:
                    if len(known) >= _REMEMBERED:
                        known.clear()
                    known[c] = self._shortest(c)
                found = known[c]
                yield c if found is None else found

    def _shortest(self, text: str) -> str | None:
        for _, value in self._matches(text.encode("utf-8"), 0):
            return self._text(value)
        return None

    def _matches(self, data: bytes, at: int) -> Iterator[tuple[int, int]]:
        """Ends and values of the table's keys that begin at a place, the shortest first."""
        units = self._units
        place = _offset(units[0])
        for end in range(at, min(len(data), at + _LONGEST)):
            byte = data[end]
            place ^= byte
            if place >= len(units) or units[place] & 0x800000FF != byte or not byte:
                return
            unit = units[place]
            place ^= _offset(unit)
            if unit >> 8 & 1:
                if place >= len(units):
                    return
                yield end + 1, units[place] & 0x7FFFFFFF

    def _text(self, value: int) -> str:
        end = self._texts.find(b"\0", value, value + _LONGEST)
        if end < 0:
            refuse(f"{SECTION}, charsmap", f"a replacement of less than {_LONGEST} bytes", f"none at {value}")
        return self._texts[value:end].decode("utf-8", "replace")


def _offset(unit: int) -> int:
    return unit >> 10 << ((unit & 1 << 9) >> 6)


def _width(byte: int) -> int:
    """Bytes of the character that begins with a byte."""
    return 1 if byte < 0xC0 else 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4


def graphemes(text: str) -> Iterator[str]:
    """A text in clusters of characters that are seen as one, as far as a cluster of less than six bytes can be: a
    character with what extends it, a carriage return and line feed, and what is put before a character."""
    at = 0
    if text.isascii():
        for match in _ASCII.finditer(text):
            yield match[0]
        return
    extends, before, size = set_of("extends"), set_of("prepended"), len(text)
    while at < size:
        start = at
        while text[at] in before and at + 1 < size and not _is_control(text[at + 1]) and text[at + 1] not in extends:
            at += 1
        control = _is_control(text[at])
        at += 2 if text[at : at + 2] == "\r\n" else 1
        while not control and at < size and text[at] in extends:
            at += 1
        yield text[start:at]


_ASCII = re.compile(r"\r\n|.", re.DOTALL)


def _is_control(c: str) -> bool:
    """Whether nothing extends a character."""
    return c not in set_of("extends") and category(c) in ("Cc", "Cf", "Zl", "Zp") and c not in set_of("prepended")
