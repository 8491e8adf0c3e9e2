"""Added tokens: found in the text before anything else, the longest at the leftmost place."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from lite_runtime.language.tokenizers.characters import set_of
from lite_runtime.language.tokenizers.description import AddedToken
from lite_runtime.language.tokenizers.patterns import SPACES

__all__ = ["Finder"]


class Finder:
    """Cuts texts at added tokens.

    tokens: each with the text that is looked for.
    """

    def __init__(self, tokens: Iterable[tuple[str, AddedToken]]) -> None:
        self._tokens = {text: token for text, token in tokens if text}
        self._lengths: dict[str, Sequence[int]] = {}
        for text in self._tokens:
            self._lengths[text[0]] = sorted({len(text), *self._lengths.get(text[0], ())}, reverse=True)
        self._first = re.compile(f"[{''.join(map(re.escape, self._lengths))}]") if self._tokens else None

    def parts(self, text: str, special: bool) -> list[str | AddedToken]:
        """The text between tokens, and the tokens; without `special`, special tokens are text."""
        if self._first is None or not text:
            return [text]
        found: list[str | AddedToken] = []
        at = 0
        for start, end, token in self._matches(text):
            if (token.special and not special) or (token.single_word and not _is_word(text, start, end)):
                continue
            while token.lstrip and start > at and text[start - 1] in SPACES:
                start -= 1
            while token.rstrip and end < len(text) and text[end] in SPACES:
                end += 1
            if (start := max(start, at)) > at:
                found.append(text[at:start])
            found.append(token)
            at = max(at, end)
        if at < len(text):
            found.append(text[at:])
        return found

    def _matches(self, text: str) -> Iterator[tuple[int, int, AddedToken]]:
        assert self._first is not None
        at = 0
        while (match := self._first.search(text, at)) is not None:
            at = match.start()
            for length in self._lengths[match[0]]:
                token = self._tokens.get(text[at : at + length])
                if token is not None:
                    yield at, at + length, token
                    at += length
                    break
            else:
                at += 1


def _is_word(text: str, start: int, end: int) -> bool:
    """Whether no character of a word stands beside text[start:end]."""
    words = set_of("words")
    return not (start and text[start - 1] in words) and not (end < len(text) and text[end] in words)
