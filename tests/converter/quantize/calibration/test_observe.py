"""Observed values are those that the float model computes: against onnxruntime, in any order, with exact counts."""

from __future__ import annotations

import numpy as np
import pytest

from converter.errors import QuantizeError
from converter.quantize import calibration_data
from converter.quantize.calibration.observe import BINS, Runner, channel_axis, observable, observe
from tests.converter.quantize.support import prepared, run
from tests.converter.support import Builder


def network(batch=1):
    b = Builder(seed=5)
    x = b.input("x", [batch, 3, 7, 6])
    y = b("Relu", b("Conv", x, b.weight(5, 3, 3, 3), b.weight(5), pads=[1, 1, 1, 1]))
    y = b("MaxPool", y, kernel_shape=[2, 2], strides=[2, 2])
    y = b("MatMul", b("Flatten", y), b.weight(45, 4))
    return prepared(b.model(b("Softmax", y)))


def rows(count=4, seed=0):
    return np.random.default_rng(seed).standard_normal((count, 3, 7, 6)).astype(np.float32)


def test_every_tensor_equals_onnxruntimes():
    model = network()
    names = list(observable(model))
    before = [node.name for node in model.graph]
    found = Runner(model, names).run({"x": rows(1)})
    assert [node.name for node in model.graph] == before and len(model.graph.outputs) == 1
    exposed = model.clone()
    exposed.graph.outputs[:] = [v for n in exposed.graph for v in n.outputs]
    wanted = dict(zip((v.name for v in exposed.graph.outputs), run(exposed, {"x": rows(1)}), strict=True))
    assert set(names) == wanted.keys() | {"x"} and set(found) >= set(names)
    for name, array in wanted.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-4, atol=1e-5)


def test_unknown_tensors_are_refused():
    with pytest.raises(QuantizeError, match="'nothing'"):
        Runner(network(), ["nothing"])


def test_statistics_are_exact():
    model, data = network(), rows(6)
    names = [n for n, v in observable(model).items() if n != "x"]
    runner, samples = Runner(model, ["x", *names]), calibration_data(data, model)
    found = observe(runner, samples, {name: channel_axis(v) for name, v in observable(model).items()})
    for name, statistics in found.items():
        values = np.concatenate([runner.run(row)[name] for row in samples])
        assert statistics.low == values.min() and statistics.high == values.max()
        assert statistics.counts.sum() == statistics.elements == values.size
        wanted, _ = np.histogram(values.astype(np.float64), BINS, (statistics.low, statistics.high))
        assert np.abs(wanted - statistics.counts).sum() <= 4  # a value on the edge of two bins may fall on either side
        channels = np.moveaxis(values, statistics.axis, -1).reshape(-1, values.shape[statistics.axis])
        np.testing.assert_array_equal(statistics.channel_low, channels.min(axis=0))
        np.testing.assert_array_equal(statistics.channel_high, channels.max(axis=0))
        np.testing.assert_allclose(statistics.channel_mean, channels.mean(axis=0), rtol=1e-4, atol=1e-5)


def test_order_and_threads_change_no_bit():
    model, data = network(), rows(8)
    names = list(observable(model))
    first = observe(Runner(model, names), calibration_data(data, model))
    other = observe(Runner(model, names, threads=2), calibration_data(data[::-1], model))
    assert first.keys() == other.keys()
    for name, statistics in first.items():
        assert statistics.low == other[name].low and statistics.high == other[name].high
        np.testing.assert_array_equal(statistics.counts, other[name].counts)
        np.testing.assert_array_equal(statistics.channel_mean, other[name].channel_mean)


def test_channels():
    found = {v.producer().op_type: channel_axis(v) for v in observable(network()).values() if v.producer()}
    assert found["Conv"] == found["MaxPool"] == 1 and found["MatMul"] == found["Softmax"] == -1


def test_constants_and_very_many_values():
    b = Builder()
    x = b.input("x", [1, 3])
    model = prepared(b.model(b("Mul", b("Exp", x), b.const([0.0], np.float32))))
    name = model.graph.outputs[0].name
    quiet = observe(Runner(model, [name]), calibration_data(np.ones((2, 3)), model))[name]
    assert quiet.constant and quiet.counts.sum() == 0 and quiet.low == 0
    loud = observable(model)
    exploded = next(n for n, v in loud.items() if v.producer() is not None and v.producer().op_type == "Exp")
    with pytest.raises(QuantizeError, match="NaN or infinite"):
        observe(Runner(model, [exploded]), calibration_data(np.full((2, 3), 1e4), model))


def test_rows_of_different_sizes():
    b = Builder()
    model = prepared(b.model(b("Relu", b.input("x", [1, "length"]))))
    samples = calibration_data([np.ones((1, 3)), -np.ones((1, 5))], model)
    (statistics,) = observe(Runner(model, [model.graph.outputs[0].name]), samples).values()
    assert statistics.elements == 8 and statistics.high == 1 and not statistics.channel_mean.size
