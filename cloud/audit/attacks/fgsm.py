"""The fast gradient sign method.

Goodfellow, Shlens and Szegedy, "Explaining and Harnessing Adversarial Examples", ICLR 2015, arXiv 1412.6572. In L2 the
step goes along the gradient itself.
"""

from __future__ import annotations

import numpy as np

from cloud.audit.attacks.balls import project, uphill
from cloud.audit.attacks.losses import LossName, loss_of
from cloud.audit.attacks.results import Array, Attacked, Found, Norm, Task
from cloud.audit.victim import Victim

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
    losses = loss_of(loss, targeted, victim.classes)

    def attack(x: Array, rows: Array, restart: int) -> Found:
        scores, pull = white.linearised(x)
        slope = pull(losses(scores, task.labels[rows])[1])
        moved = x + np.float32(epsilon) * uphill(slope, norm)
        return project(x, moved, epsilon, norm, task.low, task.high), np.ones(len(x), np.int64)

    return task.search(attack, 1, batch)
