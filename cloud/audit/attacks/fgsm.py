"""The fast gradient sign method.

Goodfellow, Shlens and Szegedy, "Explaining and Harnessing Adversarial Examples", ICLR 2015, arXiv 1412.6572. In L2 the
step goes along the gradient itself.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from cloud.audit.attacks.balls import project, uphill
from cloud.audit.attacks.losses import Loss, LossName, loss_of
from cloud.audit.attacks.results import Array, Attacked, Found, Norm, Task
from cloud.audit.victim import Forward, Victim

__all__ = ["fgsm"]


def fgsm(
    victim: Victim, x: Array, labels: Array, *, epsilon: float, norm: Norm = "Linf", targeted: bool = False,
    clip: tuple[float, float] = (0.0, 1.0), loss: LossName = "ce", batch: int = 256,
) -> Attacked:  # fmt: skip
    """One step of length epsilon up the gradient of the loss. Deterministic.

    x: (rows, ...) float32 within `clip`. labels: (rows,) true classes or, if targeted, those wanted. Raises AuditError
    for a victim without gradients and for settings that do not fit.
    """
    white = victim.white()
    task = Task.of(victim, x, labels, targeted=targeted, clip=clip, norm=norm, epsilon=epsilon)
    step = white.compiled(_step, loss=loss_of(loss, targeted, victim.classes), norm=norm)

    def attack(x: Array, rows: Array, restart: int) -> Found:
        victim.counted(len(x))
        found = step(x, task.labels[rows], task.epsilon, task.low, task.high)
        return np.asarray(found), np.ones(len(x), np.int64)

    return task.search(attack, 1, batch)


def _step(forward: Forward, x: Any, labels: Any, epsilon: Any, low: Any, high: Any, *, loss: Loss, norm: str) -> Any:
    slope = jax.grad(lambda x: loss(forward(x), labels).sum())(x)
    return project(x, x + epsilon * uphill(slope, norm), epsilon, norm, low, high)
