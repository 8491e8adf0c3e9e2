"""The search of ranges, and the simulation that it runs in."""

from __future__ import annotations

import numpy as np

from converter.quantize import METHODS, STEPS, Options, Record, State, calibration_data, quantize, run_steps
from converter.quantize.calibration.effort import affordable, run_seconds
from converter.quantize.calibration.observe import Runner
from converter.quantize.calibration.simulation import Simulation
from converter.quantize.ranges import _ratio
from converter.quantize.state import WAYS
from tests.converter.quantize.support import prepared, run
from tests.converter.support import Builder

PLAIN = {"equalize": False, "gptq": False, "bias_correction": False}


def network(seed=0, outputs=5, limit=6):
    """A convolution, a depthwise one and a pointwise one between ReLU6s, on a picture of odd size."""
    b = Builder(seed=seed)
    x = b.input("x", [1, 3, 11, 9])
    zero, six = b.const(np.float32(0)), b.const(np.float32(limit))
    y = b("Clip", b("Conv", x, b.weight(8, 3, 3, 3), b.weight(8), pads=[1, 1, 1, 1]), zero, six)
    y = b("Clip", b("Conv", y, b.weight(8, 1, 3, 3), b.weight(8), group=8), zero, six)
    return prepared(b.model(b("Conv", y, b.weight(outputs, 8, 1, 1), b.weight(outputs))))


def pictures(count, seed=0):
    return np.random.default_rng(seed).standard_t(3, (count, 3, 11, 9)).astype(np.float32)


def calibrated(model, options, data):
    state = State(model, options, calibration_data(data, model), Record("int8"))
    for step in STEPS[: [s.name for s in STEPS].index("keep the float model")]:
        if step.applies(options):
            step.run(state)
    return state


def test_the_simulation_is_the_quantised_model():
    model, data = network(), pictures(8)
    state = calibrated(model, Options(method="minmax", **PLAIN), data)
    simulation = Simulation(model, state.plan, state.weights)
    quantised = model.clone()
    quantize(quantised, Options(method="minmax", **PLAIN), data)
    for x in pictures(4, 1):
        (got,) = simulation.run({"x": x[None]}, state.params, {})
        want, exact = run(quantised, {"x": x[None]})[0], run(model, {"x": x[None]})[0]
        assert np.abs(got - want).max() < 0.2 * np.abs(exact - want).max() + 1e-4


def test_a_correction_moves_the_mean_of_a_channel():
    model, data = network(), pictures(4)
    state = calibrated(model, Options(method="minmax", **PLAIN), data)
    simulation = Simulation(model, state.plan, state.weights)
    last = list(state.plan.tensors)[-1]
    shift = np.zeros(8, np.float32)
    shift[3] = 0.5
    before, after = (simulation.run({"x": data[:1]}, state.params, s)[0] for s in ({}, {last: shift}))
    weight = next(n for n in reversed(list(model.graph)) if n.op_type == "Conv").inputs[1].const_value.numpy()
    moved = np.broadcast_to(0.5 * weight[:, 3], before[0].shape)
    np.testing.assert_allclose((before - after)[0], moved, atol=0.01 * np.abs(weight).max())


def test_every_method_is_tried():
    assert {way.method for way in WAYS} == set(METHODS) - {"auto"}


def test_auto_is_close_to_the_best_method():
    model, data, held = network(3, limit=1e6), pictures(24, 3), pictures(24, 9)

    def noise(method):
        copy = model.clone()
        quantize(copy, Options(method=method, equalize=False), data)
        pairs = [(run(model, {"x": x[None]})[0], run(copy, {"x": x[None]})[0]) for x in held]
        return sum(float(np.square(a - b).sum()) for a, b in pairs)

    assert noise("auto") < 1.1 * min(noise(method) for method in METHODS if method != "auto")


def test_sizes_that_depend_on_the_numbers():
    """Neither channels nor results have the same size in all rows, nor before and after rounding."""
    b = Builder(seed=1)
    y = b("MatMul", b.input("x", [6, 8]), b.weight(8, 8))
    kept = b("Greater", b("ReduceSum", y, b.const(np.array([0])), keepdims=0), b.const(np.float32(0)))
    some = b("Compress", b("Relu", y), kept, axis=1)
    model = prepared(b.model(b("MatMul", b.weight(5, 6), b("Mul", some, some))))
    data = np.random.default_rng(0).standard_normal((8, 6, 8)).astype(np.float32)
    copy = model.clone()
    quantize(copy, Options(), data)
    pairs = [(run(model, {"x": x})[0], run(copy, {"x": x})[0]) for x in data]
    assert len({want.shape for want, _ in pairs}) > 1
    errors = [np.abs(got - want).max() / np.abs(want).max() for want, got in pairs if got.shape == want.shape]
    assert len(errors) > 4 and max(errors) < 0.05


def test_a_result_of_another_size_is_noise():
    wanted = (np.full((2, 3), 4.0, np.float32),)
    assert _ratio(wanted, (np.zeros((0, 3), np.float32),)) == 0 > _ratio(wanted, (np.full((2, 3), 3.0, np.float32),))


def test_a_costly_model_gets_fewer_rows():
    small, wide = (prepared_convolution(size) for size in (8, 512))
    assert run_seconds(wide) > 1000 * run_seconds(small)
    assert affordable(1.0, 0.1, 2, 64) == 10 and affordable(1.0, 10.0, 2, 64) == 2 and affordable(1.0, 0.0, 2, 64) == 64


def prepared_convolution(size):
    b = Builder()
    return prepared(b.model(b("Conv", b.input("x", [1, 16, size, size]), b.weight(16, 16, 3, 3))))


def test_progress_is_told_before_each_step():
    told = []
    run_steps(network(), Options(**PLAIN, method="minmax"), pictures(2), lambda *given: told.append(given))
    assert [done for _, done, _ in told] == list(range(len(told))) and {total for *_, total in told} == {len(told)}
    assert all(what.startswith("quantise: ") for what, *_ in told)


def test_a_slow_run_uses_two_threads_with_equal_results():
    model = prepared_convolution(512)
    row = {"x": np.random.default_rng(0).standard_normal((1, 16, 512, 512)).astype(np.float32)}
    one, chosen = (Runner(model, (), threads=n).run(row) for n in (1, 0))
    for name in one:
        np.testing.assert_array_equal(one[name], chosen[name])


def test_the_range_of_what_a_table_reads_is_that_of_its_results():
    """A HardSwish is 0 below -3: those values need no integers."""
    b = Builder(seed=2)
    y = b("MatMul", b.input("x", [1, 16]), b.weight(16, 32))
    model = prepared(b.model(b("MatMul", b("HardSwish", y), b.weight(32, 4))))
    data = {"x": 12 * np.random.default_rng(0).standard_normal((64, 16)).astype(np.float32)}
    lows = [
        min(p.low for v, p in calibrated(model, Options(method=method, **PLAIN), data).params.items() if v.name == y)
        for method in ("minmax", "mse")
    ]
    assert lows[0] < -20 and -5 < lows[1] < -2.5
