"""Losses and metrics by name: (model output, labels) -> one float per example, [batch]."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import optax

from cloud.errors import TrainError

__all__ = [
    "LOSSES", "METRICS", "PerExample", "are_decisions", "classified_loss", "decided_loss", "is_of_classes",
    "smoothed_cross_entropy", "top_accuracy",
]  # fmt: skip

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
    return classified_loss(smoothing=share)


def classified_loss(*, smoothing: float = 0.0, weights: Sequence[float] = (), focus: float = 0.0) -> PerExample:
    """Softmax cross-entropy with labels as `softmax_cross_entropy` takes them. `smoothing`: the share of a label that
    is spread evenly over all classes. `weights`: one for each class, by which a label's loss is multiplied; the loss is
    not divided by them. `focus`: gamma of the focal loss, -(1 - p)^gamma log p (Lin et al., "Focal Loss for Dense
    Object Detection", ICCV 2017), which leaves out what is already right. Raises TrainError for values out of range,
    and where it is used for another number of classes."""
    _check(smoothing, weights, focus)
    scale = np.asarray(weights, np.float32)

    def loss(logits: Any, labels: Any) -> Any:
        if len(scale) not in (0, logits.shape[-1]):
            raise ValueError(f"{len(scale)} class weights for {logits.shape[-1]} classes")
        hot = labels if labels.ndim == logits.ndim else jax.nn.one_hot(labels, logits.shape[-1], dtype=logits.dtype)
        chance = jax.nn.log_softmax(logits, axis=-1)
        if focus:
            chance = chance * _far(-jnp.expm1(chance), focus)
        if len(scale):
            hot = optax.smooth_labels(hot, smoothing) * jnp.sum(hot * scale, axis=-1, keepdims=True)
        elif smoothing:
            hot = optax.smooth_labels(hot, smoothing)
        return _by_row(-jnp.sum(hot * chance, axis=-1))

    setattr(loss, _OF_CLASSES, True)
    return loss


def decided_loss(*, smoothing: float = 0.0, weights: Sequence[float] = (), focus: float = 0.0) -> PerExample:
    """`sigmoid_cross_entropy` with the same changes: labels y become y (1 - smoothing) + smoothing / 2; `weights` are
    those of no and of yes. Raises TrainError for values out of range."""
    _check(smoothing, weights, focus)
    if len(weights) not in (0, 2):
        raise TrainError(f"expected two class weights, of no and of yes, for decisions, got {len(weights)}")
    no, yes = weights or (1.0, 1.0)

    def loss(logits: Any, labels: Any) -> Any:
        labels = labels.reshape(logits.shape).astype(logits.dtype)
        aim = labels * (1 - smoothing) + smoothing / 2
        right, wrong = jax.nn.log_sigmoid(logits), jax.nn.log_sigmoid(-logits)
        if focus:
            right, wrong = right * _far(-jnp.expm1(right), focus), wrong * _far(-jnp.expm1(wrong), focus)
        return _by_row(-(aim * right + (1 - aim) * wrong) * (labels * yes + (1 - labels) * no))

    setattr(loss, _OF_DECISIONS, True)
    return loss


def _far(share: Any, focus: float) -> Any:
    """(1 - p)^focus, with a finite slope where p is 1."""
    return jnp.maximum(share, 1e-12) ** focus


def _check(smoothing: float, weights: Sequence[float], focus: float) -> None:
    if not 0 <= smoothing < 1:
        raise TrainError(f"expected a share from 0 to below 1 to smooth labels by, got {smoothing}")
    if not 0 <= focus < 100:
        raise TrainError(f"expected a focus (gamma) from 0 to below 100, got {focus}")
    if not all(np.isfinite(weight) and weight >= 0 for weight in weights):
        raise TrainError(f"expected class weights of at least 0, got {list(weights)}")


_OF_CLASSES = "__of_classes__"
"""The attribute of a loss that its labels may be classes."""


_OF_DECISIONS = "__of_decisions__"
"""The attribute of a loss whose outputs are separate decisions, yes above 0."""


def is_of_classes(loss: PerExample) -> bool:
    """Whether whole numbers as labels are classes for this loss."""
    return loss is _softmax_cross_entropy or getattr(loss, _OF_CLASSES, False)


def are_decisions(loss: PerExample) -> bool:
    """Whether outputs are separate decisions for this loss."""
    return loss is _sigmoid_cross_entropy or getattr(loss, _OF_DECISIONS, False)


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


def top_accuracy(count: int) -> PerExample:
    """Whether the label is among the `count` most likely classes."""

    def metric(logits: Any, labels: Any) -> Any:
        _, likeliest = jax.lax.top_k(logits, min(count, logits.shape[-1]))
        return _by_row(jnp.any(likeliest == labels[..., None], axis=-1).astype(jnp.float32))

    return metric


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
    {"accuracy": _accuracy, "top_5_accuracy": top_accuracy(5), "mean_absolute_error": _mean_absolute_error}
)
