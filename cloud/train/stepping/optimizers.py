"""Helpers over optax: the usual recipe for convolutional networks."""

from __future__ import annotations

from typing import Any

import jax
import optax

__all__ = ["cosine_schedule", "decay_mask", "momentum_sgd"]


def cosine_schedule(peak: float, steps: int, *, warmup: int = 0, end: float = 0.0) -> optax.Schedule:
    """Linear from 0 to `peak` in `warmup` steps, then half a cosine down to `end` at step `steps`."""
    if warmup == 0:
        return optax.schedules.cosine_decay_schedule(peak, max(steps, 1), alpha=end / peak if peak else 0.0)
    return optax.schedules.warmup_cosine_decay_schedule(0.0, peak, warmup, max(steps, warmup + 1), end)


def decay_mask(params: Any) -> Any:
    """True for arrays with weight decay: those of rank 2 and up, so neither biases nor normalisation scales."""
    return jax.tree.map(lambda array: array.ndim >= 2, params)


def momentum_sgd(
    rate: float | optax.Schedule, *, momentum: float = 0.9, nesterov: bool = True, weight_decay: float = 0.0
) -> optax.GradientTransformation:
    """SGD with momentum; `weight_decay` is added to the gradient (L2) of the arrays that `decay_mask` selects."""
    return optax.chain(
        optax.add_decayed_weights(weight_decay, mask=decay_mask),
        optax.sgd(rate, momentum=momentum, nesterov=nesterov),
    )
