"""KernelSHAP: Shapley values of the sample's parts by a weighted regression on coalitions of them.

Lundberg and Lee 2017, "A Unified Approach to Interpreting Model Predictions"; Covert and Lee 2021, "Improving
KernelSHAP", whose pairs of a coalition and its complement are drawn here. Exact where all coalitions fit.
"""

from __future__ import annotations

from math import comb

import numpy as np

from lite_runtime.errors import ExplainError
from lite_runtime.explaining.explanation import Explanation, Making
from lite_runtime.explaining.subject import Subject
from lite_runtime.graph import Array

__all__ = ["kernel_shap"]

_ROWS = 64
_MOST_PARTS = 2000
"""The regression needs memory of the square of this."""


def kernel_shap(
    subject: Subject, x: Array, target: int, *, baseline: Array, parts: Array, samples: int = 1000, seed: int = 0
) -> Explanation:
    """Shapley values of parts; each element of a part gets an equal share, so that the sum is the difference of scores.

    parts: (*shape) integers from 0 on, the part of each element. samples: the most coalitions; if there are not more,
    all are asked for and the values are exact. Raises ExplainError for parts that do not fit and for fewer samples than
    a regression needs.
    """
    x = subject.checked(x)
    count = _checked(parts, x)
    every = count < 60 and 2**count - 2 <= samples
    if not every and samples < 2 * count:
        raise ExplainError(
            f"samples: expected at least {2 * count} for {count} parts, twice as many, got {samples}; use larger parts"
        )
    subject.needs((2**count - 2 if every else samples) + 2, f"kernel_shap with {samples} samples", "use fewer samples")
    with Making(subject, "kernel_shap", target) as making:
        shown, weights = _all(count) if every else _drawn(count, samples, np.random.default_rng(seed))
        ends = subject.scores(np.stack([x, baseline]))[:, target]
        found = np.concatenate(
            [_scores(subject, x, target, baseline, parts, shown[i : i + _ROWS]) for i in range(0, len(shown), _ROWS)]
            or [np.zeros(0)]
        )
        values = _regressed(shown, weights, found - ends[1], float(ends[0] - ends[1]))
        spread = values / np.bincount(parts.reshape(-1), minlength=count)
        return making.done(spread[parts], ends[0], ends[1], parts=count, samples=len(shown), seed=seed, exact=every)


def _checked(parts: Array, x: Array) -> int:
    if parts.shape != x.shape or parts.dtype.kind not in "iu":
        raise ExplainError(f"parts: expected integers of shape {list(x.shape)}, got {parts.dtype}{list(parts.shape)}")
    found = np.unique(parts)
    if found[0] != 0 or found[-1] != len(found) - 1:
        raise ExplainError("parts: expected all numbers from 0 to the last part's")
    if len(found) > _MOST_PARTS:
        raise ExplainError(f"parts: expected at most {_MOST_PARTS} of them, got {len(found)}; use larger parts")
    return len(found)


def _scores(subject: Subject, x: Array, target: int, baseline: Array, parts: Array, shown: Array) -> Array:
    return subject.scores(np.where(shown[:, parts], x, baseline))[:, target]


def _all(count: int) -> tuple[Array, Array]:
    """All coalitions but none and all (2**count - 2, count), with the Shapley kernel as weights."""
    numbers = np.arange(1, 2**count - 1)
    shown = (numbers[:, None] >> np.arange(count) & 1).astype(bool)
    kernel = np.array([0.0, *((count - 1) / (comb(count, s) * s * (count - s)) for s in range(1, count))])
    return shown, kernel[shown.sum(1)]


def _drawn(count: int, samples: int, random: np.random.Generator) -> tuple[Array, Array]:
    """Coalitions drawn by the kernel, each followed by its complement; equal weights."""
    sizes = np.arange(1, count)
    chances = 1 / (sizes * (count - sizes))
    pairs = samples // 2
    drawn = random.choice(sizes, pairs, p=chances / chances.sum())
    shown = random.random((pairs, count)).argsort(1).argsort(1) < drawn[:, None]
    return np.stack([shown, ~shown], 1).reshape(-1, count), np.ones(2 * pairs)


def _regressed(shown: Array, weights: Array, gains: Array, whole: float) -> Array:
    """Values (parts,) that explain the gains with the least weighted squared error and add up to `whole`."""
    count = shown.shape[1]
    if count == 1:
        return np.array([whole])
    z = shown[:, :-1].astype(np.float64) - shown[:, -1:]
    y = gains - shown[:, -1] * whole
    root = np.sqrt(weights / weights.sum())
    first = np.linalg.lstsq(z * root[:, None], y * root, rcond=None)[0]
    return np.append(first, whole - first.sum())
