"""Sensitivity: the node with the largest effect comes first, and one calibration serves all variants."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from converter.errors import QuantizeError
from converter.quantize import Options, quantize
from converter.quantize.accuracy import metrics
from converter.quantize.accuracy.sensitivity import _SKIPPED, Sensitivity, Variants, measure
from converter.quantize.steps import STEPS
from tests.converter.quantize.support import Builder, outlier_network, prepared, run, samples

# minmax: other methods widen ranges by a trial, which `quantize` makes anew for each choice of nodes
PLAIN = Options(method="minmax", equalize=False, bias_correction=False, gptq=False)


@pytest.fixture(scope="module")
def network():
    model = prepared(outlier_network(1, width=24, layers=3))
    x = np.random.default_rng(1).standard_normal((60, 16)).astype(np.float32)
    rows = [{"x": x[i : i + 1]} for i in range(30, 60)]
    return model, samples(model, x[:30]), rows


def test_the_outlier_is_found_and_the_rest_follows_in_order(network):
    model, rows, evaluated = network
    seen = []
    evaluate = metrics.Evaluator(model, evaluated, metrics.METRICS["agreement"])
    variants = Variants(model, PLAIN, rows)
    ranking = measure(variants, evaluate, lambda *step: seen.append(step))
    gemms = [n for n in model.graph if n.op_type in ("MatMul", "Gemm")]
    guilty = gemms[4].name  # the second matrix of the middle block reads the outliers
    assert ranking[0].name == guilty and ranking[0].snr < 15 < ranking[1].snr
    assert [s.noise for s in ranking] == sorted((s.noise for s in ranking), reverse=True)
    assert {s.name for s in ranking} == set(variants.nodes()) >= {n.name for n in gemms}
    assert seen[0][1] == 0 and seen[-1] == ("sensitivity", len(ranking), len(ranking))
    assert ranking == measure(variants, evaluate)


def test_variants_are_what_quantize_makes(network):
    model, rows, evaluated = network
    variants = Variants(model, PLAIN, rows)
    name = next(iter(variants.nodes()))
    for floats, weights in (((), ()), ((name,), ()), ((), (name,))):
        ours = variants.make(float_nodes=floats, weight_nodes=weights).model
        theirs = model.clone()
        options = replace(PLAIN, keep_float=floats, weight_only=weights)
        quantize(theirs, options, rows)
        for row in evaluated[:3]:
            assert np.array_equal(run(ours, row)[0], run(theirs, row)[0])


@pytest.mark.parametrize("mode", ("int8", "int16x8", "w8", "w4", "dynamic"))
def test_all_in_float_is_the_float_model(network, mode):
    model, rows, evaluated = network
    variants = Variants(model, Options(mode=mode, bias_correction=False), rows)
    everything = variants.make(float_nodes=variants.nodes()).model
    assert np.array_equal(run(everything, evaluated[0])[0], run(model, evaluated[0])[0])
    assert not np.array_equal(run(variants.make().model, evaluated[0])[0], run(model, evaluated[0])[0])


def test_wider_weights_of_w4_are_better():
    b = Builder(seed=2)
    x = b("Relu", b("MatMul", b.input("x", ["n", 32]), b.weight(32, 64)))
    model = prepared(b.model(b("MatMul", x, b.weight(64, 32))))
    inputs = {"x": np.random.default_rng(2).standard_normal((20, 32)).astype(np.float32)}
    variants, wanted = Variants(model, Options(mode="w4"), None), run(model, inputs)[0]
    errors = [
        metrics.relative_error(wanted, run(variants.make(weight_nodes=names).model, inputs)[0])
        for names in ((), list(variants.nodes())[:1], variants.nodes())
    ]
    assert errors[2] < 0.1 * errors[0] and errors[2] < errors[1] < 0.9 * errors[0]


def test_static_modes_need_samples(network):
    with pytest.raises(QuantizeError, match="'int8' needs calibration data"):
        Variants(network[0], PLAIN, None)


def test_the_noise_of_equal_outputs_is_zero():
    assert Sensitivity("a", "Relu", math.inf, 1.0, 0.0).noise == 0
    assert Sensitivity("a", "Relu", 20.0, 1.0, 0.0).noise == pytest.approx(0.01)


def test_the_excluded_steps_exist():
    assert set(_SKIPPED) <= {step.name for step in STEPS}
