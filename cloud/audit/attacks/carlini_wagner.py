"""Carlini and Wagner's attack in L2.

"Towards Evaluating the Robustness of Neural Networks", IEEE Symposium on Security and Privacy 2017, arXiv 1608.04644,
section VI-A: Adam over the arc tangent of the input, and a binary search for the weight of the misclassification.
Untargeted, the nearest classes are targets in turn (the paper's best case, which tries all).
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cloud.audit.attacks.balls import along
from cloud.audit.attacks.deepfool import nearest_classes
from cloud.audit.attacks.losses import margin
from cloud.audit.attacks.results import Array, Attacked, Found, Task
from cloud.audit.victim import Forward, Victim
from cloud.errors import AuditError

__all__ = ["carlini_wagner"]

_EDGE = 0.99
"""Inputs at the ends of the range have no finite arc tangent: the search starts within this share of the range. With
the authors' 0.999999, Adam needs thousands of steps to leave the ends, where most pixels of digits are."""
_CANDIDATES = 10
"""Untargeted: of so many classes with the best scores, those with the nearest linear boundaries are tried."""
_FIRST, _SECOND = 0.9, 0.999
"""The decay of Adam's two moments."""


def carlini_wagner(
    victim: Victim, x: Array, labels: Array, *, steps: int = 200, searches: int = 6, rate: float = 0.05,
    weight: float = 1.0, confidence: float = 0.0, classes: int = 3, targeted: bool = False,
    clip: tuple[float, float] = (0.0, 1.0), batch: int = 256,
) -> Attacked:  # fmt: skip
    """The nearest example in L2 that minimises distance² + weight * max(margin, -confidence). Deterministic.

    x: (rows, ...) float32 within `clip`. labels: (rows,) true classes or, if targeted, those wanted. steps: of Adam
    with `rate`, in each of `searches` for the weight, which begin with `weight`. confidence: the margin of scores that
    is asked for. classes: how many targets an untargeted attack tries. Raises AuditError for a victim without gradients
    and for settings that do not fit.
    """
    white = victim.white()
    task = Task.of(victim, x, labels, targeted=targeted, clip=clip, norm="L2")
    if min(steps, searches, classes) < 1 or not rate > 0 or not weight > 0 or not confidence >= 0:
        raise AuditError(
            "expected at least 1 step, search and class, a rate and a weight above 0 and a confidence from 0, got "
            f"{steps}, {searches}, {classes}, {rate}, {weight} and {confidence}"
        )
    run = white.compiled(_run)
    order = white.compiled(nearest_classes, classes=min(_CANDIDATES, victim.classes - 1))

    def attack(x: Array, rows: Array, restart: int) -> Found:
        labels = task.labels[rows]
        targets = labels[None] if targeted else np.asarray(order(x, labels))[:classes]
        best, nearest = x, np.full(len(x), np.inf, np.float32)
        for target in targets:
            found, far = map(np.asarray, run(x, target, steps, searches, rate, weight, confidence, task.low, task.high))
            better = far < nearest
            best, nearest = np.where(along(better, x), found, best), np.where(better, far, nearest)
        cost = len(targets) * steps * searches + (not targeted)
        victim.counted(len(x) * cost)
        return best, np.full(len(x), cost, np.int64)

    return task.search(attack, 1, batch)


def _run(
    forward: Forward, x: Any, labels: Any, steps: Any, searches: Any, rate: Any, weight: Any, confidence: Any,
    low: Any, high: Any,
) -> tuple[Any, Any]:  # fmt: skip
    """The nearest inputs of the classes `labels`, and their squared distances; `x` and infinity where none is."""
    middle, half = (high + low) / 2, (high - low) / 2
    start = jnp.arctanh(jnp.clip((x - middle) / half, -1, 1) * _EDGE)

    def at(w: Any) -> Any:
        return middle + half * jnp.tanh(w)

    def total(w: Any, weights: Any) -> tuple[Any, Any]:
        moved = at(w)
        scores = forward(moved)
        lead = margin(scores, labels)  # above 0: another class is ahead
        far = ((moved - x).reshape(x.shape[0], -1) ** 2).sum(1)
        won = (scores.argmax(1) == labels) & (lead <= -confidence)
        return (far + weights * jnp.maximum(lead, -confidence)).sum(), (moved, far, won)

    slopes = jax.grad(total, has_aux=True)

    def step(i: Any, s: tuple[Any, ...]) -> tuple[Any, ...]:
        w, first, second, weights, best, nearest, ever = s
        slope, (moved, far, won) = slopes(w, weights)
        better = won & (far < nearest)
        best, nearest = jnp.where(along(better, x), moved, best), jnp.where(better, far, nearest)
        first = _FIRST * first + (1 - _FIRST) * slope
        second = _SECOND * second + (1 - _SECOND) * slope**2
        by = (first / (1 - _FIRST ** (i + 1.0))) / (jnp.sqrt(second / (1 - _SECOND ** (i + 1.0))) + 1e-8)
        return w - rate * by, first, second, weights, best, nearest, ever | won

    def search(_: Any, s: tuple[Any, ...]) -> tuple[Any, ...]:
        weights, least, most, best, nearest = s
        zero = jnp.zeros_like(x)
        end = jax.lax.fori_loop(0, steps, step, (start, zero, zero, weights, best, nearest, weights < 0))
        _, _, _, _, best, nearest, ever = end
        most, least = jnp.where(ever, jnp.minimum(most, weights), most), jnp.where(ever, least, weights)
        weights = jnp.where(jnp.isfinite(most), (least + most) / 2, weights * 10)
        return weights, least, most, best, nearest

    rows = jnp.ones(x.shape[0], x.dtype)
    state = (weight * rows, 0 * rows, jnp.inf * rows, x, jnp.inf * rows)
    end = jax.lax.fori_loop(0, searches, search, state)
    return end[3], end[4]
