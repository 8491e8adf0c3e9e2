"""Losses of class scores [N, C, d...] against labels [N, d...]."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from cloud.engine.lowering.registry import Tensor, lowering
from cloud.errors import EngineError

__all__: list[str] = []


def _reduced_nll(
    log_p: Tensor, labels: Tensor, weights: Tensor | None, ignore_index: int | None, reduction: str
) -> Tensor:
    if weights is None:
        weights = jnp.ones(log_p.shape[1], log_p.dtype)
    kept = jnp.ones(labels.shape, bool) if ignore_index is None else labels != ignore_index
    safe = jnp.where(kept, labels, 0)
    weight = jnp.where(kept, jnp.asarray(weights)[safe], 0)
    picked = jnp.take_along_axis(log_p, jnp.expand_dims(safe, 1), axis=1).squeeze(1)
    loss = -picked * weight
    if reduction == "none":
        return loss
    if reduction not in ("mean", "sum"):
        raise EngineError(f"expected a reduction of none, mean, sum, got {reduction!r}")
    return jnp.sum(loss) if reduction == "sum" else jnp.sum(loss) / jnp.sum(weight)


@lowering("NegativeLogLikelihoodLoss")
def negative_log_likelihood(
    log_p: Tensor, labels: Tensor, weights: Tensor | None = None,
    *, ignore_index: int | None = None, reduction: str = "mean",
) -> Tensor:  # fmt: skip
    return _reduced_nll(log_p, labels, weights, ignore_index, reduction)


@lowering("SoftmaxCrossEntropyLoss")
def softmax_cross_entropy(
    scores: Tensor, labels: Tensor, weights: Tensor | None = None,
    *, ignore_index: int | None = None, reduction: str = "mean",
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The loss, and the log-probabilities."""
    log_p = jax.nn.log_softmax(scores, axis=1)
    return _reduced_nll(log_p, labels, weights, ignore_index, reduction), log_p
