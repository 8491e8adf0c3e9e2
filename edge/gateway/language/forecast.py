"""How long runs take, learned from those that were made, and when a new text would be written: pure functions."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from statistics import median
from typing import NamedTuple

from lite_runtime.language.engine import CHUNK

__all__ = ["Load", "Pace", "wait"]

STALL = 0.1
"""Seconds that a run may take while texts are being written: prompts get what that leaves of it."""
LEAST = 16
"""Tokens of prompts that a run computes in any case, so that prompts do not starve."""
RECENT = 15
"""Runs whose median counts: the first run of a size is planned, and takes many times as long."""
ANSWER = 128.0
"""Tokens of an answer, before there was one."""


class Pace:
    """Seconds of runs."""

    def __init__(self) -> None:
        self._tokens: deque[float] = deque(maxlen=RECENT)
        self._runs: deque[float] = deque(maxlen=RECENT)
        self.answer = ANSWER
        """Tokens of an answer, as a moving mean."""

    def ran(self, writing: int, prompts: int, seconds: float) -> None:
        """A run took so long: tokens of texts that are being written, and of prompts."""
        if prompts >= LEAST:
            self._tokens.append(seconds / (writing + prompts))
        elif not prompts:
            self._runs.append(seconds)

    def wrote(self, tokens: int) -> None:
        """An answer had so many tokens."""
        self.answer += (tokens - self.answer) / 16

    @property
    def token(self) -> float:
        """Seconds for a token of a prompt; 0: not known yet."""
        return median(self._tokens) if self._tokens else 0.0

    @property
    def run(self) -> float:
        """Seconds of a run in which texts are only written; 0: not known yet."""
        return median(self._runs) if self._runs else 0.0

    def beside(self) -> int:
        """Tokens of prompts for a run in which texts are being written."""
        if not self.token:
            return LEAST
        return max(LEAST, min(CHUNK, int((STALL - self.run) / self.token)))


class Load(NamedTuple):
    """What is ahead of a new text.

    prompts: tokens that are not in the caches yet, of all texts. pages, places: that are free, and those that texts
    give back when they end, as (tokens until then, pages, places). needs: pages and places of the texts that wait.
    """

    prompts: int
    pages: int
    places: int
    ends: Iterable[tuple[float, int, int]]
    needs: tuple[int, int]


def wait(load: Load, prompt: int, pages: int, places: int, pace: Pace) -> float:
    """Seconds until the first token of a text with such a prompt, which needs so many pages and places.

    Texts that wait are computed in order, so it begins when there is room for those before it too: when enough of the
    running ones have ended. Meanwhile and then prompts are computed.
    """
    free, open_ = load.pages - load.needs[0] - pages, load.places - load.needs[1] - places
    tokens = 0.0
    for end, back, place in sorted(load.ends):
        if free >= 0 and open_ >= 0:
            break
        tokens, free, open_ = end, free + back, open_ + place
    rounds = tokens if free >= 0 and open_ >= 0 else tokens + pace.answer
    return rounds * pace.run + (load.prompts + prompt) * pace.token
