"""Carlini and Wagner's attack in L2.

"Towards Evaluating the Robustness of Neural Networks", IEEE Symposium on Security and Privacy 2017, arXiv 1608.04644,
section VI-A: Adam over the arc tangent of the input, and a binary search for the weight of the misclassification.
Untargeted, the nearest classes are targets in turn (the paper's best case, which tries all).
"""

from __future__ import annotations

import numpy as np

from cloud.audit.attacks.balls import along
from cloud.audit.attacks.deepfool import nearest_classes
from cloud.audit.attacks.losses import margin
from cloud.audit.attacks.results import Array, Attacked, Found, Task
from cloud.audit.victim import Victim, WhiteBox
from cloud.errors import AuditError

__all__ = ["carlini_wagner"]

_EDGE = 0.99
"""Inputs at the ends of the range have no finite arc tangent: the search starts within this share of the range. With
the authors' 0.999999, Adam needs thousands of steps to leave the ends, where most pixels of digits are."""
_INSIDE = 0.9999
"""The same for examples that searches begin with, which are to stay where they are."""
_CANDIDATES = 10
"""Untargeted: of so many classes with the best scores, those with the nearest linear boundaries are tried."""
_FIRST, _SECOND = 0.9, 0.999
"""The decay of Adam's two moments."""
_HALVINGS = 8
"""Of the line from the input to the example that was found, where it ends nearer at the same answer."""


def carlini_wagner(
    victim: Victim, x: Array, labels: Array, *, steps: int = 200, searches: int = 6, rate: float = 0.05,
    weight: float = 1.0, confidence: float = 0.0, classes: int = 3, targeted: bool = False,
    clip: tuple[float, float] = (0.0, 1.0), batch: int = 256,
) -> Attacked:  # fmt: skip
    """The nearest example in L2 that minimises distance² + weight * max(margin, -confidence). Deterministic.

    x: (rows, ...) float32 within `clip`. labels: (rows,) true classes or, if targeted, those wanted. steps: of Adam
    with `rate`, which falls to 0, in each of `searches` for the weight, which begin with `weight`: at x, and once an
    example is found, at the nearest so far. confidence: the margin of scores that is asked for. classes: how many
    targets an untargeted attack tries. Raises AuditError for a victim without gradients and for settings that do not
    fit.
    """
    white = victim.white()
    task = Task.of(victim, x, labels, targeted=targeted, clip=clip, norm="L2")
    if min(steps, searches, classes) < 1 or not rate > 0 or not weight > 0 or not confidence >= 0:
        raise AuditError(
            "expected at least 1 step, search and class, a rate and a weight above 0 and a confidence from 0, got "
            f"{steps}, {searches}, {classes}, {rate}, {weight} and {confidence}"
        )
    most = min(_CANDIDATES, victim.classes - 1)

    def attack(x: Array, rows: Array, restart: int) -> Found:
        labels = task.labels[rows]
        targets = labels[None] if targeted else nearest_classes(white, x, labels, most)[:classes]
        best, nearest = x, np.full(len(x), np.inf, np.float32)
        for target in targets:
            found, far = _nearest(white, task, x, target, steps, searches, rate, weight, confidence)
            better = far < nearest
            best, nearest = np.where(along(better, x), found, best), np.where(better, far, nearest)
        return best, np.full(len(x), len(targets) * (steps * searches + _HALVINGS) + (not targeted), np.int64)

    return task.search(attack, 1, batch)


def _nearest(
    white: WhiteBox, task: Task, x: Array, labels: Array, steps: int, searches: int, rate: float, weight: float,
    confidence: float,
) -> tuple[Array, Array]:  # fmt: skip
    """The nearest inputs of the classes `labels`, and their squared distances; `x` and infinity where none is."""
    middle, half = np.float32((task.high + task.low) / 2), np.float32((task.high - task.low) / 2)
    start = _turned((x - middle) / half, _EDGE)
    weights, least = np.full(len(x), weight, np.float32), np.zeros(len(x), np.float32)
    best, nearest, most = x.copy(), np.full(len(x), np.inf, np.float32), np.full(len(x), np.inf, np.float32)
    for _ in range(searches):
        had = along(np.isfinite(nearest), x)
        w = np.where(had, _turned((best - middle) / half, _INSIDE), start)
        first, second = np.zeros_like(x), np.zeros_like(x)
        ever = np.zeros(len(x), np.bool_)
        for i in range(1, steps + 1):
            bent = np.tanh(w)
            moved = middle + half * bent
            scores, pull = white.linearised(moved)
            lead, of_lead = margin(scores, labels)  # above 0: another class is ahead
            delta = moved - x
            far = np.einsum("ij,ij->i", delta.reshape(len(x), -1), delta.reshape(len(x), -1))
            won = (scores.argmax(1) == labels) & (lead <= -confidence)
            better, ever = won & (far < nearest), ever | won
            best[better], nearest[better] = moved[better], far[better]
            slope = 2 * delta + pull(of_lead * (weights * (lead > -confidence))[:, None])
            slope *= half * (1 - bent**2)
            first += np.float32(1 - _FIRST) * (slope - first)
            second += np.float32(1 - _SECOND) * (slope**2 - second)
            size = rate * np.minimum(1, np.where(had, 1, 3) * (1 - (i - 1) / steps)) / (1 - _FIRST**i)
            w -= size.astype(np.float32) * first / (np.sqrt(second / np.float32(1 - _SECOND**i)) + np.float32(1e-8))
        most, least = np.where(ever, np.minimum(most, weights), most), np.where(ever, least, weights)
        weights = np.where(np.isfinite(most), (least + np.where(np.isfinite(most), most, 0)) / 2, weights * 10)
    return _nearer(white, x, best, nearest, labels, confidence)


def _turned(share: Array, most: float) -> Array:
    """The arc tangent of shares of the range, -1 to 1, that end at `most` of it."""
    return np.arctanh(np.clip(share, -1, 1) * np.float32(most))


def _nearer(
    white: WhiteBox, x: Array, best: Array, nearest: Array, labels: Array, confidence: float
) -> tuple[Array, Array]:
    """The nearest inputs on the lines from x to `best` that have what `best` has, and their squared distances."""
    low, high = np.zeros(len(x), np.float32), np.ones(len(x), np.float32)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        scores = white.logits(x + along(middle, x) * (best - x))
        won = (scores.argmax(1) == labels) & (margin(scores, labels)[0] <= -confidence)
        low, high = np.where(won, low, middle), np.where(won, middle, high)
    return x + along(high, x) * (best - x), nearest * high**2
