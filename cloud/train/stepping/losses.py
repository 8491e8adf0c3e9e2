"""Losses and metrics by name: (model output, labels) -> one float per example, [batch]."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import optax

__all__ = ["LOSSES", "METRICS", "PerExample", "is_of_classes", "smoothed_cross_entropy"]

PerExample: TypeAlias = Callable[[Any, Any], Any]


def _softmax_cross_entropy(logits: Any, labels: Any) -> Any:
    """Integer class labels [batch], or probabilities shaped like the logits. For sequences [batch, length, classes]
    with labels [batch, length]: the mean over the sequence."""
    if labels.ndim == logits.ndim:
        return _by_row(optax.losses.softmax_cross_entropy(logits, labels))
    return _by_row(optax.losses.softmax_cross_entropy_with_integer_labels(logits, labels))


def _by_row(values: Any) -> Any:
    """The mean over all dimensions but the first."""
    return values if values.ndim == 1 else jnp.mean(values, axis=tuple(range(1, values.ndim)))


def smoothed_cross_entropy(share: float) -> PerExample:
    """Softmax cross-entropy against labels that give `share` of their weight evenly to all classes.

    Logits stay small and predictions less confident, which helps on small data. The loss cannot reach zero.
    """

    def loss(logits: Any, labels: Any) -> Any:
        hot = jax.nn.one_hot(labels, logits.shape[-1], dtype=logits.dtype)
        return optax.losses.softmax_cross_entropy(logits, optax.smooth_labels(hot, share))

    setattr(loss, _OF_CLASSES, True)
    return loss


_OF_CLASSES = "__of_classes__"
"""The attribute of a loss that its labels may be classes."""


def is_of_classes(loss: PerExample) -> bool:
    """Whether whole numbers as labels are classes for this loss."""
    return loss is _softmax_cross_entropy or getattr(loss, _OF_CLASSES, False)


def _mean_squared_error(output: Any, target: Any) -> Any:
    return _by_row(jnp.square(output - target))


def _mean_absolute_error(output: Any, target: Any) -> Any:
    return _by_row(jnp.abs(output - target))


def _huber(output: Any, target: Any) -> Any:
    """Half the square up to 1, linear beyond."""
    return _by_row(optax.losses.huber_loss(output, target))


def _sigmoid_cross_entropy(logits: Any, labels: Any) -> Any:
    """Each output is a separate binary decision; labels 0 to 1, shaped like the logits (their last 1 may be
    missing)."""
    labels = labels.reshape(logits.shape).astype(logits.dtype)
    return _by_row(optax.losses.sigmoid_binary_cross_entropy(logits, labels))


def _given(output: Any, labels: Any) -> Any:
    """The model's output is its loss, one per example: for models whose inputs include the targets."""
    del labels
    return _by_row(output)


def _accuracy(logits: Any, labels: Any) -> Any:
    wanted = jnp.argmax(labels, axis=-1) if labels.ndim == logits.ndim else labels
    return _by_row((jnp.argmax(logits, axis=-1) == wanted).astype(jnp.float32))


def _top_5_accuracy(logits: Any, labels: Any) -> Any:
    """Whether the label is among the five most likely classes."""
    _, likeliest = jax.lax.top_k(logits, min(5, logits.shape[-1]))
    return _by_row(jnp.any(likeliest == labels[..., None], axis=-1).astype(jnp.float32))


LOSSES: Mapping[str, PerExample] = MappingProxyType(
    {
        "softmax_cross_entropy": _softmax_cross_entropy,
        "sigmoid_cross_entropy": _sigmoid_cross_entropy,
        "mean_squared_error": _mean_squared_error,
        "mean_absolute_error": _mean_absolute_error,
        "huber": _huber,
        "given": _given,
    }
)
METRICS: Mapping[str, PerExample] = MappingProxyType(
    {"accuracy": _accuracy, "top_5_accuracy": _top_5_accuracy, "mean_absolute_error": _mean_absolute_error}
)
