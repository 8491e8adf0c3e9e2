"""Integrated Gradients: gradients along straight lines from baselines to the sample.

Sundararajan et al. 2017, "Axiomatic Attribution for Deep Networks". The attributions of an exact integral add up to the
difference between the scores of sample and baseline; `Explanation.gap` is what is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, TypeAlias, get_args

import numpy as np

from lite_runtime.errors import ExplainError
from lite_runtime.explaining.explanation import Explanation, Making
from lite_runtime.explaining.subject import Subject
from lite_runtime.graph import Array

__all__ = ["RULES", "Rule", "integrated_gradients", "points_of"]

Rule: TypeAlias = Literal["gauss_legendre", "middle", "left", "right", "trapezoid"]
RULES: tuple[Rule, ...] = get_args(Rule)
_MOST_GAUSS = 2000
"""Its points are the eigenvalues of a matrix with as many rows."""


def integrated_gradients(
    subject: Subject, x: Array, target: int, *, baselines: Array, steps: int = 50, rule: Rule = "gauss_legendre"
) -> Explanation:
    """The mean gradient along the line from a baseline times the difference from it, averaged over baselines.

    baselines: (*shape), or several (count, *shape). steps: points on each line, one row each. Raises ExplainError for
    other shapes, counts and rules.
    """
    x = subject.checked(x)
    starts = _checked(baselines, x)
    _check_points(rule, steps)
    subject.needs(
        len(starts) * (steps + 1) + 1, f"integrated_gradients with {steps} steps and {len(starts)} baselines",
        "use fewer steps",
    )  # fmt: skip
    places, weights = points_of(rule, steps)
    size = subject.rows_at_once
    with Making(subject, "integrated_gradients", target) as making:
        total = np.zeros(x.shape)
        for start in starts:
            away, mean = x.astype(np.float64) - start, np.zeros(x.shape)
            for first in range(0, steps, size):
                some = places[first : first + size].reshape(-1, *[1] * x.ndim)
                mean += np.tensordot(weights[first : first + size], subject.gradient(start + some * away, target), 1)
            total += mean * away
        scores = subject.scores(np.concatenate([x[None], starts]))[:, target]
        found = total / len(starts)
        return making.done(found, scores[0], scores[1:].mean(), steps=steps, rule=rule, baselines=len(starts))


def _checked(baselines: Array, x: Array) -> Array:
    starts = np.asarray(baselines, np.float64)
    starts = starts[None] if starts.shape == x.shape else starts
    if starts.shape[1:] != x.shape or not len(starts) or not np.isfinite(starts).all():
        raise ExplainError(f"baselines: expected finite ones of shape {list(x.shape)}, got {list(starts.shape)}")
    return starts


def points_of(rule: Rule, steps: int) -> tuple[Array, Array]:
    """Places between 0 and 1 and their weights, which add up to 1. Raises ExplainError for an unknown rule, and for
    fewer or more steps than it takes."""
    _check_points(rule, steps)
    return _POINTS[rule](steps)


def _check_points(rule: Rule, steps: int) -> None:
    if rule not in _POINTS:
        raise ExplainError(f"rule: expected one of {', '.join(RULES)}, got {rule!r}")
    least = 2 if rule == "trapezoid" else 1
    if steps < least:
        raise ExplainError(f"steps: expected at least {least} for the rule {rule}, got {steps}")
    if rule == "gauss_legendre" and steps > _MOST_GAUSS:
        raise ExplainError(f"steps: expected at most {_MOST_GAUSS} for the rule {rule}, got {steps}; use middle")


def _gauss(steps: int) -> tuple[Array, Array]:
    places, weights = np.polynomial.legendre.leggauss(steps)
    return (1 + places) / 2, weights / 2


def _even(shift: float) -> Callable[[int], tuple[Array, Array]]:
    return lambda steps: ((np.arange(steps) + shift) / steps, np.full(steps, 1 / steps))


def _trapezoid(steps: int) -> tuple[Array, Array]:
    weights = np.full(steps, 1 / (steps - 1))
    weights[[0, -1]] /= 2
    return np.linspace(0, 1, steps), weights


_POINTS: Mapping[Rule, Callable[[int], tuple[Array, Array]]] = {
    "gauss_legendre": _gauss,
    "middle": _even(0.5),
    "left": _even(0.0),
    "right": _even(1.0),
    "trapezoid": _trapezoid,
}
