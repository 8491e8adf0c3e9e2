"""How well a passive party that is curious can tell labels from the gradients it is sent: attacks that need no model.

Li et al., "Label Leakage and Protection in Two-party Split Learning", ICLR 2022, sections 3.1 and 3.2, for two classes.
"""

from __future__ import annotations

import numpy as np

from federated.errors import FederatedError
from federated.tree import Array

__all__ = ["auc", "cosine_attack", "norm_attack"]


def norm_attack(slopes: Array, labels: Array) -> float:
    """The leak AUC of the norms of the rows (float [n, ...]): the rare class's gradients are longer."""
    return _either(auc(np.linalg.norm(_rows(slopes), axis=1), labels))


def cosine_attack(slopes: Array, labels: Array, known: int) -> float:
    """The leak AUC of the cosine of each row with row number `known`, whose label the attacker has learned elsewhere:
    gradients of one class point in similar directions."""
    rows = _rows(slopes)
    norms = np.linalg.norm(rows, axis=1)
    cosines = rows @ rows[known] / np.maximum(norms * norms[known], 1e-30)
    others = np.arange(len(rows)) != known
    return _either(auc(cosines[others], labels[others]))


def auc(scores: Array, labels: Array) -> float:
    """The probability that an example of class 1 has a higher score than one of class 0, ties counted half. Raises
    FederatedError unless there are both."""
    if scores.shape != labels.shape or set(np.unique(labels).tolist()) != {0, 1}:
        raise FederatedError(f"auc: expected scores of classes 0 and 1, got {np.unique(labels)[:5].tolist()}")
    _, places, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[places.reshape(-1)]
    ones = int((labels == 1).sum())
    zeros = len(labels) - ones
    return float((ranks[labels == 1].sum() - ones * (ones + 1) / 2) / (ones * zeros))


def _rows(slopes: Array) -> Array:
    return slopes.reshape(len(slopes), -1).astype(np.float64)


def _either(found: float) -> float:
    """An attacker that is always wrong is as good as one that is always right."""
    return max(found, 1 - found)
