"""DeepFool: steps to the nearest boundary of the linearised model.

Moosavi-Dezfooli, Fawzi and Frossard, "DeepFool: a simple and accurate method to fool deep neural networks", CVPR 2016,
arXiv 1511.04599, algorithm 2. In contrast to the paper, every iterate is kept within the range.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from cloud.audit.attacks.balls import along
from cloud.audit.attacks.results import Array, Attacked, Found, Task
from cloud.audit.attacks.walking import State, walk
from cloud.audit.victim import Victim, WhiteBox
from cloud.errors import AuditError

__all__ = ["deepfool", "nearest_classes"]


def deepfool(
    victim: Victim, x: Array, labels: Array, *, steps: int = 50, overshoot: float = 0.02, classes: int = 10,
    clip: tuple[float, float] = (0.0, 1.0), batch: int = 256,
) -> Attacked:  # fmt: skip
    """A near example in L2, untargeted. Deterministic.

    x: (rows, ...) float32 within `clip`. labels: (rows,) true classes. overshoot: by what share the change is longer
    than the linear model needs. classes: how many of the best other classes are tried in every step. One step counts as
    one query, though it computes the gradients of all these classes. Raises AuditError for a victim without gradients
    and for settings that do not fit.
    """
    white = victim.white()
    task = Task.of(victim, x, labels, targeted=False, clip=clip, norm="L2")
    if steps < 1 or classes < 1 or not overshoot >= 0:
        raise AuditError(
            f"expected at least 1 step and class and an overshoot from 0, got {steps}, {classes} and {overshoot}"
        )
    most = min(classes, victim.classes - 1)

    def step_of(i: int, s: State) -> None:
        scores, pull = white.linearised(s["found"])
        if i == 0:
            s["directions"] = _directions(scores, s["labels"], most)[0].swapaxes(0, 1)
        s["done"] = s["done"] | (scores.argmax(1) != s["labels"])
        s["cost"] += ~s["done"]
        if s["done"].all():
            return
        gaps, squares, slopes = _linear(scores, pull, s["directions"].swapaxes(0, 1))
        nearest, pick = (gaps / np.sqrt(squares)).argmin(0), np.arange(len(scores))
        share = (gaps[nearest, pick] + np.float32(1e-4)) / squares[nearest, pick]
        open_ = along(~s["done"], s["found"])
        s["total"] = s["total"] + open_ * along(share, s["found"]) * slopes[nearest, pick]
        moved = np.clip(s["x"] + np.float32(1 + overshoot) * s["total"], np.float32(task.low), np.float32(task.high))
        s["found"] = np.where(open_, moved, s["found"])

    def attack(x: Array, rows: Array, restart: int) -> Found:
        none = np.zeros(len(x), np.int64)
        state = {
            "x": x,
            "found": x,
            "labels": task.labels[rows],
            "total": np.zeros_like(x),
            "done": none > 0,
            "cost": none,
        }
        return walk(state, steps, step_of, victim.any_size)

    return task.search(attack, 1, batch)


def _directions(scores: Array, labels: Array, classes: int) -> tuple[Array, Array]:
    """For each of the best other classes, what to add to scores so that it gains on the label's: (classes, rows, all
    classes) float32. And which classes these are: (classes, rows)."""
    places = np.arange(scores.shape[1])
    own = places == labels[:, None]
    others = np.where(own, np.inf, -scores).argsort(1, kind="stable")[:, :classes].T
    return np.asarray(places == others[..., None], np.float32) - own, others


def _linear(scores: Array, pull: Callable[[Array], Array], directions: Array) -> tuple[Array, Array, Array]:
    """By class, how far it is from the label's score, and the square and the value of its gradient."""
    slopes = np.stack([pull(direction) for direction in directions])  # (classes, rows, ...)
    flat = slopes.reshape(*slopes.shape[:2], -1)
    squares = np.einsum("crn,crn->cr", flat, flat)
    return np.abs((directions * scores).sum(2)), np.maximum(squares, np.float32(1e-20)), slopes


def nearest_classes(white: WhiteBox, x: Array, labels: Array, classes: int) -> Array:
    """(classes, rows): of the best `classes` other than the label, that with the nearest linear boundary first."""
    scores, pull = white.linearised(x)
    directions, others = _directions(scores, labels, classes)
    gaps, squares, _ = _linear(scores, pull, directions)
    return np.take_along_axis(others, (gaps / np.sqrt(squares)).argsort(0), 0)
