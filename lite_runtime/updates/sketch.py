"""Quantiles of many values in little memory, which can be added up across devices.

DDSketch (Masson, Rim & Lee, "DDSketch: A Fast and Fully-Mergeable Quantile Sketch with Relative-Error Guarantees", VLDB
2019): values are counted in bins whose bounds are powers of one number, so that every quantile is right within
`ACCURACY` of itself. The number of bins is bounded by joining those of the smallest magnitudes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

__all__ = ["ACCURACY", "MOST", "Sketch"]

ACCURACY = 0.01
"""The relative error of quantiles."""
MOST = 512
"""Bins of positive values, and as many of negative ones."""
_BASE = (1 + ACCURACY) / (1 - ACCURACY)
_LOG = math.log(_BASE)
_LEAST, _LARGEST = 1e-12, 1e12
"""Smaller magnitudes count as 0, larger ones as the largest."""
_NONE: Mapping[int, float] = {}
EDGE = math.ceil(math.log(_LARGEST) / _LOG)


class Sketch:
    """Counts of values: `zero`, and by bin those of positive and of negative values. Counts may be fractions."""

    __slots__ = ("negative", "positive", "zero")

    def __init__(
        self,
        zero: float = 0.0,
        positive: Mapping[int, float] | None = None,
        negative: Mapping[int, float] | None = None,
    ) -> None:
        self.zero, self.positive, self.negative = zero, dict(positive or {}), dict(negative or {})

    @property
    def count(self) -> float:
        """How many values there are."""
        return self.zero + sum(self.positive.values()) + sum(self.negative.values())

    def add(self, value: float, count: float = 1.0) -> None:
        """Count a value; one that is not finite is left out."""
        if not math.isfinite(value):
            return
        size = min(abs(value), _LARGEST)
        if size < _LEAST:
            self.zero += count
            return
        bins = self.positive if value > 0 else self.negative
        at = math.ceil(math.log(size) / _LOG)
        bins[at] = bins.get(at, 0.0) + count
        if len(bins) > MOST:
            _join(bins)

    def merge(self, other: Sketch, scale: float = 1.0) -> None:
        """Add another's counts, times a factor."""
        self.zero += other.zero * scale
        for mine, theirs in ((self.positive, other.positive), (self.negative, other.negative)):
            for at, count in theirs.items():
                mine[at] = mine.get(at, 0.0) + count * scale
            while len(mine) > MOST:
                _join(mine)

    def quantile(self, share: float) -> float | None:
        """The value below which this share is; None without values."""
        left = share * self.count
        if not self.count:
            return None
        found = 0.0
        for value, count in self._rows():
            found, left = value, left - count
            if left <= 0:
                break
        return found

    def distance(self, other: Sketch) -> float:
        """The largest difference between the two shares of values below any bound, from 0 to 1: the statistic of
        Kolmogorov and Smirnov, up to the bins. 0 if one is empty."""
        if not self.count or not other.count:
            return 0.0
        rows: dict[float, list[float]] = {}
        for side, sketch in enumerate((self, other)):
            for value, count in sketch._rows():
                rows.setdefault(value, [0.0, 0.0])[side] += count / sketch.count
        below, most = [0.0, 0.0], 0.0
        for value in sorted(rows):
            below = [one + more for one, more in zip(below, rows[value], strict=True)]
            most = max(most, abs(below[0] - below[1]))
        return most

    def _rows(self) -> Iterable[tuple[float, float]]:
        """Values in order, the middle of each bin, and their counts."""
        yield from ((-_middle(at), self.negative[at]) for at in sorted(self.negative, reverse=True))
        if self.zero:
            yield 0.0, self.zero
        yield from ((_middle(at), self.positive[at]) for at in sorted(self.positive))


def _middle(at: int) -> float:
    return 2 * _BASE**at / (_BASE + 1)


def _join(bins: dict[int, float]) -> None:
    """Put the values of the smallest magnitude into the next bin."""
    least = min(bins)
    count = bins.pop(least)
    bins[min(bins)] += count
