"""Measures of calibration and fits, against definitions written out and scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss, roc_auc_score

from cloud.audit.calibration import (
    fit_calibration,
    fit_mahalanobis,
    fit_temperature,
    measure_calibration,
    measure_groups,
    separation,
    threshold,
    worst_decile,
)
from cloud.errors import DataError
from lite_runtime.calibration.scores import energy, log_softmax, mahalanobis

RNG = np.random.default_rng(5)


@pytest.fixture(scope="module")
def digits() -> dict[str, np.ndarray]:
    """Logits of a model that is too sure of itself: of held-out digits for the fit and others for the test."""
    x, y = load_digits(return_X_y=True)
    order = RNG.permutation(len(x))
    x, y = x[order] / 16, y[order]
    model = LogisticRegression(C=1e3, max_iter=1000).fit(x[:400], y[:400])
    logits = model.decision_function(x)
    return {"x": x, "y": y, "logits": logits}


def test_measures_are_their_definitions() -> None:
    logits, labels = RNG.normal(size=(400, 3)) * 2, RNG.integers(0, 3, 400)
    found, p = measure_calibration(logits, labels, bins=10), np.exp(log_softmax(logits))
    assert found.nll == pytest.approx(log_loss(labels, p), abs=1e-12)
    assert found.brier == pytest.approx(((p - np.eye(3)[labels]) ** 2).sum(axis=1).mean(), abs=1e-12)
    sure, right = p.max(axis=1), p.argmax(axis=1) == labels
    total = 0.0
    for low in np.arange(10) / 10:
        own = (sure > low) & (sure <= low + 0.1)
        total += abs(sure[own].sum() - right[own].sum())
    assert found.ece == pytest.approx(total / 400, abs=1e-12)
    parts = np.split(np.argsort(sure, kind="stable"), 10)
    mass = sum(abs(sure[own].sum() - right[own].sum()) for own in parts) / 400
    assert found.ece_mass == pytest.approx(mass, abs=1e-12)


def test_groups_and_their_worst_tenth() -> None:
    logits = np.array([[4.0, 0.0]] * 4)
    found = measure_groups(logits, np.array([0, 0, 1, 1]), ["a", "a", "b", "b"])
    assert (found["a"].accuracy, found["b"].accuracy) == (1.0, 0.0)
    assert found["b"].ece == pytest.approx(1 / (1 + np.exp(-4)))
    assert worst_decile({name: one.ece for name, one in found.items()}) == found["b"].ece
    assert worst_decile(list(range(40))) == np.mean([39, 38, 37, 36])
    assert worst_decile([0.9, 0.5, 0.7], higher_is_worse=False) == 0.5


def test_the_temperature_is_the_minimum() -> None:
    logits, scale = RNG.normal(size=(2000, 5)) * 2, 3.0
    labels = (logits + RNG.gumbel(size=logits.shape)).argmax(axis=1)
    found = fit_temperature(logits * scale, labels)
    assert found == pytest.approx(scale, rel=0.1)  # the labels were drawn at temperature 3
    best = measure_calibration(logits * scale, labels, found).nll
    assert best < min(measure_calibration(logits * scale, labels, found * by).nll for by in (0.99, 1.01))


def test_it_helps_on_digits_never_seen(digits: dict[str, np.ndarray]) -> None:
    logits, y = digits["logits"], digits["y"]
    found = fit_temperature(logits[400:1000], y[400:1000])
    before, after = measure_calibration(logits[1000:], y[1000:]), measure_calibration(logits[1000:], y[1000:], found)
    assert found > 1.2 and after.nll < 0.95 * before.nll and after.ece < before.ece
    assert after.accuracy == before.accuracy


def test_thresholds_keep_their_rate() -> None:
    assert threshold(np.arange(19.0), 0.05).threshold == 18.0
    assert threshold(np.arange(99.0), 0.1).threshold == 89.0
    with pytest.raises(DataError, match=r"at least 19 for false_alarms=0\.05, got 18"):
        threshold(np.arange(18.0), 0.05)
    rates = [
        (RNG.exponential(size=200) > threshold(RNG.exponential(size=99), 0.1).threshold).mean() for _ in range(200)
    ]
    assert 0.08 < np.mean(rates) < 0.12


def test_separation_is_scikit_learns() -> None:
    inside, outside = RNG.normal(size=300).round(1), (RNG.normal(size=200) + 1).round(1)
    found = separation(inside, outside)
    truth = np.repeat([0, 1], [300, 200])
    assert found.auroc == pytest.approx(roc_auc_score(truth, np.concatenate([inside, outside])), abs=1e-12)
    assert found.fpr95 == (outside <= np.sort(inside)[284]).mean()
    apart = separation(np.zeros(5), np.ones(5))
    assert (apart.auroc, apart.fpr95) == (1.0, 0.0)


def test_distances_are_those_of_the_covariance(digits: dict[str, np.ndarray]) -> None:
    logits, y = digits["logits"], digits["y"]
    found = fit_mahalanobis(logits[:400], y[:400], logits[400:1000], "logits", 0.05)
    means = np.stack([logits[:400][y[:400] == k].mean(axis=0) for k in range(10)])
    rest = logits[:400] - means[y[:400]]
    covariance = rest.T @ rest / 400
    covariance += 1e-3 * np.trace(covariance) / 10 * np.eye(10)
    away = logits[1000:1050, None] - means
    expected = np.einsum("nki,ij,nkj->nk", away, np.linalg.inv(covariance), away).min(axis=1)
    np.testing.assert_allclose(mahalanobis(logits[1000:1050], found.means, found.whitener), expected, rtol=1e-3)
    assert 0.01 < (mahalanobis(logits[1000:], found.means, found.whitener) > found.above.threshold).mean() < 0.12


def test_energy_is_minus_the_log_of_a_sum() -> None:
    logits = np.array([[1.0, 2.0], [1000.0, 1000.0]])
    np.testing.assert_allclose(energy(logits), [-np.log(np.exp(1) + np.exp(2)), -1000 - np.log(2)])


@pytest.mark.parametrize(
    ("logits", "labels", "text"),
    [
        (np.zeros((3, 2)), np.array([0, 1]), "expected 3 whole numbers"),
        (np.zeros((2, 2)), np.array([0.0, 1.0]), "expected 2 whole numbers, got float64"),
        (np.zeros((2, 2)), np.array([0, 2]), r"expected 0..1, got 0..2"),
        (np.full((2, 2), np.nan), np.array([0, 1]), "finite"),
        (np.zeros((0, 2)), np.array([], int), r"shape \(n, classes\)"),
        (np.array([[1.0, 0.0], [0.0, 2.0]]), np.array([0, 1]), "answered wrongly"),
        (np.array([[1.0, 0.0], [0.0, 2.0]]), np.array([1, 0]), "better than chance"),
    ],
)
def test_refusals(logits: np.ndarray, labels: np.ndarray, text: str) -> None:
    with pytest.raises(DataError, match=text):
        fit_calibration(logits, labels, "y")
