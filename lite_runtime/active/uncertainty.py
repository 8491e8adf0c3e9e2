"""How unsure a classifier is of each row: (n,) float64, the higher the more a label is worth.

Lewis and Gale 1994 (least confidence), Scheffer et al. 2001 (margin), Settles 2009, "Active Learning Literature Survey"
(entropy); Houlsby et al. 2011, "Bayesian Active Learning for Classification and Preference Learning", with dropout as
the posterior as in Gal et al. 2017, "Deep Bayesian Active Learning with Image Data" (BALD).
"""

from __future__ import annotations

import numpy as np

from lite_runtime.errors import InputError
from lite_runtime.graph import Array

__all__ = ["bald", "entropy", "least_confident", "margin"]


def least_confident(probabilities: Array) -> Array:
    """One minus the probability of the likeliest class. probabilities: (n, classes)."""
    return np.asarray(1.0 - _checked(probabilities, 2).max(axis=1))


def margin(probabilities: Array) -> Array:
    """The second greatest probability minus the greatest one: 0 where two classes are equal. probabilities: (n,
    classes)."""
    best = np.sort(_checked(probabilities, 2), axis=1)[:, -2:]
    return np.asarray(best[:, 0] - best[:, 1])


def entropy(probabilities: Array) -> Array:
    """Entropy in nats of each row. probabilities: (n, classes)."""
    return _entropy(_checked(probabilities, 2))


def bald(draws: Array) -> Array:
    """Mutual information in nats of the class and the weights: entropy of the mean minus the mean of entropies.

    draws: (draws, n, classes), probabilities under several random dropout masks. It is 0 where all draws agree, even if
    each is unsure: what no label would tell.
    """
    given = _checked(draws, 3)
    return np.asarray(np.maximum(_entropy(given.mean(axis=0)) - _entropy(given).mean(axis=0), 0.0))


def _entropy(p: Array) -> Array:
    return np.asarray(-(p * np.log(np.maximum(p, 1e-300))).sum(axis=-1))


def _checked(given: Array, axes: int) -> Array:
    """As float64. Raises InputError for what are not probabilities of at least 2 classes."""
    array = np.asarray(given, np.float64)
    if array.ndim != axes or array.shape[-1] < 2:
        expected = "(n, classes)" if axes == 2 else "(draws, n, classes)"
        raise InputError(f"expected probabilities {expected} of at least 2 classes, got shape {list(array.shape)}")
    if array.size and not (np.all(array >= 0) and np.all(np.abs(array.sum(axis=-1) - 1) < 1e-3)):
        raise InputError("expected probabilities, each row with the sum 1, got others; apply softmax to logits first")
    return array
