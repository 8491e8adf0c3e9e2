"""Projected gradient descent from random starts.

Madry, Makelov, Schmidt, Tsipras and Vladu, "Towards Deep Learning Models Resistant to Adversarial Attacks", ICLR 2018,
arXiv 1706.06083. Stronger than the paper's in one thing: the first iterate that succeeds is kept, not the last.
"""

from __future__ import annotations

import numpy as np

from cloud.audit.attacks.balls import along, project, random_point, uphill
from cloud.audit.attacks.losses import LossName, loss_of
from cloud.audit.attacks.results import Array, Attacked, Found, Norm, Task
from cloud.audit.attacks.walking import State, walk
from cloud.audit.victim import Victim
from cloud.errors import AuditError

__all__ = ["pgd"]


def pgd(
    victim: Victim, x: Array, labels: Array, *, epsilon: float, norm: Norm = "Linf", steps: int = 40,
    step: float | None = None, targeted: bool = False, clip: tuple[float, float] = (0.0, 1.0), loss: LossName = "ce",
    restarts: int = 1, seed: int = 0, batch: int = 256,
) -> Attacked:  # fmt: skip
    """Steps of length `step` up the gradient of the loss, each followed by a projection to the ball.

    x: (rows, ...) float32 within `clip`. labels: (rows,) true classes or, if targeted, those wanted. step: by default
    2.5 * epsilon / steps, as in the paper. The first start is the input itself, later restarts are uniform in the ball.
    Raises AuditError for a victim without gradients and for settings that do not fit.
    """
    white = victim.white()
    task = Task.of(victim, x, labels, targeted=targeted, clip=clip, norm=norm, epsilon=epsilon)
    if steps < 1 or (step is not None and not step > 0):
        raise AuditError(f"expected at least 1 step of a length above 0, got {steps} of {step}")
    size = 2.5 * epsilon / steps if step is None else step
    losses = loss_of(loss, targeted, victim.classes)

    def step_of(_: int, s: State) -> None:
        scores, pull = white.linearised(s["found"])
        s["cost"] += ~s["done"]
        s["done"] |= (scores.argmax(1) == s["labels"]) == targeted
        if not s["done"].all():
            slope = pull(losses(scores, s["labels"])[1])
            moved = s["found"] + np.float32(size) * uphill(slope, norm)
            moved = project(s["x"], moved, epsilon, norm, task.low, task.high)
            s["found"] = np.where(along(s["done"], moved), s["found"], moved)

    def attack(x: Array, rows: Array, restart: int) -> Found:
        start = random_point(seed, restart, rows, x, epsilon, norm, task.low, task.high) if restart else x
        state = {"x": x, "found": start, "labels": task.labels[rows], "done": np.zeros(len(x), np.bool_),
                 "cost": np.zeros(len(x), np.int64)}  # fmt: skip
        return walk(state, steps, step_of, victim.any_size)

    return task.search(attack, restarts, batch)
