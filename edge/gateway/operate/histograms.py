"""Histograms with fixed buckets, also over the last minute; adding a value costs one bisection and one increment."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from math import inf

__all__ = ["ROWS", "SECONDS", "Histogram", "Recent"]

SECONDS: Sequence[float] = tuple(16e-6 * 2 ** (step / 4) for step in range(91))
"""Bounds for times: four per octave, from 16 µs to 95 s, so that a percentile is accurate to within 19 %."""
ROWS: Sequence[float] = tuple(2**step for step in range(13))
"""Bounds for batch sizes: 1 to 4,096."""


class Histogram:
    """Counts of values by bucket: bucket i holds bounds[i - 1] < value <= bounds[i], the last one greater values."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float] = SECONDS) -> None:
        self.bounds, self.counts, self.total = bounds, [0] * (len(bounds) + 1), 0.0

    def add(self, value: float, count: int = 1) -> None:
        """Count a value."""
        self.counts[bisect_left(self.bounds, value)] += count
        self.total += value * count

    @property
    def count(self) -> int:
        """The number of values."""
        return sum(self.counts)

    def merge(self, other: Histogram) -> None:
        """Add another's counts; its bounds are the same."""
        self.counts = [mine + theirs for mine, theirs in zip(self.counts, other.counts, strict=True)]
        self.total += other.total

    def quantile(self, share: float) -> float | None:
        """The quantile of that share, with values evenly spread within a bucket; None without values. Values above the
        last bound count as that bound."""
        wanted, seen = share * self.count, 0
        for at, count in enumerate(self.counts):
            if count and seen + count >= wanted:
                low = self.bounds[at - 1] if at else 0.0
                high = self.bounds[min(at, len(self.bounds) - 1)]
                return low + (high - low) * max(0.0, wanted - seen) / count
            seen += count
        return None

    def cumulative(self, every: int = 1) -> list[tuple[float, int]]:
        """(bound, values up to it) for every n-th bound, as in Prometheus, with infinity at the end."""
        sums = list(accumulate(self.counts))
        return [*zip(self.bounds[::every], sums[:-1][::every], strict=True), (inf, sums[-1])]


class Recent:
    """About the last minute: `parts` intervals of `seconds`; the oldest is dropped. Times must not decrease."""

    __slots__ = ("_born", "_bounds", "_parts", "_span", "seconds")

    def __init__(self, now: float, bounds: Sequence[float] = SECONDS, seconds: float = 10.0, parts: int = 6) -> None:
        self.seconds, self._bounds, self._born = seconds, bounds, now
        self._span = int(now // seconds)
        self._parts = [Histogram(bounds) for _ in range(parts)]

    def at(self, now: float) -> Histogram:
        """The histogram of the current interval, to add values to."""
        span = int(now // self.seconds)
        if span > self._span:
            self._advance(span)
        return self._parts[self._span % len(self._parts)]

    def sum(self, now: float) -> tuple[Histogram, float]:
        """The sum of all intervals, and the number of seconds that it covers."""
        self.at(now)
        whole = Histogram(self._bounds)
        for part in self._parts:
            whole.merge(part)
        begun = max(self._born, (self._span - len(self._parts) + 1) * self.seconds)
        return whole, max(now - begun, 1e-3)

    def _advance(self, span: int) -> None:
        for gone in range(self._span + 1, min(span, self._span + len(self._parts)) + 1):
            self._parts[gone % len(self._parts)] = Histogram(self._bounds)
        self._span = span
