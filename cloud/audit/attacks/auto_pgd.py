"""AutoPGD: projected gradient ascent with momentum that chooses its own step size.

Croce and Hein, "Reliable evaluation of adversarial robustness with an ensemble of diverse parameter-free attacks",
ICML 2020, arXiv 2003.01690, algorithm 1; constants as there.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cloud.audit.attacks.balls import along, keys_of, project, random_point, uphill
from cloud.audit.attacks.losses import Loss, LossName, loss_of
from cloud.audit.attacks.results import Array, Attacked, Found, Norm, Task
from cloud.audit.victim import Forward, Victim
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
    run = white.compiled(_run, loss=loss_of(loss, targeted, victim.classes), norm=norm, targeted=targeted)
    marks = checkpoints(steps)

    def attack(x: Array, rows: Array, restart: int) -> Found:
        return task.counted(*run(x, task.labels[rows], rows, seed, restart, marks, task.epsilon, task.low, task.high))

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


def _run(
    forward: Forward, x: Any, labels: Any, rows: Any, seed: Any, restart: Any, marks: Any, epsilon: Any, low: Any,
    high: Any, *, loss: Loss, norm: str, targeted: bool,
) -> tuple[Any, Any]:  # fmt: skip
    """Found inputs, which are the first that succeeded or else the best, and rows asked for."""

    def total(moved: Any) -> tuple[Any, tuple[Any, Any]]:
        scores = forward(moved)
        values = loss(scores, labels)
        return values.sum(), (values, (scores.argmax(1) == labels) == targeted)

    slopes = jax.grad(total, has_aux=True)

    def body(s: dict[str, Any]) -> dict[str, Any]:
        wide, size = s["slope"], along(s["size"], x)
        straight = project(x, s["x"] + size * uphill(wide, norm), epsilon, norm, low, high)
        share = jnp.where(s["i"] == 0, 1.0, _MOMENTUM)
        moved = s["x"] + share * (straight - s["x"]) + (1 - share) * (s["x"] - s["before"])
        moved = project(x, moved, epsilon, norm, low, high)
        slope, (value, won) = slopes(moved)
        better = value > s["best"]
        keep = along(better | won, x)
        new = {
            "i": s["i"] + 1, "before": s["x"], "x": moved, "slope": slope, "value": value,
            "best": jnp.maximum(value, s["best"]), "best_x": jnp.where(keep, moved, s["best_x"]),
            "best_slope": jnp.where(along(better, x), slope, s["best_slope"]),
            "ups": s["ups"] + (value > s["value"]), "size": s["size"], "halved": s["halved"], "then": s["then"],
            "done": s["done"] | won, "cost": s["cost"] + 1,
        }  # fmt: skip
        new = _checked(new, marks[s["i"]])
        still = {key: jnp.where(along(s["done"], value), s[key], value) for key, value in new.items() if key != "i"}
        return {**still, "i": new["i"]}

    start = random_point(keys_of(seed, restart, rows), x, epsilon, norm, low, high)
    slope, (value, won) = slopes(start)
    none = jnp.zeros(x.shape[0], jnp.int32)
    state = {
        "i": 0, "before": start, "x": start, "slope": slope, "value": value, "best": value, "best_x": start,
        "best_slope": slope, "ups": none, "size": jnp.full(x.shape[0], 2 * epsilon, x.dtype), "halved": none < 0,
        "then": value, "done": won, "cost": none + 1,
    }  # fmt: skip
    end = jax.lax.while_loop(lambda s: (s["i"] < marks.shape[0]) & ~s["done"].all(), body, state)
    return end["best_x"], end["cost"]


def _checked(s: dict[str, Any], since: Any) -> dict[str, Any]:
    """At a checkpoint, `since` steps after the last one: halve the step where the loss grew too rarely, or where
    neither step nor best loss changed, and go on from the best point."""
    few = s["ups"] < _INCREASES * since
    stuck = ~s["halved"] & (s["best"] <= s["then"])
    here = since > 0
    halve = here & (few | stuck)
    back = along(halve, s["x"])
    return {
        **s,
        "size": jnp.where(halve, s["size"] / 2, s["size"]),
        "x": jnp.where(back, s["best_x"], s["x"]),
        "before": jnp.where(back, s["best_x"], s["before"]),
        "slope": jnp.where(back, s["best_slope"], s["slope"]),
        "value": jnp.where(halve, s["best"], s["value"]),
        "halved": jnp.where(here, halve, s["halved"]),
        "then": jnp.where(here, s["best"], s["then"]),
        "ups": jnp.where(here, 0, s["ups"]),
    }
