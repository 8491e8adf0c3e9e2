"""The computing time of batches of a model, learned while it is served."""

from __future__ import annotations

from math import inf
from typing import NamedTuple

from edge.gateway.batching.cover import Covers

__all__ = ["Cost", "Line"]

SHARED, OWN = 0.25, 0.02
"""Of a surprise, what goes into the machine's level and what into the size's own part: when the machine becomes twice
as slow, one part in 13 of that is held against the sizes in use: less than counts as better (`cover.NEARLY`)."""
MOST = 0.25
"""Surprises count up to this much above what was expected: a preempted run took 50 times as long and says nothing."""
MOVED = 0.05
"""Part by which a size's seconds move before covers are computed anew."""


class Line(NamedTuple):
    """Seconds of a batch of n rows as a·n + b."""

    a: float
    b: float


class Cost:
    """Seconds of a batch by its rows, from the seconds that batches took.

    What changes from minute to minute is the machine (its clock, its neighbours), which all sizes share; what a size
    takes compared with another changes little. So seconds of size s are level · part[s]: a size not run for an hour
    moves with those that were, and choices between sizes stand still while the machine does not. Both parts are
    exponentially weighted means of clipped relative surprises, so one run in ten that takes 50 times as long moves
    them by under 3 %.

    Written by the thread that runs batches, read by the event loop's: each reads whole numbers of the other, and a
    cover of a moment ago does no harm.
    """

    __slots__ = ("_covers", "_level", "_line", "_part", "_used", "unknown")

    def __init__(self) -> None:
        self.unknown = inf
        """Rows from which nothing is predicted, as more than computing may be to do: a size to be compiled first."""
        self._level = 1.0
        self._part: dict[int, float] = {}
        self._used: dict[int, float] = {}
        self._covers: Covers | None = None
        self._line: Line | None = None

    def observe(self, size: int, seconds: float) -> None:
        """A batch of `size` rows, padding counted, took this long, copying counted. Makes the size one of `sizes`;
        its first time had better not be a cold one, as a size that seems slow is not run again."""
        if seconds <= 0 or size < 1:
            return
        part = self._part.get(size)
        if part is None:
            self._part = {**self._part, size: seconds / self._level}
            self._renew()
            return
        surprise = min(seconds / (self._level * part) - 1, MOST)
        self._level *= 1 + SHARED * surprise
        self._part[size] = part = part * (1 + OWN * surprise)
        used = self._used.get(size, 0.0)
        if abs(part - used) > MOVED * used:
            self._renew()

    def _renew(self) -> None:
        parts = self._part
        self._used, self._line, self._covers = dict(parts), None, Covers(parts)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Sizes that were seen, smallest first: those that are compiled."""
        return tuple(sorted(self._part))

    def cover(self, rows: int) -> tuple[int, ...]:
        """Sizes of the batches to run these rows as, largest first; () before any data."""
        return self._covers[rows].sizes if self._covers is not None else ()

    def predict(self, rows: int) -> float | None:
        """Seconds of these rows run as `cover` says; None where nothing is known, to be read as: try."""
        covers = self._covers
        return None if covers is None or rows >= self.unknown else covers[rows].seconds * self._level

    def call(self, size: int) -> float | None:
        """Seconds of one batch of exactly that size: as seen, else by the line through those seen."""
        part = self._part.get(size)
        if part is not None:
            return part * self._level
        line = self.line()
        return None if line is None else line.a * size + line.b

    @property
    def row(self) -> float | None:
        """Seconds a row takes in the best batch: the reciprocal of what the model can do."""
        return None if self._covers is None else self._covers.row * self._level

    @property
    def best(self) -> int:
        """The smallest batch with nearly the most rows a second; 1 before any data."""
        return 1 if self._covers is None else self._covers.enough

    def line(self) -> Line | None:
        """a·n + b through the sizes seen, a and b at least 0, of least relative squares; None before any data."""
        if self._line is None and self._used:
            self._line = _fit(self._used)
        return None if self._line is None else Line(self._line.a * self._level, self._line.b * self._level)


def _fit(seconds: dict[int, float]) -> Line:
    """Least squares of (a·n + b) / seconds - 1 under a, b ≥ 0: the free solution, or the better edge."""
    us = [n / s for n, s in seconds.items()]
    vs = [1 / s for s in seconds.values()]
    uu, uv, vv, u, v = sum(x * x for x in us), _dot(us, vs), sum(x * x for x in vs), sum(us), sum(vs)
    determinant = uu * vv - uv * uv
    lines = [Line(u / uu, 0.0), Line(0.0, v / vv)]
    if determinant > 1e-9 * uu * vv:
        lines.append(Line((u * vv - v * uv) / determinant, (v * uu - u * uv) / determinant))
    allowed = [line for line in lines if line.a >= 0 and line.b >= 0]
    return min(allowed, key=lambda line: sum((line.a * x + line.b * y - 1) ** 2 for x, y in zip(us, vs, strict=True)))


def _dot(xs: list[float], ys: list[float]) -> float:
    return sum(x * y for x, y in zip(xs, ys, strict=True))
