"""Statistics of paired times of two versions: the ratio, its interval, and whether it is within a tolerance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

__all__ = ["Compared", "Start", "Verdict", "compared", "verdict"]

SAMPLES = 2000
"""Resamples of the bootstrap."""
SURE = 0.95

Verdict = Literal["slower", "faster", "within", "undecided"]
Start = Sequence[tuple[float, float]]
"""Seconds (before, after) of the rounds of one pair of processes."""


@dataclass(frozen=True, slots=True)
class Compared:
    """Medians in seconds; `ratio`: the time after divided by the time before, above 1 if it became slower; `low` and
    `high`: the bounds of its 95 % interval."""

    before: float
    after: float
    ratio: float
    low: float
    high: float
    rounds: int


def compared(starts: Sequence[Start], seed: int = 0) -> Compared:
    """The median of the rounds' ratios, with an interval by a bootstrap over starts and, within them, rounds.

    The memory layout of a process does not change while it runs, and it alone changes times by a percent: the rounds of
    one start are not independent, so starts are drawn first (Davison and Hinkley 1997, section 3.8).
    """
    if not starts or not all(starts):
        raise ValueError("expected one round of one start at least, got none")
    ratios = [np.array([after / before for before, after in start]) for start in starts]
    low, high = np.quantile(_medians(ratios, np.random.default_rng(seed)), [(1 - SURE) / 2, (1 + SURE) / 2])
    times = np.array([pair for start in starts for pair in start])
    before, after = np.median(times, axis=0)
    middle = float(np.median(np.concatenate(ratios)))
    return Compared(float(before), float(after), middle, float(low), float(high), len(times))


def _medians(ratios: Sequence[np.ndarray], rng: np.random.Generator) -> np.ndarray:
    """The median of every sample of the bootstrap, all samples at once."""
    lengths = np.array([len(one) for one in ratios])
    longest = lengths.max()
    table = np.array([np.pad(one, (0, longest - len(one))) for one in ratios])
    chosen = rng.integers(0, len(ratios), (SAMPLES, len(ratios)))[..., None]
    rounds = (rng.random((*chosen.shape[:2], longest)) * lengths[chosen]).astype(np.int64)
    drawn = np.where(np.arange(longest) < lengths[chosen], table[chosen, rounds], np.inf)
    drawn = np.sort(drawn.reshape(SAMPLES, -1), axis=1)  # of starts with fewer rounds, what is missing comes last
    count = lengths[chosen].sum(axis=(1, 2))
    rows = np.arange(SAMPLES)
    return np.asarray((drawn[rows, (count - 1) // 2] + drawn[rows, count // 2]) / 2)


def verdict(found: Compared, tolerance: float) -> Verdict:
    """"within": the whole interval is within the tolerance; "slower", "faster": all of it is beyond; or "undecided"."""
    if found.low > 1 + tolerance:
        return "slower"
    if found.high < 1 - tolerance:
        return "faster"
    return "within" if found.low >= 1 - tolerance and found.high <= 1 + tolerance else "undecided"
