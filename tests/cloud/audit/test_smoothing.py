"""Certified radii: the closed form of a linear classifier, the bound's coverage, abstention, integer bundles."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from scipy import stats

import converter
from cloud.audit.intervals import lower_limit
from cloud.audit.smoothing import ABSTAINED, certify, predict_smoothed
from cloud.audit.victim import WhiteBox, from_onnx, open_bundle
from cloud.errors import AuditError

Rows = tuple[np.ndarray, np.ndarray]


@pytest.fixture(scope="module")
def linear() -> WhiteBox:
    """Class 1 where 3 x0 + 4 x1 > 0: at a distance of (3 x0 + 4 x1) / 5."""
    weights = np.array([[0, 3], [0, 4]], np.float32)
    return WhiteBox("linear", lambda w, x: x @ w, weights, (2,), 2)


def test_radii_approach_a_linear_classifiers_distance_from_below(linear: WhiteBox) -> None:
    exact = np.array([0.1, 0.3, 0.6, 1.0])
    x = (exact[:, None] * np.array([3, 4]) / 5).astype(np.float32)
    few, many = (certify(linear, x, np.ones(4, int), sigma=0.5, samples=n) for n in (500, 20_000))
    assert (many.classes == 1).all()
    assert (many.radii <= exact).all()
    assert (many.radii >= exact - 0.05).all()
    assert (few.radii <= many.radii).all()
    assert few.classes[0] == ABSTAINED and few.radii[0] == 0
    opposite = certify(linear, -x, np.ones(4, int), sigma=0.5, samples=20_000)
    assert (opposite.classes == 0).all() and opposite.accuracy() == 0


def test_the_largest_radius_is_that_of_equal_answers(linear: WhiteBox) -> None:
    found = certify(linear, np.full((1, 2), 100, np.float32), np.ones(1, int), sigma=0.5, samples=1000, alpha=0.01)
    assert found.radii[0] == pytest.approx(0.5 * stats.norm.ppf(0.01 ** (1 / 1000)))


@pytest.mark.parametrize("samples, alpha", [(20, 0.05), (200, 0.01)])
def test_the_bound_holds_as_often_as_it_says(samples: int, alpha: float) -> None:
    """Over all results that an experiment may have, by their probabilities."""
    hits = np.arange(samples + 1)
    bounds = np.array([lower_limit(int(k), samples, alpha) for k in hits])
    missed = [float(stats.binom.pmf(hits, samples, p)[bounds > p].sum()) for p in np.linspace(0.01, 0.99, 197)]
    assert max(missed) <= alpha
    assert max(missed) > 0.8 * alpha  # no wider than needed
    assert (np.diff(bounds) > 0).all() and bounds[0] == 0


def test_classes_are_told_where_they_are_certain(linear: WhiteBox) -> None:
    x = np.array([[2, 2], [-2, -2], [0, 0]], np.float32)
    assert predict_smoothed(linear, x, sigma=0.5, samples=200).tolist() == [1, 0, ABSTAINED]


def test_an_integer_bundle_is_certified(network: ir.Model, digits: Rows, rows: Rows) -> None:
    data = converter.convert(network, quantize="int8", calibration={"x": digits[0][64:320]}).bundle
    x, labels = rows[0][:8], rows[1][:8]
    integers, floats = (certify(v, x, labels, sigma=0.1, samples=300) for v in (open_bundle(data), from_onnx(network)))
    assert integers.accuracy() > 0.5
    assert np.abs(integers.radii - floats.radii).mean() < 0.05
    told = integers.as_data()
    shares = [one["accuracy"] for one in told["certified"]]
    assert shares == sorted(shares, reverse=True) and shares[0] == integers.accuracy()
    assert told["certified"][-1]["radius"] <= integers.radii.max()
    again = certify(open_bundle(data), x[:3], labels[:3], sigma=0.1, samples=300)
    np.testing.assert_array_equal(again.radii, integers.radii[:3])


@pytest.mark.parametrize("settings", [{"sigma": 0.0}, {"sigma": 1, "alpha": 1.0}, {"sigma": 1, "samples": 0}])
def test_settings_that_do_not_fit(linear: WhiteBox, settings: dict) -> None:
    with pytest.raises(AuditError, match="expected sigma above 0, alpha between 0 and 1"):
        certify(linear, np.zeros((1, 2), np.float32), np.zeros(1, int), **settings)
    with pytest.raises(AuditError, match="a label for each"):
        certify(linear, np.zeros((1, 2), np.float32), np.zeros(2, int), sigma=1)
