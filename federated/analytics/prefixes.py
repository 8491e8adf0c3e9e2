"""Frequent words, letter by letter: the devices are asked which bytes follow the prefixes that were frequent so far.

Zhu, Kairouz, McMahan, Sun, Li, "Federated Heavy Hitters Discovery with Differential Privacy", AISTATS 2020: a trie
grows by one letter in each round, from votes that reach a threshold. There, privacy comes from drawing few voters; here
all devices vote and the counts have Gaussian noise, so that secure sums and the accountant serve for it as for all
other questions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from math import inf
from statistics import NormalDist
from typing import Annotated, NamedTuple

import numpy as np
from msgspec import Meta

from federated.analytics.base import READ, Feature
from federated.errors import FederatedError
from federated.learner import Batch
from federated.tree import Array

__all__ = ["MOST_PREFIXES", "Found", "Prefixes", "search", "threshold_for"]

NEXT = 257
"""The bytes that may follow a prefix, and the end of the word."""
MOST_PREFIXES = 1000
WRONG, MISSED = 0.05, 0.05
"""The number of wrong prefixes that a threshold lets pass on average; how often a word is missed at `found_from`."""


class Prefixes(Feature, frozen=True):
    """For each prefix (bytes of UTF-8 in hexadecimal digits, all of one length), how much weight has words that go on
    with each byte, or end there. Words are cut after `longest` bytes; whole numbers are written in decimal digits."""

    prefixes: Annotated[tuple[str, ...], Meta(max_length=MOST_PREFIXES)] = ("",)
    longest: Annotated[int, Meta(ge=1, le=64)] = 12

    def __post_init__(self) -> None:
        super().__post_init__()
        found = self.prefixes
        fits = bool(found) and all(len(one) == len(found[0]) for one in found)
        fits = fits and all(one < other for one, other in pairwise(found))
        fits = fits and all(set(one) <= set("0123456789abcdef") for one in found) and len(found[0]) % 2 == 0
        READ.need(fits and len(found[0]) < 2 * self.longest, "analytics.prefixes", "sorted prefixes of one length",
                  found)  # fmt: skip

    @property
    def size(self) -> int:
        """A number for every prefix and what may follow it."""
        return len(self.prefixes) * NEXT

    @property
    def bound(self) -> float:
        """Every word counts in one place at most."""
        return self.whole if self.limited else inf

    @property
    def largest(self) -> float:
        """All words the same."""
        return self.whole

    def of(self, data: Batch, arrays: Mapping[str, Array], rng: np.random.Generator) -> Array:
        """[prefix, what follows], flat."""
        values, weights = self.values(data, rng)
        if values.dtype.kind not in "Uiu":
            raise FederatedError(f"analytics.feature: expected texts or whole numbers in {self.feature!r}, got "
                                 f"{values.dtype}")  # fmt: skip
        places = {bytes.fromhex(one): at * NEXT for at, one in enumerate(self.prefixes)}
        known = len(self.prefixes[0]) // 2
        found = np.zeros(self.size)
        for value, weight in zip(values.tolist(), weights.tolist(), strict=True):
            word = str(value).encode("utf-8", "replace")[: self.longest]
            place = places.get(word[:known])
            if place is not None and len(word) >= known:
                found[place + (word[known] if len(word) > known else NEXT - 1)] += weight
        return found.clip(0, self.whole)


class Found(NamedTuple):
    """A frequent word, as much of it as was asked for, and its weight. `cut`: longer words may begin with it."""

    word: str
    weight: float
    cut: bool


def threshold_for(deviation: float, longest: int, least: float) -> float:
    """The weight from which a prefix counts as frequent: `least`, and so much that noise alone reaches it about WRONG
    times in all rounds with a hundred prefixes."""
    if not deviation:
        return least
    return max(least, deviation * NormalDist().inv_cdf(1 - WRONG / (100 * NEXT * longest)))


def search(
    question: Prefixes, ask: Callable[[Prefixes], tuple[Array, float]], least: float
) -> tuple[list[Found], float, float]:
    """The frequent words, most frequent first; the threshold; the weight from which words are found with 95 %.

    `ask` returns the sum of the answers and the standard deviation of its noise. Of more than MOST_PREFIXES prefixes
    the most frequent ones are followed.
    """
    words: list[Found] = []
    prefixes: tuple[str, ...] = ("",)
    limit = from_ = least
    for length in range(question.longest):
        total, deviation = ask(_with(question, prefixes))
        limit = threshold_for(deviation, question.longest, least)
        from_ = limit + deviation * NormalDist().inv_cdf(1 - MISSED / question.longest)
        rows = total.reshape(len(prefixes), NEXT)
        grown: list[tuple[float, str]] = []
        for prefix, row in zip(prefixes, rows, strict=True):
            for what in np.flatnonzero(row >= limit).tolist():
                longer = prefix if what == NEXT - 1 else f"{prefix}{what:02x}"
                if what == NEXT - 1 or length + 1 == question.longest:
                    words.append(Found(_text(longer), float(row[what]), what != NEXT - 1))
                else:
                    grown.append((float(row[what]), longer))
        prefixes = tuple(sorted(name for _, name in sorted(grown, reverse=True)[:MOST_PREFIXES]))
        if not prefixes:
            break
    return sorted(words, key=lambda found: (-found.weight, found.word)), limit, from_


def _with(question: Prefixes, prefixes: tuple[str, ...]) -> Prefixes:
    kept = {key: getattr(question, key) for key in Feature.__struct_fields__}
    return Prefixes(**kept, longest=question.longest, prefixes=prefixes)


def _text(prefix: str) -> str:
    return bytes.fromhex(prefix).decode("utf-8", "backslashreplace")
