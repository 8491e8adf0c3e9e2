"""Unigram language model: the way to cut a word into tokens that has the largest sum of scores (Viterbi).

Kudo, "Subword Regularization" (2018). A character that begins no token costs the lowest score less ten; adjacent ones
are one unknown token, or the tokens of their bytes.
"""

from __future__ import annotations

from collections.abc import Mapping

from lite_runtime.bundle.refusal import refuse
from lite_runtime.language.tokenizers.components import Field, settings
from lite_runtime.language.tokenizers.description import (
    ABSENT,
    SECTION,
    Description,
    byte_tokens,
    unknown_of,
    vocabulary_of,
)

__all__ = ["Unigram"]

_PENALTY = 10.0
_FIELDS: Mapping[str, Field] = {"byte_fallback": bool, "whole_vocabulary": bool, "unk": int}


class Unigram:
    """Words to ids.

    The setting `whole_vocabulary` says that also the unknown token, tokens of bytes and others are found in text, as in
    the library `tokenizers`; SentencePiece does not.
    """

    def __init__(self, description: Description) -> None:
        row = settings(description.model, _FIELDS, f"{SECTION}, model")
        if not len(description.scores):
            refuse(f"{SECTION}, scores", "a number for each token", "none")
        vocabulary = vocabulary_of(description)
        kinds = description.kinds
        if row["whole_vocabulary"]:
            vocabulary = {token: i for i, token in enumerate(description.tokens) if kinds[i] != ABSENT}
        scores = description.scores.tolist()
        self._ids = {token.decode("utf-8"): i for token, i in vocabulary.items()}
        self._scored = {token: (scores[i], i) for token, i in self._ids.items()}
        lengths: dict[str, set[int]] = {}
        for token in self._ids:
            if token:
                lengths.setdefault(token[0], set()).add(len(token))
        self._lengths = {first: tuple(sorted(found)) for first, found in lengths.items()}
        self._fallback = byte_tokens(description) if row["byte_fallback"] else None
        self._unknown = unknown_of(row["unk"], description)
        lowest = min((scores[i] for i in self._ids.values()), default=0.0)
        self._unknown_score = lowest - _PENALTY

    def encode(self, word: str) -> list[int]:
        """The ids of a word."""
        ids: list[int] = []
        unknown_from = -1
        for start, number in self._path(word):
            if number is not None:
                ids += self._outside(word[unknown_from:start]) if unknown_from >= 0 else ()
                unknown_from = -1
                ids.append(number)
            elif unknown_from < 0:
                unknown_from = start
        return ids + self._outside(word[unknown_from:]) if unknown_from >= 0 else ids

    def _outside(self, part: str) -> list[int]:
        """The ids of adjacent unknown characters."""
        if part in self._ids:
            return [self._ids[part]]
        if self._fallback is not None:
            return [self._fallback[byte] for byte in part.encode("utf-8")]
        return [] if self._unknown is None else [self._unknown]

    def _path(self, word: str) -> list[tuple[int, int | None]]:
        """The best cut: start and id of each part, None for an unknown character."""
        size, scored = len(word), self._scored
        best: list[tuple[float, int, int | None] | None] = [None] * (size + 1)
        best[0] = (0.0, 0, None)
        for start, c in enumerate(word):
            before = best[start]
            if before is None:
                continue
            score = before[0]
            alone = False
            for length in self._lengths.get(c, ()):
                end = start + length
                if end > size:
                    break
                found = scored.get(word[start:end])
                if found is None:
                    continue
                alone = alone or length == 1
                total, target = found[0] + score, best[end]
                if target is None or total > target[0]:
                    best[end] = (total, start, None if found[1] == self._unknown else found[1])
            if not alone:
                total, target = self._unknown_score + score, best[start + 1]
                if target is None or total > target[0]:
                    best[start + 1] = (total, start, None)
        parts: list[tuple[int, int | None]] = []
        end = size
        while end:
            row = best[end]
            if row is None:
                break
            parts.append(row[1:])
            end = row[1]
        return parts[::-1]
