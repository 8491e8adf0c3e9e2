"""The Square attack: random search with patches, by scores alone.

Andriushchenko, Croce, Flammarion and Hein, "Square Attack: a query-efficient black-box adversarial attack via random
search", ECCV 2020, arXiv 1912.00049. Inputs (channels, height, width) have squares; others count as one row of values,
where a patch is an interval.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from cloud.audit.attacks.balls import along, drawn, length
from cloud.audit.attacks.losses import LossName, loss_of
from cloud.audit.attacks.results import Array, Attacked, Found, Norm, Task
from cloud.audit.attacks.walking import State, walk
from cloud.audit.victim import Victim
from cloud.errors import AuditError

__all__ = ["square"]

_HALVINGS = (10, 50, 200, 500, 1000, 2000, 4000, 6000, 8000)
"""Of 10,000 steps: where the patch's share of the input is halved (the paper's section 5.1)."""


def square(
    victim: Victim, x: Array, labels: Array, *, epsilon: float, norm: Norm = "Linf", steps: int = 1000,
    share: float = 0.0, targeted: bool = False, clip: tuple[float, float] = (0.0, 1.0), loss: LossName = "margin",
    restarts: int = 1, seed: int = 0, batch: int = 256,
) -> Attacked:  # fmt: skip
    """Random patches, kept where the loss grows; works on every victim, with equal proposals on all.

    x: (rows, ...) float32 within `clip`. labels: (rows,) true classes or, if targeted, those wanted. share: of the
    input that the first patch covers, 0 for the paper's (0.05 in Linf, 0.1 in L2). Raises AuditError for settings that
    do not fit.
    """
    task = Task.of(victim, x, labels, targeted=targeted, clip=clip, norm=norm, epsilon=epsilon)
    if steps < 1 or not 0 <= share <= 1:
        raise AuditError(f"expected at least 1 step and a share from 0 to 1, got {steps} and {share}")
    rates = _rates(steps, share or (0.05 if norm == "Linf" else 0.1))
    losses = loss_of(loss, targeted, victim.classes)

    def judge(s: State, tried: Array) -> None:
        scores = victim.logits(tried.reshape(-1, *victim.shape))
        value, won = losses(scores, s["labels"])[0], (scores.argmax(1) == s["labels"]) == targeted
        better = ~s["done"] & ((value > s["value"]) | won)
        s["found"][better], s["value"][better] = tried[better], value[better]
        s["cost"] += ~s["done"]
        s["done"] = s["done"] | won

    def attack(x: Array, rows: Array, restart: int) -> Found:
        image = _image(x)
        ball, draws = _Ball(np.float32(epsilon), np.float32(task.low), np.float32(task.high)), _Draws(seed, restart)

        def step_of(i: int, s: State) -> None:
            judge(s, _PROPOSALS[norm](draws.of(i, s["row"], image.shape[1]), s["x"], s["found"], rates[i], ball))

        none = np.zeros(len(x), np.int64)
        state = {"x": image, "found": image.copy(), "labels": task.labels[rows], "row": rows, "done": none > 0,
                 "cost": none, "value": np.full(len(x), -np.inf, np.float32)}  # fmt: skip
        judge(state, _STARTS[norm](drawn(seed, restart, rows), image, ball))
        found, cost = walk(state, steps, step_of, victim.any_size)
        return found.reshape(x.shape), cost

    return task.search(attack, restarts, batch)


def _rates(steps: int, first: float) -> Array:
    """(steps,) float32: the share of the input that the patch of each step covers."""
    at = np.arange(steps) / steps * 10_000
    halvings = (at[:, None] > np.array(_HALVINGS)).sum(1)
    return np.asarray(first * 0.5**halvings, np.float32)


def _image(x: Array) -> Array:
    return x if x.ndim == 4 else x.reshape(len(x), 1, 1, -1)


class _Ball(NamedTuple):
    epsilon: np.float32
    low: np.float32
    high: np.float32

    def clipped(self, x: Array) -> Array:
        return np.clip(x, self.low, self.high)


class _Drawn(NamedTuple):
    """Random numbers of one step: `unit` (rows, 4) in [0, 1), `halves` (rows,) bool, `signs` (rows, channels, 1, 1)."""

    unit: Array
    halves: Array
    signs: Array


class _Draws:
    """Random numbers of steps, by seed, restart, the row's index and the step alone; drawn for many steps together."""

    _BLOCK = 256

    def __init__(self, seed: int, restart: int) -> None:
        self._seed, self._restart, self._kept, self._first = seed, restart, np.zeros((0, 0, 0), np.float32), -1
        self._place: dict[int, int] = {}

    def of(self, step: int, rows: Array, channels: int) -> _Drawn:
        block, at = divmod(step, self._BLOCK)
        if block != self._first:
            self._first, self._place = block, {int(row): i for i, row in enumerate(rows)}
            size = (self._BLOCK, 5 + channels)
            each = (np.random.default_rng([self._seed, self._restart, int(row), block]) for row in rows)
            self._kept = np.stack([one.random(size, np.float32) for one in each], 1)
        found = self._kept[at, [self._place[int(row)] for row in rows]]
        signs = np.where(found[:, 5:] < 0.5, np.float32(-1), np.float32(1))
        return _Drawn(found[:, :4], found[:, 4] < 0.5, signs[..., None, None])


def _signs(each: list[np.random.Generator], shape: tuple[int, ...]) -> Array:
    return np.stack([one.integers(0, 2, shape) for one in each]).astype(np.float32) * 2 - 1


def _stripes(each: list[np.random.Generator], x: Array, ball: _Ball) -> Array:
    """Linf's start: vertical stripes one value wide."""
    return ball.clipped(x + ball.epsilon * _signs(each, (x.shape[1], 1, x.shape[3])))


def _patch(drawn: _Drawn, x: Array, best: Array, rate: float, ball: _Ball) -> Array:
    """Linf's step: a square where each channel moves by epsilon up or down."""
    inside = _window(drawn.unit[:, :2], x.shape[2:], *_sides(x, rate, 1, False))[0]
    return np.where(inside, ball.clipped(x + ball.epsilon * drawn.signs), best)


def _sides(x: Array, rate: float, least: int, odd: bool) -> tuple[int, int]:
    """Height and width of a patch that covers the share `rate`."""
    height, width = x.shape[2:]
    side = max(round(rate * width if height == 1 else float(np.sqrt(rate * height * width))), least)
    side += 1 - side % 2 if odd else 0
    return min(side, height), min(side, width)


def _window(unit: Array, sizes: tuple[int, ...], tall: int, wide: int) -> tuple[Array, Array, Array]:
    """Which places a patch drawn anywhere covers (rows, 1, height, width), and its first row and column
    (rows, 1, 1, 1)."""
    spare = np.array([sizes[0] - tall + 1, sizes[1] - wide + 1])
    top, left = np.minimum((unit * spare).astype(np.int64), spare - 1).T.reshape(2, -1, 1, 1, 1)
    r, c = np.arange(sizes[0])[:, None], np.arange(sizes[1])
    return (r >= top) & (r < top + tall) & (c >= left) & (c < left + wide), top, left


def _bump(shape: tuple[int, ...], top: Array, left: Array, tall: int, wide: int) -> Array:
    """A pyramid of rectangles around the patch's middle (the paper's eta): (rows, 1, height, width), 0 outside."""
    height, width = shape
    r, c = np.arange(height)[:, None] - top, np.arange(width) - left
    ring = np.maximum(np.abs(r - tall // 2), np.abs(c - wide // 2))
    terms = np.float32(1) / np.arange(1, max(height, width) + 2, dtype=np.float32) ** 2
    sums = np.concatenate([[0], np.cumsum(np.where(np.arange(terms.size) <= max(tall // 2, wide // 2), terms, 0))])
    value = (sums[-1] - sums[np.minimum(ring, terms.size)]).astype(np.float32)
    return np.where((r >= 0) & (r < tall) & (c >= 0) & (c < wide), value, np.float32(0))


def _two_bumps(above: Array, shape: tuple[int, ...], top: Array, left: Array, tall: int, wide: int) -> Array:
    """Two halves of opposite sign, side by side or, where `above` (rows,), one above the other."""
    half_w, half_h = wide // 2, tall // 2
    beside = _bump(shape, top, left, tall, half_w) - _bump(shape, top, left + half_w, tall, wide - half_w)
    if shape[0] == 1:
        return beside
    upright = _bump(shape, top, left, half_h, wide) - _bump(shape, top + half_h, left, tall - half_h, wide)
    return np.asarray(np.where(above[:, None, None, None], upright, beside))


def _norm(x: Array) -> Array:
    """Of each channel: (rows, channels, 1, 1)."""
    return np.asarray(np.sqrt((x**2).sum((-2, -1), keepdims=True)))


def _tiles(each: list[np.random.Generator], x: Array, ball: _Ball) -> Array:
    """L2's start: a grid of bumps with random signs, five a side."""
    height, width = x.shape[2:]
    tall, wide = max(1, height // 5), max(1, width // 5)
    delta, at = np.zeros_like(x), np.zeros((len(x), 1, 1, 1), np.int64)
    for top, left in np.ndindex(-(-height // tall), -(-width // wide)):
        above, signs = np.array([one.random() for one in each]) < 0.5, _signs(each, (x.shape[1], 1, 1))
        delta += signs * _two_bumps(above, (height, width), at + top * tall, at + left * wide, tall, wide)
    return ball.clipped(x + ball.epsilon * delta / length(delta))


def _moved_mass(drawn: _Drawn, x: Array, best: Array, rate: float, ball: _Ball) -> Array:
    """L2's step: the change inside one patch is taken away and its length given to new bumps in another."""
    sizes = x.shape[2:]
    tall, wide = _sides(x, rate, 3, True)
    delta = best - x
    first, top, left = _window(drawn.unit[:, :2], sizes, tall, wide)
    second, _, _ = _window(drawn.unit[:, 2:], sizes, tall, wide)
    spare = np.maximum(ball.epsilon**2 - (delta**2).sum((1, 2, 3)), 0) / x.shape[1]
    budget = np.sqrt(along(spare, x) + _norm(delta * (first | second)) ** 2)
    bumps = _two_bumps(drawn.halves, sizes, top, left, tall, wide)
    bumps = bumps / np.maximum(_norm(bumps), 1e-10)
    old = delta * first
    fresh = drawn.signs * bumps + old / (1e-10 + _norm(old))
    fresh = fresh / np.maximum(_norm(fresh), 1e-10) * budget
    delta = np.where(first, fresh, np.where(second, 0, delta)).astype(np.float32)
    return ball.clipped(x + ball.epsilon * delta / length(delta))


_STARTS: dict[str, Callable[..., Array]] = {"Linf": _stripes, "L2": _tiles}
_PROPOSALS: dict[str, Callable[..., Array]] = {"Linf": _patch, "L2": _moved_mass}
