"""The computing time of batches of a model, learned while it is served."""

from __future__ import annotations

from math import inf
from typing import NamedTuple

from edge.gateway.batching.cover import Covers

__all__ = ["Cost", "Line"]

SHARED, OWN = 0.25, 0.02
"""The shares of a surprise by which the machine's level and the size's own part change. When the machine becomes twice
as slow, one thirteenth of the change is attributed to the sizes in use: too little to affect a choice between sizes
(`cover.NEARLY`)."""
MOST = 0.25
"""The largest surprise that counts, relative to the prediction: a preempted run may take 50 times as long, which says
nothing about the model."""
MOVED = 0.05
"""The relative change of a size's seconds after which covers are computed again."""


class Line(NamedTuple):
    """The seconds of a batch of n rows, estimated as a·n + b."""

    a: float
    b: float


class Cost:
    """Predicts the seconds of a batch from its number of rows and the measured seconds of earlier batches.

    The speed of the machine (its clock rate, other programs) changes from minute to minute and affects all sizes; the
    ratio between two sizes changes little. So the seconds of size s are level · part[s]: a size that has not run for
    an hour changes together with those that have, and choices between sizes stay the same while the machine's speed
    changes. Both factors are exponentially weighted means of clipped relative surprises, so one run in ten that takes
    50 times as long changes them by less than 3 %.

    Written by the thread that runs batches, read by the event loop's thread. No lock is needed: each thread reads
    complete values of the other, and a slightly outdated cover does no harm.
    """

    __slots__ = ("_covers", "_level", "_line", "_part", "_used", "unknown")

    def __init__(self) -> None:
        self.unknown = inf
        """From this number of rows on nothing is predicted, because a size may have to be compiled first."""
        self._level = 1.0
        self._part: dict[int, float] = {}
        self._used: dict[int, float] = {}
        self._covers: Covers | None = None
        self._line: Line | None = None

    def observe(self, size: int, seconds: float) -> None:
        """Record the seconds, copying included, of a batch of `size` rows, padding included. Adds the size to `sizes`.
        The first time recorded for a size should be of a warm run, because a size that seems slow is not run again."""
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
        """The sizes observed so far, which are the compiled ones, smallest first."""
        return tuple(sorted(self._part))

    def cover(self, rows: int) -> tuple[int, ...]:
        """The batch sizes in which so many rows should be computed, largest first; () before any data."""
        return self._covers[rows].sizes if self._covers is not None else ()

    def predict(self, rows: int) -> float | None:
        """Seconds for so many rows, computed in the batches of `cover`; None if unknown: callers should then try."""
        covers = self._covers
        return None if covers is None or rows >= self.unknown else covers[rows].seconds * self._level

    def call(self, size: int) -> float | None:
        """Seconds of one batch of exactly this size: measured, or from the line fitted to the measured sizes."""
        part = self._part.get(size)
        if part is not None:
            return part * self._level
        line = self.line()
        return None if line is None else line.a * size + line.b

    @property
    def row(self) -> float | None:
        """Seconds per row in the best batch: the reciprocal of the highest throughput."""
        return None if self._covers is None else self._covers.row * self._level

    @property
    def best(self) -> int:
        """The smallest batch with nearly the highest throughput in rows per second; 1 before any data."""
        return 1 if self._covers is None else self._covers.enough

    def line(self) -> Line | None:
        """a·n + b with a, b ≥ 0, fitted to the measured sizes by relative least squares; None before any data."""
        if self._line is None and self._used:
            self._line = _fit(self._used)
        return None if self._line is None else Line(self._line.a * self._level, self._line.b * self._level)


def _fit(seconds: dict[int, float]) -> Line:
    """Least squares of (a·n + b) / seconds - 1 with a, b ≥ 0: the unconstrained solution if it satisfies this, else the
    better of a = 0 and b = 0."""
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
