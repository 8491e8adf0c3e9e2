"""Checks for masked gradients: signs that attacks fail because gradients mislead, not because the model is robust.

Athalye, Carlini and Wagner, "Obfuscated Gradients Give a False Sense of Security", ICML 2018, arXiv 1802.00420, section
3.1; Carlini and others, "On Evaluating Adversarial Robustness", 2019, arXiv 1902.06705, section 4.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from cloud.audit.attacks.auto_pgd import auto_pgd
from cloud.audit.attacks.balls import drawn
from cloud.audit.attacks.fgsm import fgsm
from cloud.audit.attacks.losses import loss_of
from cloud.audit.attacks.pgd import pgd
from cloud.audit.attacks.results import Array, Norm, Task, inside
from cloud.audit.attacks.square import square
from cloud.audit.victim import Victim
from cloud.errors import AuditError

__all__ = ["Check", "masked_gradients"]

_NOISE = 0.02
"""A difference of rates up to this share of rows, and of one row, says nothing."""
_UNBOUNDED = 0.98
"""The least rate of an attack that may change the input into anything."""
_ZERO = 0.05
"""The greatest share of rows whose gradient may vanish."""


@dataclass(frozen=True)
class Check:
    """One sign. `fired`: it was seen, so the rates of white-box attacks are no measure of robustness."""

    name: str
    fired: bool
    found: float
    """The figure that is judged, a share of rows."""
    limit: float
    """The other figure, or the limit, that it is held against."""
    text: str
    """What was seen, in a sentence."""


def masked_gradients(
    victim: Victim, x: Array, labels: Array, *, epsilon: float, norm: Norm = "Linf",
    clip: tuple[float, float] = (0.0, 1.0), steps: int = 40, questions: int = 1000, samples: int = 200, seed: int = 0,
    batch: int = 256,
) -> tuple[Check, ...]:  # fmt: skip
    """Five checks on rows that the model has right. steps: of iterative attacks. questions: rows that the Square attack
    may ask for; samples: random points a row.

    Raises AuditError for a victim without gradients, for settings that do not fit, and if the model has no row right.
    """
    white = victim.white()
    task = Task.of(victim, x, labels, targeted=False, clip=clip, norm=norm, epsilon=epsilon)
    if steps < 1 or questions < 1 or samples < 1:
        raise AuditError(f"expected at least 1 step, question and sample, got {steps}, {questions} and {samples}")
    right = ~task.reached(task.x)
    if not right.any():
        raise AuditError(f"{victim.name}: expected rows that the model has right, got none; check labels and scaling")
    x, labels = task.x[right], task.labels[right]
    common: dict[str, Any] = {"norm": norm, "clip": clip, "batch": batch}
    drawn = {**common, "seed": seed}
    one = fgsm(victim, x, labels, epsilon=epsilon, **common).success
    many = pgd(victim, x, labels, epsilon=epsilon, steps=steps, **drawn).success
    auto = auto_pgd(victim, x, labels, epsilon=epsilon, steps=steps, **drawn).success
    blind = square(victim, x, labels, epsilon=epsilon, steps=questions, **drawn).success
    # The distance of opposite corners of the range: everything is within it.
    corner = (clip[1] - clip[0]) * (1.0 if norm == "Linf" else float(np.sqrt(x[0].size)))
    free = pgd(victim, x, labels, epsilon=corner, steps=2 * steps, restarts=2, **drawn).success
    by_chance = _random_points(victim, x, labels, epsilon, clip, norm, samples, seed)
    _, slopes = white.gradient(loss_of("ce", False, victim.classes), x, labels)
    zero = float((np.abs(slopes).reshape(len(x), -1).max(1) < 1e-12).mean())
    noise = max(_NOISE, 1.5 / len(x))
    best = many | auto
    unbounded = float(free.mean())
    return (
        _compared("one step", "one step", one, "many steps", many, noise),
        _compared("black box", "the Square attack", blind & ~best, "no attack by gradients", None, noise),
        Check(
            "unbounded", unbounded < _UNBOUNDED, unbounded, _UNBOUNDED,
            f"an attack without a bound succeeds on {unbounded:.1%}; at least {_UNBOUNDED:.0%} is expected",
        ),
        _compared("random search", "random points", by_chance & ~best, "no attack by gradients", None, noise),
        Check(
            "zero gradients", zero > _ZERO, zero, _ZERO,
            f"the gradient of the cross-entropy is zero on {zero:.1%}; up to {_ZERO:.0%} may be chance",
        ),
    )  # fmt: skip


def _compared(name: str, weak: str, found: Array, strong: str, other: Array | None, noise: float) -> Check:
    """Fires if the attack that should be the weaker succeeds on more rows."""
    rate, limit = float(found.mean()), (0.0 if other is None else float(other.mean())) + noise
    beside = f"where {strong} does" if other is None else f"beside {float(other.mean()):.1%} by {strong}"
    return Check(name, rate > limit, rate, limit, f"success on {rate:.1%} of rows by {weak}, {beside}")


def _random_points(
    victim: Victim, x: Array, labels: Array, epsilon: float, clip: tuple[float, float], norm: Norm, samples: int,
    seed: int,
) -> Array:  # fmt: skip
    """(rows,) whether one of `samples` random points at distance epsilon has another class: corners in Linf, uniform
    directions in L2."""
    task = Task.of(victim, x, labels, targeted=False, clip=clip, norm=norm, epsilon=epsilon)
    won = np.zeros(len(x), np.bool_)
    for sample in range(samples):
        rows = np.flatnonzero(~won)
        if not len(rows):
            break
        noise = np.stack([one.standard_normal(x.shape[1:]) for one in drawn(seed, sample, rows)])
        far = np.sqrt((noise.reshape(len(rows), -1) ** 2).sum(1)).reshape(-1, *[1] * (x.ndim - 1))
        moved = x[rows] + np.float32(epsilon) * (np.sign(noise) if norm == "Linf" else noise / far)
        won[rows] = task.reached(inside(x[rows], moved.astype(np.float32), task), rows)
    return won
