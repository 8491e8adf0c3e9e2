"""A vocabulary in little memory: tokens as slices of one string of bytes, and tables that find a token or a pair.

Tuples and dictionaries of 49,152 tokens take 7 MB, these 1.2.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, overload

import numpy as np

__all__ = ["Index", "Tokens", "pairs_of"]

_WORD = (1 << 64) - 1


class Tokens(Sequence[bytes]):
    """The bytes of each id.

    text: those of all tokens, joined. lengths: of each, whole numbers [n], whose sum is the length of text.
    """

    def __init__(self, text: bytes, lengths: Any) -> None:
        ends = np.zeros(len(lengths) + 1, np.int32 if len(text) < 1 << 31 else np.int64)
        np.cumsum(lengths, out=ends[1:])
        self.text = text
        self._ends = ends.data

    def __len__(self) -> int:
        return len(self._ends) - 1

    @overload
    def __getitem__(self, at: int) -> bytes: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[bytes]: ...
    def __getitem__(self, at: int | slice) -> bytes | Sequence[bytes]:
        if isinstance(at, slice):
            return tuple(self[i] for i in range(*at.indices(len(self))))
        if not 0 <= at < len(self):
            raise IndexError(f"expected a place below {len(self)}, got {at}")
        return self.text[self._ends[at] : self._ends[at + 1]]

    def __iter__(self) -> Iterator[bytes]:
        text, start = self.text, 0
        for end in self._ends[1:]:
            yield text[start:end]
            start = end

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Tokens):
            return self.text == other.text and self._ends == other._ends
        return tuple(self) == other

    __hash__ = None  # type: ignore[assignment]


class Index:
    """The ids of some tokens by their bytes. Python's hash of bytes has a key of each process, so a file cannot be
    made whose tokens all have the same."""

    def __init__(self, tokens: Sequence[bytes], ids: Any) -> None:
        """ids: int [n], of tokens that differ."""
        self._tokens = tokens
        hashes = np.fromiter((hash(tokens[i]) for i in ids.tolist()), np.int64, len(ids))
        self._slots = _slots(hashes, ids)
        self._last = len(self._slots) - 1

    def get(self, token: bytes) -> int | None:
        """The id of a token, None if there is none."""
        slots, last, tokens = self._slots, self._last, self._tokens
        at = hash(token) & last
        while (found := slots[at]) >= 0:
            if tokens[found] == token:
                return found
            at = at + 1 & last
        return None


def pairs_of(rows: Any) -> Callable[[int, int], int]:
    """Finds the row of a pair, -1 if there is none; of equal pairs the last row counts.

    rows: int32 [n, 3], of which the first two numbers are the pair. Its hash is a sum of products with random numbers.
    """
    rows = np.ascontiguousarray(rows, np.int32)
    keys = rows[:, 0].astype(np.int64) << 32 | rows[:, 1]
    places = len(keys) - 1 - np.unique(keys[::-1], return_index=True)[1]
    one, other = (int.from_bytes(os.urandom(8), "little") | 1 for _ in range(2))
    shift = 64 - max(1, (2 * len(places)).bit_length())
    wide = rows[places, :2].astype(np.uint64)
    hashes = (wide[:, 0] * np.uint64(one) + wide[:, 1] * np.uint64(other)) >> np.uint64(shift)
    slots, flat = _slots(hashes.astype(np.int64), places), rows.reshape(-1).data
    last = len(slots) - 1

    def row(left: int, right: int) -> int:
        at = (left * one + right * other & _WORD) >> shift
        while (found := slots[at]) >= 0:
            if flat[3 * found] == left and flat[3 * found + 1] == right:
                return found
            at = at + 1 & last
        return -1

    return row


def _slots(hashes: Any, values: Any) -> memoryview:
    """A table with open addressing: each value at the first free place from its hash on, -1 elsewhere. A power of two
    places, of which at most half are taken."""
    last = (1 << max(1, (2 * len(hashes)).bit_length())) - 1
    slots = np.full(last + 1, -1, np.int32)
    at = hashes & last
    while len(at):
        free = np.flatnonzero(slots[at] < 0)
        _, first = np.unique(at[free], return_index=True)
        placed = free[first]
        slots[at[placed]] = values[placed]
        waiting = np.ones(len(at), bool)
        waiting[placed] = False
        at, values = at[waiting] + 1 & last, values[waiting]
    return slots.data
