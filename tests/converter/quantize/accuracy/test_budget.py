"""The budget is met, most of the size gain is kept, and an impossible budget is explained."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from converter.errors import QuantizeError
from converter.quantize import Options, calibration_data, quantize
from converter.quantize.accuracy import budget, metrics
from converter.quantize.accuracy.budget import Budget
from tests.converter.quantize.support import outlier_network, prepared, run, samples


def test_parsing():
    share, unit = metrics.METRICS["top1"].share, metrics.METRICS["rmse"].share
    assert Budget.parse("0.5%", share) == Budget(0.005) and Budget.parse(" 2 % ", unit) == Budget(0.02, True)
    assert Budget.parse(0.01, share) == Budget(0.01) == Budget.parse(".01", unit)
    assert Budget(0.02, True).limit(-50.0) == 1.0
    for text in ("-1%", "half", "", "1%%", "nan", "1e3"):
        with pytest.raises(QuantizeError, match="expected a number like"):
            Budget.parse(text, share)


@given(st.integers(0, 40), st.integers(0, 41))
def test_bisection_finds_the_shortest_prefix(count, first):
    tried = []

    def holds(n: int) -> bool:
        tried.append(n)
        return n >= first

    assert budget.shortest(count, holds) == (first if first <= count else None)
    assert len(tried) <= 8


MSE = Options(method="mse")
"""One method for ranges: a search that chooses among all takes twice as long. The other tests have it choose."""


@pytest.fixture(scope="module")
def broken():
    """A network that plain int8 breaks, calibration rows, and an evaluator on other rows."""
    model = prepared(outlier_network(0, width=32, layers=4))
    x = np.random.default_rng(1).standard_normal((260, 16)).astype(np.float32)
    rows = [{"x": x[i : i + 1]} for i in range(60, 260)]
    return model, samples(model, x[:60]), metrics.Evaluator(model, rows, metrics.METRICS["agreement"])


def test_a_network_that_int8_breaks_is_repaired(broken):
    model, rows, evaluate = broken
    plain = model.clone()
    quantize(plain, MSE, rows)
    assert evaluate(plain) < 0.9
    steps = []
    found = budget.search(model, MSE, rows, evaluate, Budget(0.01), progress=lambda *s: steps.append(s))
    assert found.drop <= 0.01 and found.base == 1 and found.score == evaluate(found.variant.model) >= 0.99
    assert found.gain >= 0.8 and found.bytes == budget.stored_bytes(found.variant.model)
    assert found.full_bytes <= found.bytes < 0.5 * found.float_bytes
    assert 0 < len(found.variant.float_nodes) + len(found.variant.weight_nodes) < len(found.ranking)
    assert steps and found.trials < 60
    again = budget.search(model, MSE, rows, evaluate, Budget(0.01))
    assert again.variant.float_nodes == found.variant.float_nodes
    assert again.variant.weight_nodes == found.variant.weight_nodes
    x = {"x": np.ones((1, 16), np.float32)}
    assert np.array_equal(run(again.variant.model, x)[0], run(found.variant.model, x)[0])


def test_a_budget_that_holds_at_once_needs_no_search(broken):
    model, rows, evaluate = broken
    found = budget.search(model, Options(), rows, evaluate, Budget(1.0))
    assert found.trials == 1 and found.ranking == () and found.gain >= 0.99
    assert found.variant.float_nodes == () == found.variant.weight_nodes


def test_weights_only_steps_to_eight_bits(broken):
    model, rows, _ = broken
    evaluated = [{"x": row["x"]} for row in rows.rows]
    evaluate = metrics.Evaluator(model, evaluated, metrics.METRICS["error"])
    found = budget.search(model, Options(mode="w4"), rows, evaluate, Budget(0.02))
    assert 0 < found.score <= 0.02 and found.gain > 0.7
    assert len(found.variant.weight_nodes) > len(found.variant.float_nodes)


def test_a_budget_that_cannot_be_reached_is_explained(broken):
    model, rows, evaluate = broken
    with pytest.raises(
        QuantizeError, match=r"may be 0 worse .* the size gain is 0\.\d+ worse\. Most expensive: \S+ \("
    ):
        budget.search(model, MSE, rows, evaluate, Budget(0.0), least_gain=1.0)


def test_a_vision_transformer(shared_models, shared_data):
    import onnx

    model = prepared(onnx.load(shared_models / "vnncomp23_vit_pgd_2_3_16.onnx"))
    held = np.load(shared_data / "cifar10_calibration.npz")
    mean, deviation = np.array([0.4914, 0.4822, 0.4465]), np.array([0.2471, 0.2435, 0.2616])
    x = ((held["x"] / 255 - mean) / deviation).astype(np.float32).transpose(0, 3, 1, 2)
    rows = [{"input": x[i : i + 1]} for i in range(200, 500)]
    evaluate = metrics.Evaluator(model, rows, metrics.METRICS["top1"], held["y"][200:])
    assert evaluate.base > 0.55
    samples_ = calibration_data({"input": x[:100]}, model)
    found = budget.search(model, Options(), samples_, evaluate, Budget.parse("0.5%", evaluate.metric.share))
    assert found.drop <= 0.005 and found.gain >= 0.8
