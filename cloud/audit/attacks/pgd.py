"""Projected gradient descent from random starts.

Madry, Makelov, Schmidt, Tsipras and Vladu, "Towards Deep Learning Models Resistant to Adversarial Attacks", ICLR 2018,
arXiv 1706.06083. Stronger than the paper's in one thing: the first iterate that succeeds is kept, not the last.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from cloud.audit.attacks.balls import along, keys_of, project, random_point, uphill
from cloud.audit.attacks.losses import Loss, LossName, loss_of
from cloud.audit.attacks.results import Array, Attacked, Found, Norm, Task
from cloud.audit.victim import Forward, Victim
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
    run = white.compiled(_run, loss=loss_of(loss, targeted, victim.classes), norm=norm, targeted=targeted)

    def attack(x: Array, rows: Array, restart: int) -> Found:
        given = (x, task.labels[rows], rows, seed, restart, steps, task.epsilon, size, task.low, task.high)
        return task.counted(*run(*given))

    return task.search(attack, restarts, batch)


def _run(
    forward: Forward, x: Any, labels: Any, rows: Any, seed: Any, restart: Any, steps: Any, epsilon: Any, size: Any,
    low: Any, high: Any, *, loss: Loss, norm: str, targeted: bool,
) -> tuple[Any, Any]:  # fmt: skip
    """Found inputs and rows asked for. Rows that have succeeded stay where they are."""

    def total(moved: Any) -> tuple[Any, Any]:
        scores = forward(moved)
        return loss(scores, labels).sum(), (scores.argmax(1) == labels) == targeted

    def body(state: tuple[Any, Any, Any, Any]) -> tuple[Any, Any, Any, Any]:
        i, moved, done, cost = state
        slope, won = jax.grad(total, has_aux=True)(moved)
        done, cost = done | won, cost + ~done
        further = project(x, moved + size * uphill(slope, norm), epsilon, norm, low, high)
        return i + 1, jnp.where(along(done, x), moved, further), done, cost

    noisy = random_point(keys_of(seed, restart, rows), x, epsilon, norm, low, high)
    start = jnp.where(restart == 0, x, noisy)
    none = jnp.zeros(x.shape[0], jnp.int32)
    state = (0, start, none > 0, none)
    _, found, _, cost = jax.lax.while_loop(lambda s: (s[0] < steps) & ~s[2].all(), body, state)
    return found, cost
