"""The Square attack: random search with patches, by scores alone.

Andriushchenko, Croce, Flammarion and Hein, "Square Attack: a query-efficient black-box adversarial attack via random
search", ECCV 2020, arXiv 1912.00049. Inputs (channels, height, width) have squares; others count as one row of values,
where a patch is an interval.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

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
_SELDOM = (1000, 5000)
"""The same for a model that rounds, whose scores small patches do not change."""


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
    halvings = _SELDOM if victim.rounds else _HALVINGS
    rates = _rates(steps, share or (0.05 if norm == "Linf" else 0.1), halvings)
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


def _rates(steps: int, first: float, halvings: Sequence[int]) -> Array:
    """(steps,) float32: the share of the input that the patch of each step covers."""
    at = np.arange(steps) / steps * 10_000
    return np.asarray(first * 0.5 ** (at[:, None] > np.array(halvings)).sum(1), np.float32)


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
    sides = _sides(x, rate, 1, False)
    at, moved = _place(drawn.unit[:, :2], x, sides), best.copy()
    _windows(moved, sides)[at] = ball.clipped(_windows(x, sides)[at] + ball.epsilon * drawn.signs)
    return moved


def _sides(x: Array, rate: float, least: int, odd: bool) -> tuple[int, int]:
    """Height and width of a patch that covers the share `rate`."""
    height, width = x.shape[2:]
    side = max(round(rate * width if height == 1 else float(np.sqrt(rate * height * width))), least)
    side += 1 - side % 2 if odd else 0
    return min(side, height), min(side, width)


def _place(unit: Array, x: Array, sides: tuple[int, int]) -> tuple[Any, ...]:
    """Where in `_windows` are patches that are drawn anywhere; `unit` (rows, 2) in [0, 1)."""
    spare = np.array(x.shape[2:]) - sides + 1
    top, left = np.minimum((unit * spare).astype(np.int64), spare - 1).T
    return np.arange(len(x)), slice(None), top, left


def _windows(x: Array, sides: tuple[int, int]) -> Array:
    """All patches of images, as a view: at [row, :, top, left] (channels, *sides)."""
    return np.lib.stride_tricks.sliding_window_view(x, sides, (2, 3), writeable=True)


def _bump(tall: int, wide: int) -> Array:
    """A pyramid of rectangles (the paper's eta)."""
    r, c = np.arange(tall)[:, None], np.arange(wide)
    ring = np.maximum(np.abs(r - tall // 2), np.abs(c - wide // 2))
    rings = 1 + max(tall // 2, wide // 2)
    sums = np.cumsum(1 / np.arange(rings, 0, -1) ** 2)  # from the outermost ring inwards
    return np.asarray(sums[rings - 1 - ring], np.float32)


def _two_bumps(above: Array, tall: int, wide: int) -> Array:
    """Two halves of opposite signs (rows, 1, tall, wide), side by side or, where `above` (rows,), upright."""
    half_w, half_h = wide // 2, tall // 2
    beside = np.concatenate([_bump(tall, half_w), -_bump(tall, wide - half_w)], 1)
    if tall == 1:
        return np.broadcast_to(beside, (len(above), 1, tall, wide))
    upright = np.concatenate([_bump(half_h, wide), -_bump(tall - half_h, wide)])
    return np.where(above[:, None, None, None], upright, beside)


def _norm(x: Array) -> Array:
    """Of each channel: (rows, channels, 1, 1)."""
    return np.asarray(np.sqrt((x**2).sum((-2, -1), keepdims=True)))


def _tiles(each: list[np.random.Generator], x: Array, ball: _Ball) -> Array:
    """L2's start: a grid of bumps with random signs, five a side."""
    height, width = x.shape[2:]
    tall, wide = max(1, height // 5), max(1, width // 5)
    delta = np.zeros_like(x)
    for top, left in np.ndindex(-(-height // tall), -(-width // wide)):
        above, signs = np.array([one.random() for one in each]) < 0.5, _signs(each, (x.shape[1], 1, 1))
        tile = delta[:, :, top * tall :, left * wide :][:, :, :tall, :wide]
        tile += (signs * _two_bumps(above, tall, wide))[:, :, : tile.shape[2], : tile.shape[3]]
    return ball.clipped(x + ball.epsilon * delta / length(delta))


def _moved_mass(drawn: _Drawn, x: Array, best: Array, rate: float, ball: _Ball) -> Array:
    """L2's step: the change inside one patch is taken away and its length given to new bumps in another."""
    sides = _sides(x, rate, 3, True)
    delta = best - x
    windows = _windows(delta, sides)
    first, second = (_place(drawn.unit[:, at : at + 2], x, sides) for at in (0, 2))
    spare = np.maximum(ball.epsilon**2 - np.einsum("rchw,rchw->r", delta, delta), 0) / x.shape[1]
    old = windows[first]
    windows[first] = 0
    mass = _norm(old) ** 2 + _norm(windows[second]) ** 2  # of both, where they meet once
    windows[second] = 0
    bumps = _two_bumps(drawn.halves, *sides)
    fresh = drawn.signs * bumps / np.maximum(_norm(bumps), 1e-10) + old / (1e-10 + _norm(old))
    fresh = fresh / np.maximum(_norm(fresh), 1e-10) * np.sqrt(along(spare, x) + mass)
    windows[first] = fresh
    delta *= ball.epsilon / length(delta)
    delta += x
    return ball.clipped(delta)


_STARTS: dict[str, Callable[..., Array]] = {"Linf": _stripes, "L2": _tiles}
_PROPOSALS: dict[str, Callable[..., Array]] = {"Linf": _patch, "L2": _moved_mass}
