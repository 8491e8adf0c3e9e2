"""WordPiece: the longest token at the beginning of a word, then the longest at the beginning of the rest.

Wu et al., "Google's Neural Machine Translation System" (2016); tokens inside a word begin with a prefix, `##`.
"""

from __future__ import annotations

from collections.abc import Mapping

from lite_runtime.language.tokenizers.components import Field, settings
from lite_runtime.language.tokenizers.description import SECTION, Description, unknown_of, vocabulary_of

__all__ = ["WordPiece"]

_FIELDS: Mapping[str, Field] = {"prefix": str, "longest_word": int, "unk": int}


class WordPiece:
    """Words to ids; a word with a part that is no token, or with too many characters, is the unknown token."""

    def __init__(self, description: Description) -> None:
        row = settings(description.model, _FIELDS, f"{SECTION}, model")
        self._prefix: str = row["prefix"]
        self._longest_word: int = row["longest_word"]
        unknown = unknown_of(row["unk"], description)
        self._unknown = [] if unknown is None else [unknown]
        self._ids = {token.decode("utf-8"): number for token, number in vocabulary_of(description).items()}
        self._longest = max(map(len, self._ids), default=0)

    def encode(self, word: str) -> list[int]:
        """The ids of a word."""
        if len(word) > self._longest_word:
            return list(self._unknown)
        ids: list[int] = []
        start = 0
        while start < len(word):
            prefix = self._prefix if start else ""
            for end in range(min(len(word), start + self._longest), start, -1):
                number = self._ids.get(prefix + word[start:end])
                if number is not None:
                    break
            else:
                return list(self._unknown)
            ids.append(number)
            start = end
        return ids
