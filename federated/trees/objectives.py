"""Objectives: gradients and second derivatives of a loss by the scores (margins), as XGBoost defines them.

Chen & Guestrin, "XGBoost: A Scalable Tree Boosting System", KDD 2016, section 2.2.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import log

import numpy as np

from federated.errors import FederatedError
from federated.tree import Array

__all__ = ["OBJECTIVES", "Objective"]

SMALLEST = 1e-16
"""The least second derivative, as in XGBoost."""


@dataclass(frozen=True)
class Objective:
    """`of(scores float64 [n, targets], labels [n])`: gradients and second derivatives, float64 [n, targets] each, of
    magnitudes up to `slope` and `curvature` (`slope` None: as the labels' range allows). `to_score`: from base_score.
    `from_scores`: predictions. `parameters`: what XGBoost's model file says about it."""

    of: Callable[[Array, Array], tuple[Array, Array]]
    slope: float | None
    curvature: float
    to_score: Callable[[float], float]
    from_scores: Callable[[Array], Array]
    parameters: tuple[str, str, str]
    classifies: bool = True

    def classes_of(self, labels: Array, classes: int) -> Array:
        """The labels of a classifier as int64, checked. Raises FederatedError."""
        found = np.asarray(labels)
        if found.ndim != 1 or found.dtype.kind not in "fiub":
            raise FederatedError(f"trees: expected labels of shape [n], got {found.dtype} {list(found.shape)}")
        whole = found.astype(np.int64)
        if (whole != found).any() or whole.min(initial=0) < 0 or whole.max(initial=0) >= classes:
            raise FederatedError(f"trees: expected classes from 0 to {classes - 1} as labels")
        return whole


def _sigmoid(scores: Array) -> Array:
    return 1 / (1 + np.exp(-scores))


def _softmax(scores: Array) -> Array:
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def _logistic(scores: Array, labels: Array) -> tuple[Array, Array]:
    chance = _sigmoid(scores)
    return chance - labels[:, None], np.maximum(chance * (1 - chance), SMALLEST)


def _squared(scores: Array, labels: Array) -> tuple[Array, Array]:
    return scores - labels[:, None], np.ones_like(scores)


def _multiclass(scores: Array, labels: Array) -> tuple[Array, Array]:
    chance = _softmax(scores)
    hit = labels[:, None] == np.arange(scores.shape[1])
    return chance - hit, np.maximum(2 * chance * (1 - chance), SMALLEST)


OBJECTIVES: Mapping[str, Objective] = {
    "binary:logistic": Objective(
        _logistic, 1.0, 0.25, lambda base: log(base / (1 - base)), lambda scores: _sigmoid(scores)[:, 0],
        ("reg_loss_param", "scale_pos_weight", "1"),
    ),
    "reg:squarederror": Objective(
        _squared, None, 1.0, lambda base: base, lambda scores: scores[:, 0],
        ("reg_loss_param", "scale_pos_weight", "1"), classifies=False,
    ),
    "multi:softprob": Objective(
        _multiclass, 1.0, 0.5, lambda base: base, _softmax, ("softmax_multiclass_param", "num_class", ""),
    ),
}  # fmt: skip
