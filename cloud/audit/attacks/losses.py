"""Losses that attacks increase: of scores (rows, classes) and labels (rows,), values (rows,) and the gradient of their
sum with respect to the scores (rows, classes).

Untargeted, they grow as the class of the label loses; targeted, as it wins.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from cloud.errors import AuditError

__all__ = ["Loss", "LossName", "loss_of", "margin"]

Array: TypeAlias = npt.NDArray[Any]
Loss: TypeAlias = Callable[[Array, Array], tuple[Array, Array]]
LossName: TypeAlias = Literal["ce", "dlr", "margin"]


def _one_hot(labels: Array, scores: Array) -> Array:
    return np.asarray(np.arange(scores.shape[1]) == labels[:, None], np.float32)


def _at(scores: Array, classes: Array) -> Array:
    return np.take_along_axis(scores, classes[:, None], 1)[:, 0]


def margin(scores: Array, labels: Array) -> tuple[Array, Array]:
    """The best other class's score less the label's: above 0, the label has lost."""
    own = _one_hot(labels, scores)
    best = np.where(own > 0, -np.inf, scores).argmax(1)
    return _at(scores, best) - _at(scores, labels), _one_hot(best, scores) - own


def _ce(scores: Array, labels: Array) -> tuple[Array, Array]:
    shifted = scores - scores.max(1, keepdims=True)
    powers = np.exp(shifted)
    total = powers.sum(1, keepdims=True)
    return np.log(total)[:, 0] - _at(shifted, labels), powers / total - _one_hot(labels, scores)


def _ratio(scores: Array, labels: Array, width: Array, of_width: Array) -> tuple[Array, Array]:
    """Margin over a width, whose gradient is `of_width`."""
    value, slope = margin(scores, labels)
    width = width + np.float32(1e-12)
    return value / width, slope / width[:, None] - (value / width**2)[:, None] * of_width


def _dlr(scores: Array, labels: Array) -> tuple[Array, Array]:
    """Difference of logits ratio (Croce and Hein 2020, equation 6): margin over the distance of the first from the
    third score, so that neither shifts nor scales of the scores change it."""
    order = scores.argsort(1)
    of_width = _one_hot(order[:, -1], scores) - _one_hot(order[:, -3], scores)
    return _ratio(scores, labels, _at(scores, order[:, -1]) - _at(scores, order[:, -3]), of_width)


def _targeted_dlr(scores: Array, labels: Array) -> tuple[Array, Array]:
    """Equation 7 of the same, with the best class other than the target in the place of the true one, which an attack
    on a target is not told."""
    order = scores.argsort(1)
    third, fourth = (_one_hot(order[:, -place], scores) for place in (3, 4))
    of_width = _one_hot(order[:, -1], scores) - (third + fourth) / 2
    return _negative(*_ratio(scores, labels, (of_width * scores).sum(1), of_width))


def _negative(values: Array, slopes: Array) -> tuple[Array, Array]:
    return -values, -slopes


_LOSSES: dict[str, tuple[Loss, Loss, int]] = {
    "ce": (_ce, lambda scores, labels: _negative(*_ce(scores, labels)), 2),
    "dlr": (_dlr, _targeted_dlr, 3),
    "margin": (margin, lambda scores, labels: _negative(*margin(scores, labels)), 2),
}
"""Name -> (untargeted, targeted, the fewest classes of the untargeted one)."""


def loss_of(name: str, targeted: bool, classes: int) -> Loss:
    """The loss of a name. Raises AuditError for an unknown one and for too few classes."""
    if name not in _LOSSES:
        raise AuditError(f"expected a loss of {', '.join(_LOSSES)}, got {name!r}")
    plain, aimed, least = _LOSSES[name]
    least += name == "dlr" and targeted
    if classes < least:
        raise AuditError(f"loss {name}: expected at least {least} classes, got {classes}; use loss='ce'")
    return aimed if targeted else plain
