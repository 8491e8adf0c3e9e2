"""How well attributions agree with what the model does when elements change, so that methods can be compared.

Petsiuk et al. 2018, "RISE" (insertion, deletion); Yeh et al. 2019, "On the (In)fidelity and Sensitivity of
Explanations".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from lite_runtime.calibration.scores import are_probabilities, log_softmax
from lite_runtime.errors import ExplainError
from lite_runtime.explaining.layout import Layout
from lite_runtime.explaining.subject import Subject
from lite_runtime.graph import Array

__all__ = ["Curves", "curves", "infidelity", "probabilities", "sensitivity_max"]

_SUM = 0.02
"""How far from 1 the sum of probabilities of an integer softmax may be."""


@dataclass(frozen=True)
class Curves:
    """Probabilities of the target as places are removed or added in the order of their attributions."""

    shares: Array
    """(points,) of the places changed, from 0 to 1."""
    deletion: Array
    """(points,) highest attributions removed first: a faithful explanation makes it fall early."""
    insertion: Array
    """(points,) highest attributions added first to the baseline: it rises early."""

    @property
    def deletion_area(self) -> float:
        """The mean height of the curve; lower is better."""
        return _area(self.deletion)

    @property
    def insertion_area(self) -> float:
        """The mean height of the curve; higher is better."""
        return _area(self.insertion)


def _area(values: Array) -> float:
    return float(((values[1:] + values[:-1]) / 2).mean())


def probabilities(scores: Array) -> Array:
    """Probabilities (rows, outputs): scores that are some already, otherwise their softmax; one output as it is."""
    if scores.shape[1] == 1 or are_probabilities(scores, _SUM):
        return scores
    return np.asarray(np.exp(log_softmax(scores)))


def curves(
    subject: Subject, x: Array, target: int, attributions: Array, *, baseline: Array, layout: Layout, points: int = 20
) -> Curves:
    """Both curves, with `points` steps; the attributions of a place are summed over its channels. Raises ExplainError
    for attributions of another shape, and if the subject's limit of rows is too low."""
    x = subject.checked(x)
    if attributions.shape != x.shape or points < 1:
        raise ExplainError(
            f"expected attributions {list(x.shape)} and a point, got {list(attributions.shape)}, {points}"
        )
    each = layout.over_places(attributions).reshape(-1)
    points = min(points, each.size)
    subject.needs(2 * (points + 1), f"insertion and deletion with {points} points", "use fewer points")
    rank = np.empty(each.size, np.int64)
    rank[np.argsort(-each, kind="stable")] = np.arange(each.size)
    wanted = [n if axis in layout.places else 1 for axis, n in enumerate(layout.shape)]
    counts = np.rint(np.linspace(0, each.size, points + 1)).astype(np.int64)
    first = (rank.reshape(wanted) < counts.reshape(-1, *[1] * x.ndim)) & np.ones(x.shape, bool)
    deleted = probabilities(subject.scores(np.where(first, baseline, x)))[:, target]
    inserted = probabilities(subject.scores(np.where(first, x, baseline)))[:, target]
    return Curves(counts / each.size, deleted, inserted)


def infidelity(
    subject: Subject, x: Array, target: int, attributions: Array, removed: Array, *, baseline: Array,
    slopes: bool = False, scaled: bool = False,
) -> float:  # fmt: skip
    """The mean squared difference between what attributions say of removed elements and what removing them does.

    removed: (count, *shape) booleans, elements that get the baseline's value. slopes: attributions are changes of the
    score for each unit of an element, as gradients are; otherwise they are contributions, whose sum is said. scaled:
    attributions are first multiplied by the number that makes the result least, so that methods of different scales can
    be compared. Raises ExplainError for masks of another shape or type, and if the limit of rows is too low.
    """
    x = subject.checked(x)
    if removed.shape[1:] != x.shape or not len(removed) or removed.dtype != bool:
        raise ExplainError(
            f"removed: expected booleans [count, *{list(x.shape)}], got {removed.dtype}{list(removed.shape)}"
        )
    subject.needs(len(removed) + 1, f"infidelity with {len(removed)} changes", "use fewer changes")
    scores = subject.scores(np.concatenate([x[None], np.where(removed, baseline, x)]))[:, target]
    did = scores[0] - scores[1:]
    each = attributions * (x.astype(np.float64) - baseline) if slopes else attributions
    said = removed.reshape(len(removed), -1) @ each.reshape(-1)
    square = float(said @ said)
    factor = float(said @ did) / square if scaled and square else 1.0
    return float(((factor * said - did) ** 2).mean())


def sensitivity_max(
    explain: Callable[[Array], Array], x: Array, *, radius: float = 0.02, samples: int = 10, seed: int = 0,
    changes: Array | None = None,
) -> float:  # fmt: skip
    """The largest change of an explanation, relative to its length, over copies of the sample nearby.

    explain: a sample to its attributions. radius: of the cube from which copies are drawn evenly. changes: (samples,
    *shape), added as they are instead. Raises ExplainError for no samples and a radius of 0.
    """
    if changes is None:
        if samples < 1 or not radius > 0:
            raise ExplainError(f"expected at least 1 sample and a radius above 0, got {samples} and {radius}")
        changes = np.random.default_rng(seed).uniform(-radius, radius, (samples, *x.shape)).astype(x.dtype)
    own = explain(x)
    length = float(np.linalg.norm(own)) or 1.0
    return max(float(np.linalg.norm(explain(x + change) - own)) for change in changes) / length
