"""Texts that end an answer: a pure state machine between the detokeniser and whoever reads the answer."""

from __future__ import annotations

from collections.abc import Sequence as Items

from lite_runtime.errors import InputError

__all__ = ["Stops"]

_MOST = 64
"""Stop texts of one answer."""


class Stops:
    """Passes text on until one of `stops` is complete; no part of a stop text is ever passed on.

    However the text is divided, the same text is passed on: up to the stop text that is complete first, and of several
    that are complete at the same character up to the longest. Raises InputError for stops that are not texts.
    """

    def __init__(self, stops: Items[str]) -> None:
        if isinstance(stops, str) or len(stops) > _MOST or not all(isinstance(s, str) and s for s in stops):
            raise InputError(f"stop: expected up to {_MOST} texts that are not empty, got {stops!r}")
        self._stops = tuple(stops)
        self._held = ""

    def feed(self, text: str) -> tuple[str, bool]:
        """The text that may be passed on, and whether a stop text is complete; then feed no more."""
        held = self._held + text
        ends = [(at + len(stop), at) for stop in self._stops if (at := held.find(stop)) >= 0]
        if ends:
            return held[: min(ends)[1]], True
        kept = max((_overlap(held, stop) for stop in self._stops), default=0)
        self._held = held[len(held) - kept :]
        return held[: len(held) - kept], False

    def finish(self) -> str:
        """What was held back because a stop text could have begun, at the end of the text."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """The length of the longest end of `text` with which `stop` begins, but not all of it."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if stop.startswith(text[len(text) - length :]):
            return length
    return 0
