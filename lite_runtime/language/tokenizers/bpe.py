"""Byte pair encoding: the adjacent pair of the lowest rank is merged, the leftmost first, until no pair has a rank.

Sennrich et al., "Neural Machine Translation of Rare Words with Subword Units" (2016). Ranks come from a table of
merges, or, as in SentencePiece, from the score of the piece that a pair makes. Symbols are bytes or characters; a
character that is no token becomes the tokens of its bytes, if there are such, or the unknown token.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from heapq import heapify, heappop, heappush
from itertools import pairwise
from typing import Any

import numpy as np

from lite_runtime.language.tokenizers.components import Field, settings
from lite_runtime.language.tokenizers.description import NORMAL, SECTION, Description, byte_tokens, unknown_of
from lite_runtime.language.tokenizers.vocabulary import Index, pairs_of

__all__ = ["Bpe"]

_NEVER = 1 << 62
_SHORT = 64
"""Symbols up to which a list of ranks is searched again after each merge; a heap is faster for more."""
_PAIRS = 1 << 17
"""Pairs whose rank by score is remembered."""
_FIELDS: Mapping[str, Field] = {
    "units": ("bytes", "characters"),
    "merging": ("pairs", "scores"),
    "byte_fallback": bool,
    "ignore_merges": bool,
    "fuse_unk": bool,
    "unk": int,
}
Rank = Callable[[int, int], int]
"""The rank of a pair of ids, `_NEVER` for a pair that is not merged."""
Join = Callable[[int, int, int], int]
"""The id of a pair that has a rank: by its rank and both ids."""


class Bpe:
    """Words to ids, in time n log n of the length of a word."""

    def __init__(self, description: Description) -> None:
        row = settings(description.model, _FIELDS, f"{SECTION}, model")
        normal = np.flatnonzero(np.frombuffer(description.kinds, np.uint8) == NORMAL)
        self._vocabulary = Index(description.tokens, normal)
        self._in_bytes = row["units"] == "bytes"
        self._ignore_merges: bool = row["ignore_merges"]
        self._fuse: bool = row["fuse_unk"]
        self._unknown = unknown_of(row["unk"], description)
        self._fallback = byte_tokens(description) if row["byte_fallback"] else None
        self._of_byte = [self._vocabulary.get(bytes([byte])) for byte in range(256)]
        self._rank, self._join = (
            _by_table(description.merges)
            if row["merging"] == "pairs"
            else _by_score(description.tokens, self._vocabulary, description.scores)
        )

    def encode(self, word: str) -> list[int]:
        """The ids of a word."""
        data = word.encode("utf-8")
        if self._ignore_merges and (whole := self._vocabulary.get(data)) is not None:
            return [whole]
        ids = self._symbols(word, data)
        if len(ids) < 2:
            return ids
        return (
            _merged(ids, self._rank, self._join) if len(ids) <= _SHORT else _merged_by_heap(ids, self._rank, self._join)
        )

    def _symbols(self, word: str, data: bytes) -> list[int]:
        """The ids of bytes or characters; what is no token is replaced, or left out."""
        found: Sequence[int | None]
        found = (
            [self._of_byte[byte] for byte in data]
            if self._in_bytes
            else [self._vocabulary.get(c.encode()) for c in word]
        )
        if None not in found:
            return list(found)  # type: ignore[arg-type]
        ids: list[int] = []
        after_unknown = False
        for number, unit in zip(found, data if self._in_bytes else word, strict=True):
            unknown = False
            if number is not None:
                ids.append(number)
            elif self._fallback is not None and isinstance(unit, str):
                ids += [self._fallback[byte] for byte in unit.encode()]
            elif self._unknown is not None:
                unknown = True
                if not (after_unknown and self._fuse):
                    ids.append(self._unknown)
            after_unknown = unknown
        return ids


def _by_table(merges: Any) -> tuple[Rank, Join]:
    """Ranks are the rows of the table; of equal pairs the last counts."""
    row = pairs_of(merges)
    results = np.ascontiguousarray(merges, np.int32).reshape(-1).data

    def rank(left: int, right: int) -> int:
        found = row(left, right)
        return _NEVER if found < 0 else found

    def join(found: int, left: int, right: int) -> int:
        return results[3 * found + 2]

    return rank, join


def _by_score(tokens: Sequence[bytes], vocabulary: Index, scores: Any) -> tuple[Rank, Join]:
    """The rank of a pair is the place of its piece's score, the highest first; equal scores have equal ranks."""
    values = np.asarray(scores, np.float64) if len(scores) else np.zeros(len(tokens))
    places = np.unique(-values, return_inverse=True)[1].tolist()
    known: dict[int, int] = {}

    def rank(left: int, right: int) -> int:
        key = left << 32 | right
        found = known.get(key)
        if found is None:
            if len(known) > _PAIRS:
                known.clear()
            result = vocabulary.get(tokens[left] + tokens[right])
            found = known[key] = _NEVER if result is None else places[result]
        return found

    def join(found: int, left: int, right: int) -> int:
        made = vocabulary.get(tokens[left] + tokens[right])
        assert made is not None, "a pair with a rank"
        return made

    return rank, join


def _merged(ids: list[int], rank: Rank, join: Join) -> list[int]:
    """For short words: the ranks of all adjacent pairs in a list."""
    ranks = [rank(left, right) for left, right in pairwise(ids)]
    while ranks and (lowest := min(ranks)) != _NEVER:
        at = ranks.index(lowest)
        ids[at : at + 2] = [join(lowest, ids[at], ids[at + 1])]
        del ranks[at]
        if at:
            ranks[at - 1] = rank(ids[at - 1], ids[at])
        if at < len(ranks):
            ranks[at] = rank(ids[at], ids[at + 1])
    return ids


def _merged_by_heap(ids: list[int], rank: Rank, join: Join) -> list[int]:
    """For long words: pairs in a heap, symbols in a linked list.

    An entry of the heap is (rank, place of the left symbol, left id, right id); it counts if both are still there.
    """
    end = len(ids)
    after, before = list(range(1, end + 1)), list(range(-1, end - 1))
    heap = [
        (found, at, ids[at], ids[at + 1]) for at in range(end - 1) if (found := rank(ids[at], ids[at + 1])) != _NEVER
    ]
    heapify(heap)
    while heap:
        found, at, left, right = heappop(heap)
        other = after[at]
        if ids[at] != left or other == end or ids[other] != right:
            continue
        ids[at], ids[other] = join(found, left, right), -1
        after[at] = following = after[other]
        if following != end:
            before[following] = at
            if (found := rank(ids[at], ids[following])) != _NEVER:
                heappush(heap, (found, at, ids[at], ids[following]))
        if (preceding := before[at]) >= 0 and (found := rank(ids[preceding], ids[at])) != _NEVER:
            heappush(heap, (found, preceding, ids[preceding], ids[at]))
    return [number for number in ids if number >= 0]
