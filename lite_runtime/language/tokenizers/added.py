"""Added tokens: found in the text before anything else, the longest at the leftmost place."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator

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
        self._texts = sorted(self._tokens)
        self._longest = max(map(len, self._texts), default=0)
        self._shorter: list[int] = []
        """By token, the longest other one that it begins with; -1: none."""
        chain: list[int] = []
        for i, text in enumerate(self._texts):
            while chain and not text.startswith(self._texts[chain[-1]]):
                chain.pop()
            self._shorter.append(chain[-1] if chain else -1)
            chain.append(i)
        firsts = {text[0] for text in self._texts}
        self._first = re.compile(f"[{''.join(map(re.escape, sorted(firsts)))}]") if firsts else None

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
            end = max(end, at) if token.rstrip else end  # spaces that the token before took are not counted again
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
        at = 0
        while self._first is not None and (match := self._first.search(text, at)) is not None:
            found = self._at(text, match.start())
            at = match.start() + max(len(found), 1)
            if found:
                yield match.start(), at, self._tokens[found]

    def _at(self, text: str, at: int) -> str:
        """The longest token that begins at a place, "" if none does: the last one in order that may, or one that this
        one begins with."""
        i = bisect_right(self._texts, text[at : at + self._longest]) - 1
        while i >= 0 and not text.startswith(self._texts[i], at):
            i = self._shorter[i]
        return self._texts[i] if i >= 0 else ""

    def broken(self, text: str, mark: str) -> str:
        """The text with a mark behind the first character of each token in it, also of those that overlap: no token is
        found in it any more."""
        parts, done = [], 0
        for match in self._first.finditer(text) if self._first is not None else ():
            if self._at(text, match.start()):
                parts.append(text[done : match.end()])
                done = match.end()
        return mark.join([*parts, text[done:]])


def _is_word(text: str, start: int, end: int) -> bool:
    """Whether no character of a word stands beside text[start:end]."""
    words = set_of("words")
    return not (start and text[start - 1] in words) and not (end < len(text) and text[end] in words)
