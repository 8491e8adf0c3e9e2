"""Token ids as words and back, for models whose bundle may have no tokenizer: from it, a tokenizer.json, or a list."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from lite_runtime import bundle
from lite_runtime.errors import ExplainError, InputError
from lite_runtime.language.tokenizers import SECTION, Tokenizer

__all__ = ["Words", "words_of"]

_LONGEST = 1 << 24
"""Of a list of tokens, in bytes."""
_UNKNOWN = ("[UNK]", "<unk>", "<UNK>")
_SHOWN = {"\n": "⏎", "\t": "⇥", " ": "␣"}
"""Tokens that are nothing but one of these."""


class Words:
    """The words of ids: of a tokenizer, or of a list."""

    def __init__(self, source: Tokenizer | Sequence[str]) -> None:
        self._tokenizer = source if isinstance(source, Tokenizer) else None
        self._listed = () if isinstance(source, Tokenizer) else tuple(source)

    def word(self, number: int) -> str:
        """The text of an id; its number if it has none."""
        if self._tokenizer is None:
            found = self._listed[number] if 0 <= number < len(self._listed) else ""
        else:
            try:
                found = self._tokenizer.id_to_bytes(number).decode("utf-8", "replace")
            except InputError:
                found = ""
        return _SHOWN.get(found, found) or str(number)

    def ids(self, text: str) -> list[int]:
        """The ids of a text: by the tokenizer, its first and last tokens included, or, of a list, of what is between
        spaces; of each character if the list has single ones alone. Raises ExplainError for a word that is not in the
        list, if that has no token for unknown words."""
        if self._tokenizer is not None:
            return self._tokenizer.encode(text)
        known = {word: number for number, word in reversed(list(enumerate(self._listed)))}
        other = next((known[word] for word in _UNKNOWN if word in known), None)
        found = []
        for word in text if all(len(word) <= 1 for word in self._listed) else text.split():
            number = known.get(word, known.get(word.lower(), other))
            if number is None:
                raise ExplainError(f"--text: expected words of the list of tokens, got {word!r}")
            found.append(number)
        return found


def words_of(model: Path, tokenizer: Path | None) -> Words | None:
    """The words of a model's tokens; None if nothing says them. Raises ExplainError for a file that is neither a
    tokenizer nor a list of tokens."""
    if tokenizer is not None:
        return Words(_json(tokenizer) if tokenizer.suffix == ".json" else _lines(tokenizer))
    if model.suffix != ".mslite":
        return None
    try:
        data = bundle.read(model).section(SECTION)
    except KeyError:
        return None
    return Words(Tokenizer.from_bytes(data))


def _json(path: Path) -> Tokenizer:
    from converter.frontends.language import from_tokenizer_json

    return Tokenizer(from_tokenizer_json(path))


def _lines(path: Path) -> list[str]:
    try:
        size = os.path.getsize(path)
        text = path.read_text(encoding="utf-8") if size <= _LONGEST else ""
    except (OSError, UnicodeDecodeError) as error:
        raise ExplainError(f"{path}: expected tokens, one a line, in UTF-8: {error}") from None
    if size > _LONGEST:
        raise ExplainError(f"{path}: expected a list of tokens of {_LONGEST} bytes at most, got {size}")
    return text.splitlines()
