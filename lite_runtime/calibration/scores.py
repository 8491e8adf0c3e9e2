"""Scores of a classifier's outputs, in float64: probabilities at a temperature, energy, Mahalanobis distance.

Guo et al. 2017, "On Calibration of Modern Neural Networks"; Liu et al. 2020, "Energy-based Out-of-distribution
Detection"; Lee et al. 2018, "A Simple Unified Framework for Detecting Out-of-Distribution Samples and Adversarial
Attacks". Values that are not finite give scores that are not finite, without warnings.
"""

from __future__ import annotations

import numpy as np

from lite_runtime.graph import Array
from lite_runtime.reference import normalize

__all__ = ["are_probabilities", "energy", "from_probabilities", "log_softmax", "mahalanobis"]

_LEAST = 1e-38
"""The least probability that a logarithm is taken of: about the least normal float32."""


def from_probabilities(given: Array) -> Array:
    """Logits of probabilities, (n, classes): those that the model had, minus a number for each row."""
    with np.errstate(all="ignore"):
        return np.log(np.maximum(np.asarray(given, np.float64), _LEAST))


def are_probabilities(scores: Array, within: float) -> bool:
    """Whether scores (n, classes) are probabilities: none below 0, and the sum of each row 1 up to `within`, which
    depends on how they were rounded."""
    given = np.asarray(scores, np.float64)
    return bool((given >= 0).all() and (np.abs(given.sum(axis=1) - 1) <= within).all())


def log_softmax(logits: Array, temperature: float = 1.0) -> Array:
    """Logarithms of the probabilities of logits (n, classes) divided by a temperature."""
    with np.errstate(all="ignore"):
        return normalize.log_softmax(np.asarray(logits, np.float64) / temperature, 1)


def energy(logits: Array) -> Array:
    """Free energy of logits (n, classes), (n,): -log(sum(exp)), at temperature 1 as its authors advise. It is higher
    for inputs unlike those of training."""
    with np.errstate(all="ignore"):
        given = np.asarray(logits, np.float64)
        most = given.max(axis=1)
        return -(most + np.log(np.exp(given - most[:, None]).sum(axis=1)))  # type: ignore[no-any-return]


def mahalanobis(features: Array, means: Array, whitener: Array) -> Array:
    """Squared distance of features (n, size) from the nearest class mean, (n,).

    means: (classes, size). whitener: (size, size), W with W Wᵀ the inverse of the covariance that all classes share.
    """
    with np.errstate(all="ignore"):
        places = np.asarray(features, np.float64) @ whitener
        centres = np.asarray(means, np.float64) @ whitener
        nearest = np.full(len(places), np.inf)
        for centre in centres:
            nearest = np.minimum(nearest, ((places - centre) ** 2).sum(axis=1))
        return nearest
