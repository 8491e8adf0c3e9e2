"""Losses and metrics by name: (model output, labels) -> one float an example, [batch]."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import optax

__all__ = ["LOSSES", "METRICS", "PerExample", "smoothed_cross_entropy"]

PerExample: TypeAlias = Callable[[Any, Any], Any]


def _softmax_cross_entropy(logits: Any, labels: Any) -> Any:
    """Integer class labels [batch], or probabilities shaped like the logits."""
    if labels.ndim == logits.ndim:
        return optax.losses.softmax_cross_entropy(logits, labels)
    return optax.losses.softmax_cross_entropy_with_integer_labels(logits, labels)


def smoothed_cross_entropy(share: float) -> PerExample:
    """Softmax cross-entropy against labels that give `share` of their weight evenly to all classes.

    Logits stay small and the network less sure of itself, which helps on small data. The loss cannot reach zero.
    """

    def loss(logits: Any, labels: Any) -> Any:
        hot = jax.nn.one_hot(labels, logits.shape[-1], dtype=logits.dtype)
        return optax.losses.softmax_cross_entropy(logits, optax.smooth_labels(hot, share))

    return loss


def _mean_squared_error(output: Any, target: Any) -> Any:
    return jnp.mean(jnp.square(output - target), axis=tuple(range(1, output.ndim)))


def _accuracy(logits: Any, labels: Any) -> Any:
    wanted = jnp.argmax(labels, axis=-1) if labels.ndim == logits.ndim else labels
    return (jnp.argmax(logits, axis=-1) == wanted).astype(jnp.float32)


LOSSES: Mapping[str, PerExample] = MappingProxyType(
    {"softmax_cross_entropy": _softmax_cross_entropy, "mean_squared_error": _mean_squared_error}
)
METRICS: Mapping[str, PerExample] = MappingProxyType({"accuracy": _accuracy})
