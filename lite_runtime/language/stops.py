"""Texts that end an answer: a pure state machine between the detokeniser and whoever reads the answer."""

from __future__ import annotations

from collections.abc import Sequence as Items

from lite_runtime.errors import InputError

__all__ = ["Stops"]

_MOST, _LONGEST = 64, 1024
"""Stop texts of one answer, and characters of one."""


class Stops:
    """Passes text on until one of `stops` is complete; no part of a stop text is ever passed on.

    However the text is divided, the same text is passed on: up to the stop text that is complete first, and of several
    that are complete at the same character up to the longest. Raises InputError for stops that are not texts.
    """

    def __init__(self, stops: Items[str]) -> None:
        right = not isinstance(stops, str) and len(stops) <= _MOST
        if not right or not all(isinstance(s, str) and 0 < len(s) <= _LONGEST for s in stops):
            text = f"stop: expected up to {_MOST} texts of 1 to {_LONGEST} characters that are not empty"
            raise InputError(f"{text}, got {len(stops)}: {str(stops[:1])[:80]}")
        self._searches = [_Search(stop) for stop in stops]
        self._firsts = frozenset(stop[0] for stop in stops)
        self._held = ""

    def feed(self, text: str) -> tuple[str, bool]:
        """The text that may be passed on, and whether a stop text is complete; then feed no more."""
        if not self._held and self._firsts.isdisjoint(text):
            return text, False
        held = self._held + text
        for end in range(len(self._held) + 1, len(held) + 1):
            complete = [len(one.stop) for one in self._searches if one.follow(held[end - 1])]
            if complete:
                return held[: end - max(complete)], True
        kept = max(one.length for one in self._searches)
        self._held = held[len(held) - kept :]
        return held[: len(held) - kept], False

    def finish(self) -> str:
        """What was held back because a stop text could have begun, at the end of the text."""
        held, self._held = self._held, ""
        return held


class _Search:
    """A stop text, and how much of its beginning the text so far ends with: a few steps a character, however long the
    stop is (Knuth, Morris and Pratt 1977)."""

    def __init__(self, stop: str) -> None:
        self.stop, self.length, self._shorter = stop, 0, [0]
        for character in stop[1:]:
            self.follow(character)
            self._shorter.append(self.length)
        self.length = 0

    def follow(self, character: str) -> bool:
        """A character of the text; whether the stop text is complete with it. Then call it no more."""
        while self.length and self.stop[self.length] != character:
            self.length = self._shorter[self.length - 1]
        self.length += self.stop[self.length] == character
        return self.length == len(self.stop)
