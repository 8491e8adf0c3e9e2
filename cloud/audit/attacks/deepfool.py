"""DeepFool: steps to the nearest boundary of the linearised model.

Moosavi-Dezfooli, Fawzi and Frossard, "DeepFool: a simple and accurate method to fool deep neural networks", CVPR 2016,
arXiv 1511.04599, algorithm 2. In contrast to the paper, every iterate is kept within the range.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from cloud.audit.attacks.balls import along
from cloud.audit.attacks.results import Array, Attacked, Found, Task
from cloud.audit.victim import Forward, Victim
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
    run = white.compiled(_run, classes=min(classes, victim.classes - 1))

    def attack(x: Array, rows: Array, restart: int) -> Found:
        return task.counted(*run(x, task.labels[rows], steps, overshoot, task.low, task.high))

    return task.search(attack, 1, batch)


def _run(
    forward: Forward, x: Any, labels: Any, steps: Any, overshoot: Any, low: Any, high: Any, *, classes: int
) -> tuple[Any, Any]:
    """Found inputs and rows asked for."""
    directions, _ = _directions(forward(x), labels, classes)

    def body(s: tuple[Any, Any, Any, Any, Any]) -> tuple[Any, Any, Any, Any, Any]:
        i, moved, total, done, cost = s
        scores, gaps, squares, slopes = _linear(forward, moved, directions)
        done = done | (scores.argmax(1) != labels)
        nearest = (gaps / jnp.sqrt(squares)).argmin(0)
        pick = jnp.arange(x.shape[0])
        gap, square = gaps[nearest, pick], squares[nearest, pick]
        further = total + along((gap + 1e-4) / square, x) * slopes[nearest, pick]
        total = jnp.where(along(done, x), total, further)
        moved = jnp.where(along(done, x), moved, jnp.clip(x + (1 + overshoot) * total, low, high))
        return i + 1, moved, total, done, cost + ~done

    none = jnp.zeros(x.shape[0], jnp.int32)
    state = (0, x, jnp.zeros_like(x), none > 0, none)
    _, found, _, _, cost = jax.lax.while_loop(lambda s: (s[0] < steps) & ~s[3].all(), body, state)
    return found, cost + 1


def _directions(scores: Any, labels: Any, classes: int) -> tuple[Any, Any]:
    """For each of the best other classes, what to add to scores so that it gains on the label's: (classes, rows, all
    classes). And which classes these are: (classes, rows)."""
    own = jax.nn.one_hot(labels, scores.shape[1], dtype=scores.dtype)
    others = jax.lax.top_k(jnp.where(own > 0, -jnp.inf, scores), classes)[1].T
    return jax.nn.one_hot(others, scores.shape[1], dtype=scores.dtype) - own, others


def _linear(forward: Forward, x: Any, directions: Any) -> tuple[Any, Any, Any, Any]:
    """Scores; and by class how far it is from the label's score, and the square and the value of its gradient."""
    scores, back = jax.vjp(forward, x)
    slopes = jax.vmap(lambda direction: back(direction)[0])(directions)  # (classes, rows, ...)
    squares = (slopes.reshape(*slopes.shape[:2], -1) ** 2).sum(2)
    return scores, jnp.abs((directions * scores).sum(2)), jnp.maximum(squares, 1e-20), slopes


def nearest_classes(forward: Forward, x: Any, labels: Any, *, classes: int) -> Any:
    """(classes, rows): of the best `classes` other than the label, that with the nearest linear boundary first."""
    directions, others = _directions(forward(x), labels, classes)
    _, gaps, squares, _ = _linear(forward, x, directions)
    return jnp.take_along_axis(others, (gaps / jnp.sqrt(squares)).argsort(0), 0)
