"""Metrics: their values, the user's own, and what they refuse."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from converter.errors import QuantizeError
from converter.quantize.accuracy import metrics
from tests.converter.quantize.support import Builder, prepared


def test_distances():
    a = np.array([3.0, 4.0], np.float32)
    assert metrics.mse(a, a + 1) == 1 and metrics.mse(a[:0], a[:0]) == 0
    assert metrics.snr(a, a + np.array([0.3, 0.4])) == pytest.approx(20)
    assert metrics.snr(a, a) == math.inf and metrics.snr(a * 0, a) == -math.inf
    assert metrics.cosine(a, -2 * a) == -1 and metrics.cosine(a, np.array([4.0, -3.0])) == 0
    assert metrics.cosine(a * 0, a * 0) == 1 and metrics.cosine(a, a * 0) == 0
    assert metrics.relative_error(a, a * 1.01) == pytest.approx(0.01, rel=1e-5) and metrics.relative_error(a, a) == 0
    with pytest.raises(QuantizeError, match="one shape"):
        metrics.snr(a, a[:1])


def test_top1_takes_the_first_of_equals():
    assert metrics.top1(np.array([[1, 1, 0], [0, 2, 1.0]]), np.array([0, 2])) == 0.5
    with pytest.raises(QuantizeError, match="2 rows of scores, got 3"):
        metrics.top1(np.eye(2), np.arange(3))


@given(st.integers(0, 2**32 - 1), st.integers(1, 20), st.integers(1, 20))
def test_auc_is_the_share_of_ordered_pairs(seed, positive, negative):
    rng = np.random.default_rng(seed)
    scores = rng.integers(0, 6, positive + negative)
    labels = rng.permutation([1] * positive + [0] * negative)
    above, below = scores[labels == 1][:, None], scores[labels == 0]
    assert metrics.auc(scores, labels) == pytest.approx(((above > below) + 0.5 * (above == below)).mean())


def test_auc_needs_both_kinds():
    with pytest.raises(QuantizeError, match="0 true and 3 false"):
        metrics.auc(np.arange(3), np.zeros(3))


def model():
    b = Builder(seed=0)
    return prepared(b.model(b("MatMul", b.input("x", [1, 4]), b.weight(4, 3))))


def test_evaluator_scores_models_against_the_float_one():
    float_model, rng = model(), np.random.default_rng(0)
    rows = [{"x": rng.standard_normal((1, 4)).astype(np.float32)} for _ in range(9)]
    agreement = metrics.Evaluator(float_model, rows, metrics.METRICS["agreement"])
    assert agreement.base == 1 == agreement(float_model) and agreement.reference["MatMul_2"].shape == (9, 1, 3)
    error = metrics.Evaluator(float_model, rows, metrics.METRICS["error"])
    assert error.base == 0 and error.score({"MatMul_2": error.reference["MatMul_2"] * 1.5}) == pytest.approx(0.5)
    labels = agreement.reference["MatMul_2"].argmax(-1).reshape(-1)
    labels[:3] = (labels[:3] + 1) % 3
    assert metrics.Evaluator(float_model, rows, metrics.METRICS["top1"], labels).base == pytest.approx(6 / 9)
    wanted = agreement.reference["MatMul_2"] + 2
    assert metrics.Evaluator(float_model, rows, metrics.METRICS["rmse"], wanted).base == pytest.approx(2)


def test_evaluator_refuses_what_it_cannot_score():
    rows = [{"x": np.zeros((1, 4), np.float32)}]
    with pytest.raises(QuantizeError, match="got none"):
        metrics.Evaluator(model(), [], metrics.METRICS["error"])
    with pytest.raises(QuantizeError, match="'top1' needs labels"):
        metrics.Evaluator(model(), rows, metrics.METRICS["top1"])
    with pytest.raises(QuantizeError, match="2 labels for 1 rows"):
        metrics.Evaluator(model(), rows, metrics.METRICS["top1"], np.zeros(2))


def test_drop_is_positive_for_worse():
    assert metrics.METRICS["top1"].drop(0.9, 0.8) == pytest.approx(0.1)
    assert metrics.METRICS["rmse"].drop(0.9, 0.8) == pytest.approx(-0.1)


OWN = """
def mean(outputs, labels):
    return next(iter(outputs.values())).mean()

def loss(outputs, labels):
    return 1
loss.lower_is_better = True

def broken(outputs, labels):
    return "many"

def endless(outputs, labels):
    return float("nan")

number = 3
class Scores:
    mean = staticmethod(mean)
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "own_metric.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    path = list(sys.path)
    yield
    assert sys.path == path
    sys.modules.pop("own_metric", None)


def test_the_users_function(own):
    outputs = {"y": np.array([1.0, 3.0])}
    mean = metrics.load("own_metric:mean")
    assert mean.score(outputs, {}, None) == 2 and mean.higher and not mean.share
    assert not metrics.load("own_metric:loss").higher
    assert metrics.load("own_metric:Scores.mean").score(outputs, {}, None) == 2
    assert metrics.load("auc") is metrics.METRICS["auc"]
    for name, text in (("broken", "expected a number, got str"), ("endless", "finite number, got nan")):
        with pytest.raises(QuantizeError, match=text):
            metrics.load(f"own_metric:{name}").score(outputs, {}, None)


@pytest.mark.parametrize(
    ("name", "text"),
    (
        ("accuracy", "expected one of agreement, error, top1"),
        ("own_metric:", "or 'module:function'"),
        ("__import__('os'):system", "or 'module:function'"),
        ("no_such_module_here:f", "cannot be imported"),
        ("own_metric:nothing", "has no 'nothing'"),
        ("own_metric:number", "expected a function, got int"),
    ),
)
def test_unknown_names(own, name, text):
    with pytest.raises(QuantizeError, match=text):
        metrics.load(name)
