"""How far a classifier's confidence can be trusted: measured, by group and by device, and fitted for its bundle.

Measured: expected calibration error with bins of equal width (Guo et al. 2017) and of equal mass (Nixon et al. 2019,
"Measuring Calibration in Deep Learning"), negative log likelihood, Brier score (1950, over all classes: 0 to 2).
Fitted: one temperature (Guo), thresholds of the energy (Liu et al. 2020) and of the Mahalanobis distance (Lee et al.
2018). Everything is computed from a model's outputs, so that it is the deployed file that is measured, integers
included.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from cloud.errors import DataError
from lite_runtime.calibration.description import Calibration, Mahalanobis, Threshold
from lite_runtime.calibration.scores import energy, from_probabilities, log_softmax, mahalanobis
from lite_runtime.graph import Array

__all__ = ["Bin", "Measured", "Separation", "fit_calibration", "fit_mahalanobis", "fit_temperature",
           "measure_calibration", "measure_groups", "separation", "threshold", "worst_decile"]  # fmt: skip

BINS = 15
_COLD, _HOT = 1e-2, 1e2
"""Temperatures that are searched."""
_STEPS = 60
"""Bisections: more than the digits of a float64 over that range."""
_SHRINK = 1e-3
"""The share of the mean variance that is added to each feature's, so that constant features can be inverted."""


class Bin(NamedTuple):
    """Examples with similar confidence: how many, their mean confidence, and the share that is answered correctly."""

    examples: int
    confidence: float
    accuracy: float


class Measured(NamedTuple):
    """Figures of a set. ece, ece_mass: expected calibration error by bins of equal width and equal mass, 0 to 1; bins:
    those of equal width that have examples."""

    examples: int
    accuracy: float
    nll: float
    brier: float
    ece: float
    ece_mass: float
    bins: tuple[Bin, ...]


class Separation(NamedTuple):
    """How well a score tells a second set from the first. fpr95: the share of the second set that is taken for the
    first by a threshold that keeps 95 % of the first."""

    auroc: float
    fpr95: float


def measure_calibration(logits: Array, labels: Array, temperature: float = 1.0, bins: int = BINS) -> Measured:
    """The calibration of logits (n, classes) for labels (n,) of whole numbers. Raises DataError for shapes that do not
    match, labels that are not classes, logits that are not finite and no examples."""
    given, truth = _checked(logits, labels)
    if bins < 1:
        raise DataError(f"bins: expected at least 1, got {bins}")
    chances = log_softmax(given, temperature)
    p = np.exp(chances)
    right, sure = p.argmax(axis=1) == truth, p.max(axis=1)
    of_truth = p[np.arange(len(p)), truth]
    brier = (p**2).sum(axis=1) - 2 * of_truth + 1
    widths = np.clip(np.ceil(sure * bins).astype(int) - 1, 0, bins - 1)  # Guo's bins are open on the left
    made = _bins(widths, sure, right)
    order = np.argsort(sure, kind="stable")
    masses = np.empty(len(order), int)
    masses[order] = np.arange(len(order)) * bins // len(order)
    return Measured(
        examples=len(p),
        accuracy=float(right.mean()),
        nll=float(-chances[np.arange(len(p)), truth].mean()),
        brier=float(brier.mean()),
        ece=_error(made, len(p)),
        ece_mass=_error(_bins(masses, sure, right), len(p)),
        bins=made,
    )


def measure_groups(
    logits: Array, labels: Array, groups: Sequence[Hashable], temperature: float = 1.0, bins: int = BINS
) -> dict[Any, Measured]:
    """`measure_calibration` of each group, or device, by its name. Small groups have large errors by chance: see
    `examples`. Raises DataError as `measure_calibration`, and for another number of groups than of labels."""
    given, truth = _checked(logits, labels)
    if len(groups) != len(truth):
        raise DataError(f"groups: expected one for each of {len(truth)} labels, got {len(groups)}")
    rows: dict[Hashable, list[int]] = {}
    for i, name in enumerate(groups):
        rows.setdefault(name, []).append(i)
    return {name: measure_calibration(given[own], truth[own], temperature, bins) for name, own in rows.items()}


def worst_decile(figures: Mapping[Any, float] | Sequence[float], higher_is_worse: bool = True) -> float:
    """The mean of the worst tenth of figures, one of each device; the worst one if they are fewer than 20. Raises
    DataError for none."""
    values = sorted(figures.values() if isinstance(figures, Mapping) else figures, reverse=higher_is_worse)
    if not values:
        raise DataError("figures: expected at least one, got none")
    return float(np.mean(values[: max(1, len(values) // 10)]))


def fit_temperature(logits: Array, labels: Array) -> float:
    """The temperature with the least negative log likelihood of logits (n, classes), by bisection: the likelihood is
    convex in its inverse. It changes no answer.

    Raises DataError as `measure_calibration`, and for examples that have no minimum within 0.01 to 100: those that
    the model answers all correctly, or no better than by chance.
    """
    given, truth = _checked(logits, labels)
    own = given[np.arange(len(given)), truth]

    def slope(inverse: float) -> float:
        p = np.exp(log_softmax(given, 1 / inverse))
        return float(((p * given).sum(axis=1) - own).mean())

    low, high = 1 / _HOT, 1 / _COLD
    if slope(low) >= 0:
        raise DataError("labels: expected a model better than chance, got one that is best at no confidence at all")
    if slope(high) <= 0:
        raise DataError(
            f"labels: expected some of {len(truth)} examples to be answered wrongly, as the best temperature is 0"
            " otherwise; use examples that the model was not trained on, and more of them"
        )
    for _ in range(_STEPS):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if slope(middle) < 0 else (low, middle)
    return 1 / math.sqrt(low * high)


def threshold(scores: Array, false_alarms: float) -> Threshold:
    """The threshold above which a new score of the same distribution is with a probability of at most `false_alarms`.

    The order statistic of split conformal prediction (Vovk et al. 2005), which holds for any number of scores (n,) and
    any distribution. Raises DataError for scores that are not finite, or too few for that rate.
    """
    given = np.sort(np.asarray(scores, np.float64).ravel())
    if not 0 < false_alarms < 1:
        raise DataError(f"false_alarms: expected a share between 0 and 1, got {false_alarms}")
    if not np.isfinite(given).all():
        raise DataError("scores: expected finite numbers, got one that is not; check the model's outputs")
    place = math.ceil((len(given) + 1) * (1 - false_alarms) - 1e-9)
    if place > len(given):
        least = math.ceil(1 / false_alarms - 1 - 1e-9)
        raise DataError(f"scores: expected at least {least} for false_alarms={false_alarms}, got {len(given)}")
    return Threshold(float(given[place - 1]), false_alarms)


def fit_mahalanobis(
    features: Array, labels: Array, held: Array, output: str, false_alarms: float = 0.05
) -> Mahalanobis:
    """Class means and a shared covariance of features (n, size), and the threshold of other features (m, size).

    features, labels: of training examples. held: of examples that took no part in training, as distances of those that
    did are too small. output: the name of the model's output that these are. Raises DataError as
    `measure_calibration` and `threshold`.
    """
    given, truth = _checked(features, labels, classes=False)
    there = np.unique(truth)
    means = np.stack([given[truth == label].mean(axis=0) for label in there])
    rest = given - means[np.searchsorted(there, truth)]
    covariance = rest.T @ rest / len(given)
    mean_variance = float(np.trace(covariance)) / len(covariance)
    if mean_variance <= 0:
        raise DataError("features: expected some that differ within a class, got none; use another output")
    covariance += _SHRINK * mean_variance * np.eye(len(covariance))
    values, vectors = np.linalg.eigh(covariance)
    stored = (vectors / np.sqrt(values)).astype(np.float32), means.astype(np.float32)
    others = np.asarray(held, np.float64)
    if others.ndim != 2 or others.shape[1] != given.shape[1]:
        raise DataError(f"held: expected shape (m, {given.shape[1]}), got {others.shape}")
    above = threshold(mahalanobis(others, stored[1], stored[0]), false_alarms)
    return Mahalanobis(output, stored[1], stored[0], above)


def separation(inside: Array, outside: Array) -> Separation:
    """How well scores, higher outside, tell two sets apart, (n,) and (m,). Raises DataError for an empty set or scores
    that are not numbers."""
    first, second = (np.asarray(scores, np.float64).ravel() for scores in (inside, outside))
    if not len(first) or not len(second) or np.isnan(first).any() or np.isnan(second).any():
        raise DataError("scores: expected numbers of both sets, got an empty set or NaN")
    from cloud.train.metrics.ranking import roc_auc  # imports JAX

    joined = np.concatenate([first, second])
    area = roc_auc(joined, np.arange(len(joined)) >= len(first))
    kept = np.sort(first)[math.ceil(0.95 * len(first) - 1e-9) - 1]
    return Separation(area, float((second <= kept).mean()))


def fit_calibration(
    outputs: Array,
    labels: Array,
    output: str,
    *,
    kind: str = "logits",
    signature: str = "predict",
    false_alarms: float = 0.05,
    distances: Mahalanobis | None = None,
) -> Calibration:
    """The calibration of a model by its outputs (n, classes) of examples that took no part in training: temperature
    and, of logits, the threshold of the energy. Raises DataError as `fit_temperature` and `threshold`."""
    if kind not in ("logits", "probabilities"):
        raise DataError(f"kind: expected logits or probabilities, got {kind!r}")
    given = np.asarray(outputs, np.float64)
    logits = from_probabilities(given) if kind == "probabilities" else given
    temperature = fit_temperature(logits, labels)
    above = threshold(energy(logits), false_alarms) if kind == "logits" else None
    return Calibration(output, temperature, kind, signature, above, distances)


def _checked(logits: Array, labels: Array, classes: bool = True) -> tuple[Array, Array]:
    """Logits as (n, classes) float64, labels as (n,) whole numbers. classes: whether the columns are classes."""
    given, truth = np.asarray(logits, np.float64), np.asarray(labels)
    if given.ndim != 2 or not len(given) or given.shape[1] < 1 + classes:
        raise DataError(f"expected outputs of shape (n, {'classes' if classes else 'size'}), got {given.shape}")
    if truth.shape != given.shape[:1] or truth.dtype.kind not in "iu":
        raise DataError(f"labels: expected {len(given)} whole numbers, got {truth.dtype} of shape {truth.shape}")
    if not np.isfinite(given).all():
        raise DataError("expected finite outputs, got one that is not; check the model's inputs")
    if classes and not (truth.min() >= 0 and truth.max() < given.shape[1]):
        raise DataError(f"labels: expected 0..{given.shape[1] - 1}, got {truth.min()}..{truth.max()}")
    return given, truth


def _bins(places: Array, sure: Array, right: Array) -> tuple[Bin, ...]:
    found = []
    for place in np.unique(places):
        own = places == place
        found.append(Bin(int(own.sum()), float(sure[own].mean()), float(right[own].mean())))
    return tuple(found)


def _error(bins: Sequence[Bin], count: int) -> float:
    return sum(one.examples / count * abs(one.confidence - one.accuracy) for one in bins)
