"""GPTQ: less error where inputs are correlated, the original's algorithm, and no dependence on order."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from converter.quantize.calibration import exact
from converter.quantize.rounding import gptq, weights
from tests.converter.quantize.support import Builder, prepared, run, samples


def correlated(rng: np.random.Generator, rows: int, size: int) -> np.ndarray:
    basis = rng.standard_normal((size, size)) * np.exp(-np.arange(size) / (size / 8))[:, None]
    return (rng.standard_normal((rows, size)) @ basis + 0.1 * rng.standard_normal((rows, size))).astype(np.float32)


def hessian(x: np.ndarray) -> np.ndarray:
    gram = exact.Gram(np.abs(x).max(axis=0))
    gram.add(x)
    return gram.matrix


def published(weight: np.ndarray, hessian: np.ndarray, scale: np.ndarray, bits: int) -> np.ndarray:
    """Algorithm 1 of the paper, one column after the other, with the Cholesky factor of the inverse."""
    weight = weight.astype(np.float64).copy()
    damped = hessian + gptq.DAMPING * np.diag(hessian).mean() * np.eye(len(hessian))
    upper = np.linalg.cholesky(np.linalg.inv(damped)).T
    values = np.zeros(weight.shape, np.int8)
    for i in range(len(weight)):
        values[i] = weights.round_to(weight[i], scale, bits)
        error = (weight[i] - values[i] * scale.astype(np.float64)) / upper[i, i]
        weight[i:] -= np.outer(upper[i, i:], error)
    return values


@pytest.mark.parametrize("bits", (8, 4))
def test_it_is_the_published_algorithm(bits):
    rng = np.random.default_rng(0)
    h, w = hessian(correlated(rng, 600, 90)), rng.standard_normal((90, 30)).astype(np.float32)
    values, scales = gptq.round_layer(w, h, np.zeros(90, int), bits=bits, activation_order=False)
    wanted = published(w, h, scales[0], bits)
    # float64 of another order of operations: a tie may fall the other way, and what follows it
    assert (values != wanted).mean() < 0.005


@pytest.mark.parametrize(("bits", "block"), ((4, 32), (4, 0), (8, 0), (4, 7)))
def test_it_beats_rounding_to_nearest(bits, block):
    rng = np.random.default_rng(1)
    x, w = correlated(rng, 800, 150), rng.standard_normal((150, 40)).astype(np.float32)
    groups = np.arange(150) // block if block else np.zeros(150, int)
    nearest = weights.blockwise(w, 0, block, bits=bits) if block else weights.per_channel(w, 1, bits=bits, search=True)
    for ordered in (False, True):
        values, scales = gptq.round_layer(w, hessian(x), groups, bits=bits, activation_order=ordered)
        assert values.min() >= weights.LEVELS[bits][0] and values.max() <= weights.LEVELS[bits][1]
        ours, plain = (np.square(x @ (w - q)).sum() for q in (values * scales[groups], nearest.dequantize()))
        assert ours < 0.35 * plain


@given(st.integers(0, 2**32 - 1))
def test_never_worse_than_plain_rounding_on_its_own_data(seed):
    rng = np.random.default_rng(seed)
    size = int(rng.integers(1, 40))
    x, w = rng.standard_normal((3, size)).astype(np.float32), rng.standard_normal((size, 3)).astype(np.float32)
    h = hessian(x)
    values, scales = gptq.round_layer(w, h, np.zeros(size, int), bits=4)
    plain = weights.per_channel(w, 1, bits=4, search=True).dequantize()
    cost = [((w - q) * (h @ (w - q))).sum() for q in (values * scales[0], plain)]
    assert cost[0] <= cost[1] * (1 + 1e-3) + 1e-6


def test_inputs_never_seen_do_no_harm():
    rng = np.random.default_rng(2)
    w = rng.standard_normal((20, 8)).astype(np.float32)
    for h in (np.zeros((20, 20)), np.diag([1.0] * 10 + [0.0] * 10), np.ones((20, 20))):
        values, scales = gptq.round_layer(w, h, np.zeros(20, int), bits=8)
        assert np.isfinite(scales).all() and np.abs(values * scales[0] - w).max() < 0.3


def network(seed: int = 3) -> Builder:
    b = Builder(seed=seed)
    x = b("Relu", b("Conv", b.input("x", ["n", 4, 10, 10]), b.weight(40, 4, 3, 3), pads=[1] * 4, strides=[2, 2]))
    x = b("Relu", b("Conv", x, b.weight(48, 40, 3, 3), dilations=[2, 2], pads=[2] * 4))
    x = b("Relu", b("Conv", x, b.weight(64, 48, 1, 1)))
    x = b("Flatten", b("GlobalAveragePool", x))
    x = b("Relu", b("Gemm", x, b.weight(96, 64), b.weight(96), transB=1))
    b("MatMul", x, b.weight(96, 33))
    return b


@pytest.mark.parametrize(("bits", "block"), ((4, 32), (4, 0), (8, 0)))
def test_a_whole_model(bits, block):
    b = network()
    model = prepared(b.model(b.nodes[-1].output[0]))
    rng = np.random.default_rng(4)
    x = correlated(rng, 60, 400).reshape(60, 4, 10, 10)
    ready = gptq.round_weights(model, samples(model, x[:40]), bits=bits, block_size=block)
    assert {q.values.shape for q in ready.values()} == {
        (40, 4, 3, 3),
        (48, 40, 3, 3),
        (64, 48, 1, 1),
        (96, 64),
        (96, 33),
    }
    before = run(model, {"x": x[40:]})[0]
    noise = []
    for given_ready in ({}, ready):
        copy = model.clone()
        stored = weights.quantize_weights_only(copy, bits=bits, block_size=block, ready=given_ready)
        noise.append(np.square(run(copy, {"x": x[40:]})[0] - before).sum())
        shapes = {s.quantized.values.shape: s.quantized.scales.shape for s in stored}
        assert shapes[48, 40, 3, 3] == ((48, 2, 3, 3) if block else (48,))
    assert noise[1] < 0.6 * noise[0]


def test_order_of_samples_changes_nothing():
    b = network(5)
    model = prepared(b.model(b.nodes[-1].output[0]))
    x = np.random.default_rng(6).standard_normal((12, 4, 10, 10)).astype(np.float32)
    first, second = (gptq.round_weights(model, samples(model, d), bits=4) for d in (x, x[::-1]))
    assert first.keys() == second.keys() and len(first) == 5
    for name in first:
        assert np.array_equal(first[name].values, second[name].values)
        assert np.array_equal(first[name].scales, second[name].scales)


def test_stacked_layers_are_rounded_as_each_would_be_alone():
    rng = np.random.default_rng(7)
    x = np.stack([correlated(rng, 200, 70) * scale for scale in (1, 3, 0.1)])
    w = rng.standard_normal((3, 70, 5)).astype(np.float32)
    gram = exact.Gram(np.abs(x).max(axis=1))
    gram.add(x)
    h = gram.matrix
    h[1] = 0
    groups = np.arange(70) // 32
    values, scales = gptq.round_layer(w, h, groups, bits=4)
    for i in range(3):
        alone = gptq.round_layer(w[i], h[i], groups, bits=4)
        assert np.array_equal(values[i], alone[0]) and np.array_equal(scales[i], alone[1])


def test_a_matrix_that_cannot_be_rounded_well_does_not_harm_others():
    rng = np.random.default_rng(8)
    h = np.stack([hessian(correlated(rng, 200, 20)), -np.eye(20)])
    w = rng.standard_normal((2, 20, 4)).astype(np.float32)
    values, scales = gptq.round_layer(w, h, np.zeros(20, int), bits=8)
    assert np.array_equal(values[0], gptq.round_layer(w[0], h[0], np.zeros(20, int), bits=8)[0])
    assert np.isfinite(scales).all()


@pytest.mark.parametrize(("group", "channels"), ((12, 12), (3, 12), (1, 12)))
def test_grouped_convolutions_and_their_mean(group, channels):
    """Depthwise kernels see correlated pixels; and after a Relu it is mostly their mean that rounding errors meet."""
    b = Builder(seed=9)
    weight = b.weight(24, channels // group, 3, 3)
    b("Conv", b.input("x", ["n", channels, 12, 12]), weight, b.weight(24), group=group, pads=[1] * 4)
    model = prepared(b.model(b.nodes[-1].output[0]))
    rng = np.random.default_rng(10)
    smooth = np.cumsum(np.cumsum(rng.standard_normal((24, channels, 12, 12)), 2), 3)
    x = np.maximum(smooth + 3, 0).astype(np.float32)
    ready = gptq.round_weights(model, samples(model, x[:16]), bits=8, block_size=0, smallest=1)
    (made,) = ready.values()
    assert made.values.shape == (24, channels // group, 3, 3) and made.shift is not None and made.shift.shape == (24,)
    before, noise = run(model, {"x": x[16:]})[0], []
    for given_ready in ({}, ready):
        copy = model.clone()
        weights.quantize_weights_only(copy, bits=8, block_size=0, smallest=1, ready=given_ready)
        noise.append(np.square(run(copy, {"x": x[16:]})[0] - before).sum())
    assert noise[1] < 0.3 * noise[0]


@pytest.mark.parametrize(("bits", "block"), ((8, 0), (4, 32), (4, 7)))
def test_a_long_layer_is_rounded_in_parts(bits, block, monkeypatch):
    """H is cut into diagonal blocks where the whole would take too long: less good than whole, better than nearest."""
    rng = np.random.default_rng(5)
    b = Builder(seed=5)
    model = prepared(b.model(b("MatMul", b.input("x", ["n", 300]), b.weight(300, 20))))
    rows = correlated(rng, 1600, 300)
    data, held = samples(model, rows[:1200]), rows[1200:]
    weight = next(v.const_value.numpy() for v in model.graph.initializers.values() if v.const_value.size == 6000)

    def error(found):
        return float(np.square(held @ (found.dequantize() - weight)).sum())

    (whole,) = gptq.round_weights(model, data, bits=bits, block_size=block).values()
    monkeypatch.setattr(gptq, "_LENGTHS", (128,))
    (parted,) = gptq.round_weights(model, data, bits=bits, block_size=block).values()
    (again,) = gptq.round_weights(model, data, bits=bits, block_size=block).values()
    assert np.array_equal(parted.values, again.values) and not np.array_equal(parted.values, whole.values)
    place, *_ = next(weights.places(model.graph[0]))
    nearest = weights.quantize_place(weight, place, bits=bits, block=block)
    assert parted.values.shape == weight.shape and parted.scales.shape == whole.scales.shape
    assert error(whole) < 1.05 * error(parted) and error(parted) < 0.9 * error(nearest)


def test_parts_cover_a_layer():
    assert gptq._parts(300, 1 << 20) == [(0, 300)] and gptq._parts(128, 128) == [(0, 128)]
    for length, most in ((300, 128), (4608, 1024), (129, 128), (513, 512)):
        parts = gptq._parts(length, most)
        assert parts[0][0] == 0 and parts[-1][1] == length and all(b - a <= most for a, b in parts)
        assert all(x[1] == y[0] for x, y in pairwise(parts))
