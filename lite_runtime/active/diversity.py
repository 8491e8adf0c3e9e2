"""Rows that differ from each other and from what is labelled, so that one request does not ask the same twice.

Sener and Savarese 2018, "Active Learning for Convolutional Neural Networks: A Core-Set Approach" (k-center, the greedy
one); Ash et al. 2020, "Deep Batch Active Learning by Diverse, Uncertain Gradient Lower Bounds" (BADGE).
"""

from __future__ import annotations

import numpy as np

from lite_runtime.errors import InputError
from lite_runtime.graph import Array

__all__ = ["badge", "k_center"]


def k_center(features: Array, labelled: Array | None, count: int) -> Array:
    """The indices (count,) of rows, each the farthest from all labelled and chosen ones.

    features: (n, size) of the pool; labelled: (m, size) or None. Without labelled rows the first is the one nearest to
    the mean. Raises InputError for other shapes and values that are not finite.
    """
    pool = _checked(features)
    nearest = np.full(len(pool), np.inf)
    if labelled is not None and len(labelled):
        held = _checked(labelled)
        if held.shape[1] != pool.shape[1]:
            raise InputError(f"expected labelled features (m, {pool.shape[1]}), got {list(held.shape)}")
        for start in range(0, len(held), 256):
            nearest = np.minimum(nearest, _distances(pool, held[start : start + 256]).min(axis=1))
    chosen: list[int] = []
    while len(chosen) < min(count, len(pool)):
        if np.isinf(nearest).all():
            best = int(np.argmin(_distances(pool, pool.mean(axis=0, keepdims=True))[:, 0]))
        else:
            best = int(np.argmax(nearest))
        chosen.append(best)
        nearest = np.minimum(nearest, _distances(pool, pool[best : best + 1])[:, 0])
        nearest[best] = -1.0
    return np.asarray(chosen, np.int64)


def badge(probabilities: Array, features: Array, count: int, seed: int = 0) -> Array:
    """The indices (count,) of rows whose gradients would be long and different: k-means++ over the gradient that the
    last dense layer would get if the likeliest class were the label.

    probabilities: (n, classes), features: (n, size) that the last layer reads. The gradient of a row is the outer
    product of two vectors, so that distances need no array of n x classes x size. Raises InputError for other shapes
    and values that are not finite.
    """
    pool, p = _checked(features), np.asarray(probabilities, np.float64)
    if p.ndim != 2 or len(p) != len(pool):
        raise InputError(f"expected probabilities ({len(pool)}, classes), got {list(p.shape)}")
    error = p.copy()
    error[np.arange(len(p)), p.argmax(axis=1)] -= 1.0
    squares = (error**2).sum(axis=1) * (pool**2).sum(axis=1)
    rng = np.random.default_rng(seed)
    nearest, chosen = squares.copy(), list[int]()
    while len(chosen) < min(count, len(pool)):
        if not chosen:
            best = int(np.argmax(squares))
        else:
            weight = np.maximum(nearest, 0.0)
            weight[chosen] = 0.0
            total = weight.sum()
            left = np.setdiff1d(np.arange(len(pool)), chosen) if total <= 0 else None
            best = int(rng.choice(left)) if left is not None else int(rng.choice(len(pool), p=weight / total))
        chosen.append(best)
        to = squares + squares[best] - 2.0 * (error @ error[best]) * (pool @ pool[best])
        nearest = np.minimum(nearest, to)
    return np.asarray(chosen, np.int64)


def _distances(one: Array, other: Array) -> Array:
    """Squared distances (n, m)."""
    return np.asarray(np.maximum((one**2).sum(1)[:, None] + (other**2).sum(1)[None] - 2.0 * one @ other.T, 0.0))


def _checked(features: Array) -> Array:
    """Features as float64 (n, size). Raises InputError for another rank and for values that are not finite."""
    array = np.asarray(features, np.float64)
    if array.ndim != 2:
        raise InputError(f"expected features (n, size), got shape {list(array.shape)}; flatten them")
    if not np.isfinite(array).all():
        raise InputError("expected finite features, got NaN or infinity; leave these rows out")
    return array
