"""Which batch sizes compute a number of rows in the least time: dynamic programming over the compiled sizes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

__all__ = ["Cover", "Covers"]

NEARLY = 1.1
"""A smaller batch is preferred if its seconds per row are at most this many times the best: it is answered sooner."""


CALL = 5e-6
"""Seconds added to each batch when covers are compared: after a batch, its thread must get the interpreter back from a
busy event loop. So of covers with about equal times, the one with the fewest batches is chosen."""


class Cover(NamedTuple):
    """Sizes of the batches to run, largest first. Padding rows are at the end of the last batch."""

    sizes: tuple[int, ...]
    seconds: float


class Covers:
    """The fastest cover of any number of rows, given the seconds of a batch of each size.

    f(n) = min over sizes s of seconds[s] + CALL + f(max(0, n - s)), f(0) = 0.
    So batches of more than one row are used only if they save time: if a batch of 8 takes longer than 8 batches of 1,
    the rows are computed one by one; 9 rows become 8 + 1 or a padded 16, whichever takes less time.
    """

    def __init__(self, seconds: Mapping[int, float]) -> None:
        """seconds: at least one size, each above 0 rows and above 0 seconds."""
        self._seconds = dict(sorted(seconds.items()))
        self._table: dict[int, tuple[float, int]] = {0: (0.0, 0)}
        """For n rows: f(n) and the size of the first batch. Two threads may fill it at the same time: both write the
        same values."""
        self._known: dict[int, Cover] = {}
        self._largest = max(self._seconds)
        self.best = min(self._seconds, key=lambda size: (self._seconds[size] / size, size))
        """The size with the most rows per second."""
        self.row = self._seconds[self.best] / self.best
        """Seconds per row with the best size."""
        self.enough = next(size for size, seconds in self._seconds.items() if seconds / size <= NEARLY * self.row)
        """The smallest size with nearly as many rows per second."""

    def __getitem__(self, rows: int) -> Cover:
        known = self._known.get(rows)
        if known is None:
            known = self._known[rows] = self._cover(rows)
            if len(self._known) > 1024:
                self._known = {rows: known}
        return known

    def _cover(self, rows: int) -> Cover:
        # Beyond twice the largest size, everything but the rest uses the best size, so the table stays small.
        many = max(0, -(-(rows - 2 * self._largest) // self.best))
        rest = rows - many * self.best
        for n in range(len(self._table), rest + 1):
            self._table[n] = min(self._with(size, n) for size in self._seconds)
        sizes = [self.best] * many
        while rest > 0:
            size = self._table[rest][1]
            sizes.append(size)
            rest -= size
        return Cover(tuple(sorted(sizes, reverse=True)), sum([self._seconds[size] for size in sizes]))

    def _with(self, size: int, rows: int) -> tuple[float, int]:
        return self._table[max(0, rows - size)][0] + self._seconds[size] + CALL, size
