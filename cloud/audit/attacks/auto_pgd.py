"""AutoPGD: projected gradient ascent with momentum that chooses its own step size.

Croce and Hein, "Reliable evaluation of adversarial robustness with an ensemble of diverse parameter-free attacks",
ICML 2020, arXiv 2003.01690, algorithm 1; constants as there.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import TypeAlias

import numpy as np

from cloud.audit.attacks.balls import along, project, random_point, uphill
from cloud.audit.attacks.losses import Loss, LossName, loss_of
from cloud.audit.attacks.results import Array, Attacked, Found, Norm, Task
from cloud.audit.attacks.walking import State, walk
from cloud.audit.victim import Victim, WhiteBox
from cloud.errors import AuditError

__all__ = ["auto_pgd"]

_MOMENTUM, _INCREASES = 0.75, 0.75
"""The share of the new step beside the last one; below this share of increases, steps are halved."""


def auto_pgd(
    victim: Victim, x: Array, labels: Array, *, epsilon: float, norm: Norm = "Linf", steps: int = 100,
    targeted: bool = False, clip: tuple[float, float] = (0.0, 1.0), loss: LossName = "ce", restarts: int = 1,
    seed: int = 0, batch: int = 256,
) -> Attacked:  # fmt: skip
    """Steps of 2 * epsilon with momentum, halved at checkpoints where the loss has stopped growing.

    x: (rows, ...) float32 within `clip`. labels: (rows,) true classes or, if targeted, those wanted. loss: "ce" or
    "dlr", which does not depend on the scale of the scores; the paper runs both. Every restart begins at a point drawn
    from the ball. Raises AuditError for a victim without gradients and for settings that do not fit.
    """
    white = victim.white()
    task = Task.of(victim, x, labels, targeted=targeted, clip=clip, norm=norm, epsilon=epsilon)
    if steps < 1:
        raise AuditError(f"expected at least 1 step, got {steps}")
    ask, marks = partial(_asked, white, loss_of(loss, targeted, victim.classes), targeted), checkpoints(steps)

    def step_of(i: int, s: State) -> None:
        _step(i, s, marks, ask, lambda x, moved: project(x, moved, epsilon, norm, task.low, task.high), norm)

    def attack(x: Array, rows: Array, restart: int) -> Found:
        start = random_point(seed, restart, rows, x, epsilon, norm, task.low, task.high)
        return walk(_first(ask, x, start, task.labels[rows], epsilon), steps, step_of, victim.any_size)

    return task.search(attack, restarts, batch)


def checkpoints(steps: int) -> Array:
    """(steps,) int32: after a step that is a checkpoint, the number of steps since the last one; otherwise 0."""
    marks, shares = np.zeros(steps, np.int32), [0.0, 0.22]
    while shares[-1] < 1:
        shares.append(shares[-1] + max(shares[-1] - shares[-2] - 0.03, 0.06))
    at = sorted({int(np.ceil(share * steps)) for share in shares if share <= 1})
    for before, now in pairwise(at):
        marks[now - 1] = now - before
    return marks


_Ask: TypeAlias = Callable[[Array, Array], tuple[Array, Array, Array]]
"""Inputs and labels to losses, their gradients and which inputs have succeeded."""


def _asked(white: WhiteBox, loss: Loss, targeted: bool, x: Array, labels: Array) -> tuple[Array, Array, Array]:
    scores, pull = white.linearised(x)
    value, weights = loss(scores, labels)
    return value, pull(weights), (scores.argmax(1) == labels) == targeted


def _first(ask: _Ask, x: Array, start: Array, labels: Array, epsilon: float) -> State:
    value, slope, won = ask(start, labels)
    none = np.zeros(len(x), np.int64)
    return {
        "given": x, "labels": labels, "x": start, "before": start, "slope": slope, "value": value,
        "best": value.copy(), "found": start.copy(), "best_slope": slope.copy(), "ups": none.copy(),
        "size": np.full(len(x), 2 * epsilon, np.float32), "halved": none > 0, "then": value.copy(), "done": won,
        "cost": none + 1,
    }  # fmt: skip


def _step(i: int, s: State, marks: Array, ask: _Ask, within: Callable[[Array, Array], Array], norm: str) -> None:
    """One step; "found" is the first that succeeded or else the best."""
    moved = within(s["given"], s["x"] + along(s["size"], s["x"]) * uphill(s["slope"], norm))
    if i:
        moved -= s["x"]
        moved *= np.float32(_MOMENTUM)
        moved += s["x"]
        moved += np.float32(1 - _MOMENTUM) * (s["x"] - s["before"])
        moved = within(s["given"], moved)
    value, slope, won = ask(moved, s["labels"])
    better = (value > s["best"]) & ~s["done"]
    kept = better | (won & ~s["done"])
    s["found"][kept], s["best_slope"][better] = moved[kept], slope[better]
    s["best"] = np.maximum(value, s["best"])
    s["ups"] += value > s["value"]
    s["cost"] += ~s["done"]
    s["done"] = s["done"] | won
    s["before"], s["x"], s["slope"], s["value"] = s["x"], moved, slope, value
    if marks[i]:
        _checked(s, int(marks[i]))


def _checked(s: State, since: int) -> None:
    """At a checkpoint, `since` steps after the last one: halve the step where the loss grew too rarely, or where
    neither step nor best loss changed, and go on from the best point."""
    halve = (s["ups"] < _INCREASES * since) | (~s["halved"] & (s["best"] <= s["then"]))
    s["size"] = np.where(halve, s["size"] / 2, s["size"])
    back = along(halve, s["x"])
    s["x"], s["before"] = (np.where(back, s["found"], s[key]) for key in ("x", "before"))
    s["slope"], s["value"] = np.where(back, s["best_slope"], s["slope"]), np.where(halve, s["best"], s["value"])
    s["halved"], s["then"], s["ups"] = halve, s["best"].copy(), np.zeros_like(s["ups"])
