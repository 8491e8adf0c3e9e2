"""Equalisation: the float result stays, and int8 gains."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from converter.quantize import Options, quantize
from converter.quantize.rounding import equalize
from tests.converter.quantize.support import Builder, prepared, run, samples


def uneven(b: Builder, *shape: int, axis: int = 0, spread: float = 2.0) -> str:
    factors = np.exp(b.rng.standard_normal(shape[axis]) * spread)
    return b.const((b.rng.standard_normal(shape) * np.moveaxis(np.broadcast_to(factors, [
        n for i, n in enumerate(shape) if i != axis] + [shape[axis]]), -1, axis)).astype(np.float32))  # fmt: skip


def chain(seed: int, activation: str = "Relu", spread: float = 2.0) -> Builder:
    """Conv, depthwise, pointwise, pooled, flattened, two dense layers."""
    b = Builder(seed=seed)
    x = b("Conv", b.input("x", ["n", 3, 8, 8]), uneven(b, 16, 3, 3, 3, spread=spread), b.weight(16), pads=[1] * 4)
    x = b("Conv", b(activation, x), uneven(b, 16, 1, 3, 3, spread=spread), b.weight(16), group=16)
    x = b("PRelu", x, b.const(b.rng.random((16, 1, 1)), np.float32))
    x = b("Add", b("Conv", x, uneven(b, 24, 16, 1, 1, spread=spread)), b.weight(24, 1, 1))
    x = b("Flatten", b("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2]))
    x = b("Relu", b("Add", b("MatMul", x, uneven(b, 24 * 9, 20, axis=1, spread=spread)), b.weight(20)))
    b("Gemm", x, b.weight(10, 20), transB=1)
    return b


def drawn(seed: int, count: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((count, *shape)).astype(np.float32)


def equalised(model, data) -> int:
    return equalize.run(model, equalize.measure(model, samples(model, data)))


@given(st.integers(0, 2**32 - 1), st.sampled_from(("Relu", "LeakyRelu", "Identity")))
@settings(max_examples=10, deadline=None)
def test_the_float_result_stays(seed, activation):
    b = chain(seed, activation)
    model, data = prepared(b.model(b.nodes[-1].output[0])), drawn(seed, 6, 3, 8, 8)
    before = run(model, {"x": data})[0]
    assert equalised(model, data) > 0
    after = run(model, {"x": data})[0]
    np.testing.assert_allclose(after, before, rtol=0, atol=1e-5 * np.abs(before).max())


def test_balanced_networks_are_not_changed():
    b = Builder(seed=1)
    x = b("Relu", b("Gemm", b.input("x", ["n", 8]), b.const(np.ones((8, 8), np.float32))))
    model = prepared(b.model(b("Gemm", x, b.const(np.full((8, 8), 3, np.float32)))))
    assert len(equalize.links(model)) == 1 and equalised(model, drawn(1, 9, 8)) == 0


def test_a_depthwise_layer_gets_channels_of_nearly_equal_range():
    """Its weights have a scale for each channel, so only unseen values speak against full factors."""
    b = Builder(seed=7)
    h = b("Conv", b.input("x", [1, 3, 8, 8]), uneven(b, 16, 3, 1, 1, spread=0.7), b.weight(16))
    model = prepared(b.model(b("Conv", h, b.weight(16, 1, 3, 3), b.weight(16), group=16)))
    assert equalised(model, drawn(7, 8, 3, 8, 8)) == 1
    (seen,) = equalize.measure(model, samples(model, drawn(7, 8, 3, 8, 8))).values()
    assert seen.largest.max() < 1.4 * seen.largest.min()


def clipped(high: float) -> tuple[Builder, str]:
    b = Builder(seed=8)
    h = b("Conv", b.input("x", [1, 3, 8, 8]), uneven(b, 16, 3, 1, 1, spread=1.0), b.weight(16))
    h = b("Clip", h, b.const(0, np.float32), b.const(high, np.float32))
    return b, b("Conv", h, b.weight(16, 1, 3, 3), b.weight(16), group=16)


def test_channels_that_never_reach_the_bound_of_a_clip_are_enlarged():
    data = drawn(8, 8, 3, 8, 8)
    b, y = clipped(6.0)
    model = prepared(b.model(y))
    before = run(model, {"x": data[:1]})[0]
    (seen,) = equalize.measure(model, samples(model, data)).values()
    assert equalised(model, data) == 1
    np.testing.assert_allclose(run(model, {"x": data[:1]})[0], before, atol=1e-5 * np.abs(before).max())
    (after,) = equalize.measure(model, samples(model, data)).values()
    assert after.largest.max() <= 6 and (after.largest >= seen.largest * (1 - 1e-6)).all()
    reached = seen.largest >= 6
    assert reached.any() and np.array_equal(after.largest[reached], seen.largest[reached])


def test_channels_that_reach_the_bound_of_a_clip_stay():
    b, y = clipped(1e-3)
    assert equalised(prepared(b.model(y)), drawn(8, 8, 3, 8, 8)) == 0


def minded(name: str) -> Builder:
    """Two layers with something between them that minds factors."""
    b = Builder(seed=2)
    first, second = uneven(b, 12, 4), uneven(b, 12, 12)
    h = b("Gemm", b.input("x", ["n", 4]), first, transB=1)
    between = {
        "shifted clip": lambda: b("Clip", h, b.const(1, np.float32), b.const(6, np.float32)),
        "sigmoid": lambda: b("Sigmoid", h),
        "residual": lambda: b("Add", h, b("Relu", h)),
        "second reader": lambda: (b("Tanh", h), b("Relu", h))[1],
        "softmax": lambda: b("Softmax", h),
        "computed factor": lambda: b("Mul", h, b("Relu", h)),
    }
    b("Gemm", between[name](), second)
    return b


def test_a_mean_does_not_hide_that_a_clip_was_reached():
    """Results that were clipped before a mean: the mean is far below the bound, and the float result must stay."""
    b, data = Builder(seed=9), drawn(9, 8, 3, 8, 8)
    h = b("Conv", b.input("x", ["n", 3, 8, 8]), uneven(b, 16, 3, 3, 3, spread=1.0), b.weight(16), pads=[1] * 4)
    h = b("Clip", h, b.const(0, np.float32), b.const(6, np.float32))
    h = b("Flatten", b("GlobalAveragePool", h))
    model = prepared(b.model(b("Gemm", h, uneven(b, 10, 16, axis=1, spread=1.0), transB=1)))
    before = run(model, {"x": data})[0]
    equalised(model, data)
    np.testing.assert_allclose(run(model, {"x": data})[0], before, rtol=0, atol=1e-5 * np.abs(before).max())


@pytest.mark.parametrize("name", ("shifted clip", "sigmoid", "residual", "second reader", "softmax", "computed factor"))
def test_operators_that_depend_on_scale_end_a_path(name):
    b = minded(name)
    outputs = [b.nodes[-1].output[0]] + [n.output[0] for n in b.nodes if n.op_type == "Tanh"]
    model = prepared(b.model(*outputs))
    assert equalize.links(model) == [] and equalised(model, drawn(2, 8, 4)) == 0


def test_shared_weights_and_graph_outputs_stay():
    b = Builder(seed=3)
    shared = uneven(b, 8, 8)
    h = b("Relu", b("MatMul", b.input("x", ["n", 8]), shared))
    y = b("MatMul", h, shared)
    assert equalised(prepared(b.model(y)), drawn(3, 8, 8)) == 0
    b = Builder(seed=3)
    h = b("Relu", b("MatMul", b.input("x", ["n", 8]), uneven(b, 8, 8)))
    assert equalised(prepared(b.model(b("MatMul", h, uneven(b, 8, 8)), h)), drawn(3, 8, 8)) == 0


def test_two_readers_and_groups():
    b = Builder(seed=4)
    h = b("Relu", b("Conv", b.input("x", ["n", 4, 5, 5]), uneven(b, 12, 2, 3, 3), b.weight(12), group=2))
    left = b("Conv", h, b.weight(6, 4, 1, 1), group=3)
    right = b("ConvTranspose", h, b.weight(12, 3, 2, 2), group=2)
    model = prepared(b.model(left, right))
    x = drawn(4, 8, 4, 5, 5)
    before = run(model, {"x": x})
    assert equalised(model, x) == 1
    for got, want in zip(run(model, {"x": x}), before, strict=True):
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-5 * np.abs(want).max())


def test_channels_of_zeros_stay():
    b = Builder(seed=5)
    first, second = b.rng.standard_normal((2, 8, 8)).astype(np.float32)
    first[:, 1], second[2], first[:, 3] = 0, 0, first[:, 3] * 1e4
    x = b("Relu", b("MatMul", b.input("x", ["n", 8]), b.const(first)))
    model = prepared(b.model(b("MatMul", x, b.const(second))))
    x = np.eye(8, dtype=np.float32)
    before = run(model, {"x": x})[0]
    assert equalised(model, x) == 1
    np.testing.assert_allclose(run(model, {"x": x})[0], before, rtol=1e-5, atol=1e-5 * np.abs(before).max())


def test_measured_ranges_help_int8():
    b = chain(6, spread=3.0)
    model = prepared(b.model(b.nodes[-1].output[0]))
    x = np.random.default_rng(6).standard_normal((48, 3, 8, 8)).astype(np.float32)
    rows, wanted = samples(model, x[:32]), run(model, {"x": x[32:]})[0]
    noise = []
    for even in (False, True):
        copy = model.clone()
        if even:
            seen = equalize.measure(copy, rows)
            assert len(seen) == 4 and equalize.run(copy, seen) >= 3
        quantize(copy, Options(equalize=False, bias_correction=False, gptq=False), rows)
        noise.append(np.square(run(copy, {"x": x[32:]})[0] - wanted).sum())
    assert noise[1] < 0.5 * noise[0]
