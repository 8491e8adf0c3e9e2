"""HopSkipJump: along the decision boundary, by predicted classes alone.

Chen, Jordan and Wainwright, "HopSkipJumpAttack: A Query-Efficient Decision-Based Attack", IEEE Symposium on Security
and Privacy 2020, arXiv 1904.02144, algorithm 2; constants as there, but for a model that rounds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np

from cloud.audit.attacks.balls import along, length
from cloud.audit.attacks.results import Array, Attacked, Found, Norm, Task, distances
from cloud.audit.victim import Victim
from cloud.errors import AuditError

__all__ = ["hop_skip_jump"]

_SEARCH = 25
"""The most halvings of one binary search."""
_HALVINGS = 12
"""The most halvings of a step that leaves the region."""
_COARSE = 0.2
"""For a model that rounds: how far random directions go, as a share of the distance. The paper's go a thousandth of it,
which is lost in the rounding: int8 networks then took three times the distance."""


def hop_skip_jump(
    victim: Victim, x: Array, labels: Array, *, norm: Norm = "L2", iterations: int = 20, directions: int = 100,
    most_directions: int = 1000, starts: int = 100, targeted: bool = False, clip: tuple[float, float] = (0.0, 1.0),
    examples: Array | None = None, seed: int = 0, batch: int = 64,
) -> Attacked:  # fmt: skip
    """A near example; works on every victim.

    x: (rows, ...) float32 within `clip`. labels: (rows,) true classes or, if targeted, those wanted. Every iteration i
    estimates the boundary's normal from directions * sqrt(i) random directions (at most `most_directions`). It starts
    at one of `starts` random points that has another class or, if none has, at the nearest row of `x` that has one. If
    `examples` (any, ...) are given, it starts at the nearest of these that the model answers as wanted; a targeted
    attack needs them. Rows without a start fail. Random numbers are drawn by batch: another `batch` gives other
    examples. Raises AuditError for settings that do not fit.
    """
    task = Task.of(victim, x, labels, targeted=targeted, clip=clip, norm=norm)
    if min(iterations, directions, most_directions, starts) < 1:
        raise AuditError("expected at least 1 iteration, direction and start")
    if targeted and examples is None:
        raise AuditError("expected examples=, inputs of the classes wanted: a targeted attack starts there")
    # Asked once, and the rows themselves only if a random start fails.
    known = cache(lambda: _Known.of(task, task.x if examples is None else examples))

    def attack(x: Array, rows: Array, restart: int) -> Found:
        real = len(np.unique(rows))  # the batch may be filled up
        hop = _Hop(task, x[:real], rows[:real], np.random.default_rng([seed, restart, int(rows[0])]))
        found = hop.run(iterations, directions, most_directions, starts if examples is None else 0, known)
        return found, hop.asked

    return task.search(attack, 1, batch)


@dataclass(frozen=True)
class _Known:
    """Examples to start from, and the classes that the model gives them."""

    x: Array
    classes: Array

    @classmethod
    def of(cls, task: Task, examples: Array) -> _Known:
        x = np.clip(task.victim.checked(examples), np.float32(task.low), np.float32(task.high))
        return cls(x, task.victim.logits(x).argmax(1))


class _Hop:
    """One batch of rows; all of them take their steps together."""

    def __init__(self, task: Task, x: Array, rows: Array, random: np.random.Generator) -> None:
        self.task, self.x, self.rows, self.random = task, x, rows, random
        self.asked = np.zeros(len(x), np.int64)
        self.linf = task.norm == "Linf"
        size = x[0].size
        self.precision = 1 / (size * np.sqrt(size)) if not self.linf else 1 / size**2
        """The paper's theta: how near to the boundary a binary search ends, as a share."""

    def run(self, iterations: int, directions: int, most: int, starts: int, known: Callable[[], _Known]) -> Array:
        """The inputs found; where there is no start, those given. starts: random points that are tried before those
        known."""
        start, there = self._random_start(starts)
        if not there.all():
            others, found = self._known_start(known())
            start, there = np.where(along(there, start), start, others), there | found
        best = self.x.copy()
        if not there.any():
            return best
        at = np.flatnonzero(there)
        found = self._onto_boundary(at, start[at])
        for i in range(1, iterations + 1):
            far = distances(self.x[at], found, self.task.norm)
            radius = self._radius(i, found, at)
            normal = self._normal(at, found, radius, min(int(directions * np.sqrt(i)), most))
            size = self._step(at, found, normal, far / np.sqrt(i))
            moved = self._onto_boundary(at, self._moved(found, normal, size))
            nearer = distances(self.x[at], moved, self.task.norm) < far
            found = np.where(along(nearer, found), moved, found)
        best[at] = found
        return best

    def _wanted(self, at: Array, x: Array) -> Array:
        """Whether the model answers (at, ...) as wanted; `at` are positions in the batch, and may repeat."""
        np.add.at(self.asked, at, 1)
        return self.task.reached(x, self.rows[at])

    def _random_start(self, starts: int) -> tuple[Array, Array]:
        start, there = self.x.copy(), np.zeros(len(self.x), np.bool_)
        for _ in range(starts):
            at = np.flatnonzero(~there)
            if not len(at):
                break
            tried = self.random.uniform(self.task.low, self.task.high, (len(at), *self.x.shape[1:])).astype(np.float32)
            won = self._wanted(at, tried)
            start[at[won]], there[at[won]] = tried[won], True
        return start, there

    def _known_start(self, known: _Known) -> tuple[Array, Array]:
        start, there = self.x.copy(), np.zeros(len(self.x), np.bool_)
        for i, label in enumerate(self.task.labels[self.rows]):
            fits = known.x[(known.classes == label) == self.task.targeted]
            if len(fits):
                far = distances(np.broadcast_to(self.x[i], fits.shape), fits, self.task.norm)
                start[i], there[i] = fits[far.argmin()], True
        return start, there

    def _between(self, x: Array, outer: Array, share: Array) -> Array:
        """L2: the point at `share` of the way from x to outer. Linf: outer, no further than `share` from x."""
        by = along(share, x).astype(np.float32)
        return np.clip(outer, x - by, x + by) if self.linf else (1 - by) * x + by * outer

    def _onto_boundary(self, at: Array, outer: Array) -> Array:
        """By binary search, the last point towards x that the model still answers as wanted."""
        x = self.x[at]
        high = distances(x, outer, "Linf") if self.linf else np.ones(len(at))
        low, best = np.zeros(len(at)), outer
        for _ in range(_SEARCH):
            if (high - low <= self.precision).all():
                break
            middle = (high + low) / 2
            tried = self._between(x, outer, middle)
            won = self._wanted(at, tried)
            high, low = np.where(won, middle, high), np.where(won, low, middle)
            best = np.where(along(won, x), tried, best)
        return best

    def _radius(self, i: int, found: Array, at: Array) -> Array:
        """How far random directions go, in L2."""
        size = self.x[0].size
        far = distances(self.x[at], found, self.task.norm)
        if self.task.victim.rounds:
            return np.asarray(_COARSE * far * (np.sqrt(size) if self.linf else 1))
        if i == 1:
            return np.full(len(at), 0.1 * (self.task.high - self.task.low))
        return np.asarray(far * self.precision * (size if self.linf else np.sqrt(size)))

    def _normal(self, at: Array, found: Array, radius: Array, count: int) -> Array:
        """The boundary's normals, estimated from the answers at random points around, row by row: the points of one row
        are still in the processor's cache when they are used again."""
        normal = np.stack([self._slope(*one, count) for one in zip(at, found, radius, strict=True)])
        return np.asarray(np.sign(normal) if self.linf else normal / length(normal))

    def _slope(self, at: int, found: Array, radius: float, count: int) -> Array:
        """The mean of random directions of one length, weighted by the answers: of uniform numbers in both norms, which
        are drawn sooner than normal ones, and as good."""
        around = self.random.random((count, *found.shape), np.float32)
        around -= np.float32(0.5)
        around *= np.float32(radius) / length(around)
        around += found
        np.clip(around, np.float32(self.task.low), np.float32(self.task.high), out=around)
        answers = self._wanted(np.full(count, at), around) * np.float32(2) - np.float32(1)
        weights = answers if abs(answers.mean()) == 1 else answers - answers.mean()
        around -= found
        return np.tensordot(weights, around, 1)

    def _moved(self, found: Array, normal: Array, size: Array) -> Array:
        moved = found + along(size, found) * normal
        return np.asarray(np.clip(moved, self.task.low, self.task.high), np.float32)

    def _step(self, at: Array, found: Array, normal: Array, size: Array) -> Array:
        """Steps halved until the model answers as wanted; 0 where that never happens."""
        open_ = np.arange(len(at))
        for _ in range(_HALVINGS):
            won = self._wanted(at[open_], self._moved(found[open_], normal[open_], size[open_]))
            open_ = open_[~won]
            if not len(open_):
                return size
            size[open_] /= 2
        size[open_] = 0
        return size
