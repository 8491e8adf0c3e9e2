"""Which batch sizes compute a number of rows in the least time: dynamic programming over the compiled sizes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

__all__ = ["Cover", "Covers"]

NEARLY = 1.1
"""A smaller batch is as good as the best where its rows take up to this much longer: it is answered sooner."""


CALL = 5e-6
"""Seconds that a batch counts as longer than it is when covers are compared, for taking the interpreter back after it
from a busy event loop: of what is about equal, fewest batches."""


class Cover(NamedTuple):
    """Sizes of the batches to run, largest first; rows beyond those asked for stand at the end of the last."""

    sizes: tuple[int, ...]
    seconds: float


class Covers:
    """The best cover of any number of rows, given the seconds that a batch of each size takes.

    f(n) = min over sizes s of seconds[s] + CALL + f(max(0, n - s)), f(0) = 0.
    So batches larger than one are used exactly where they pay: a model whose batch of 8 takes longer than 8 of its
    batches of 1 runs as singles, and 9 rows are 8 + 1 or a padded 16, whichever is less.
    """

    def __init__(self, seconds: Mapping[int, float]) -> None:
        """seconds: at least one size, each above 0 rows and above 0 seconds."""
        self._seconds = dict(sorted(seconds.items()))
        self._table: dict[int, tuple[float, int]] = {0: (0.0, 0)}
        """For n rows: f, and the size of the first batch. Two threads may fill it at once: both write the same."""
        self._known: dict[int, Cover] = {}
        self._largest = max(self._seconds)
        self.best = min(self._seconds, key=lambda size: (self._seconds[size] / size, size))
        """The size with most rows a second."""
        self.row = self._seconds[self.best] / self.best
        """Seconds a row takes in it."""
        self.enough = next(size for size, seconds in self._seconds.items() if seconds / size <= NEARLY * self.row)
        """The smallest size with nearly as many."""

    def __getitem__(self, rows: int) -> Cover:
        known = self._known.get(rows)
        if known is None:
            known = self._known[rows] = self._cover(rows)
            if len(self._known) > 1024:
                self._known = {rows: known}
        return known

    def _cover(self, rows: int) -> Cover:
        # Beyond twice the largest size all but the end is the best size again and again: the table stays small.
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
