"""Weights as integers: errors of half a step, no repeated loss, zeros and infinities, and onnxruntime's results."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st

from converter.errors import QuantizeError
from converter.quantize.rounding import weights
from converter.quantize.rounding.weights import LEVELS, Place
from tests.converter.quantize.support import Builder, prepared, run

BITS = (8, 4)


def random_weight(seed: int, *shape: int, spread: float = 2.0) -> np.ndarray:
    """Weights whose rows differ in magnitude by powers of e."""
    rng = np.random.default_rng(seed)
    factors = np.exp(rng.standard_normal((shape[0],) + (1,) * (len(shape) - 1)) * spread)
    return (rng.standard_normal(shape) * factors).astype(np.float32)


@given(
    st.integers(0, 2**32 - 1), st.integers(1, 9), st.integers(1, 70), st.sampled_from(BITS), st.sampled_from((0, 8, 32))
)
def test_error_is_half_a_step_and_integers_stay_in_range(seed, rows, columns, bits, block):
    weight = random_weight(seed, rows, columns)
    made = (
        weights.blockwise(weight, 1, block, bits=bits, search=False)
        if block
        else weights.per_channel(weight, 0, bits=bits)
    )
    low, high = LEVELS[bits]
    assert made.values.min() >= low and made.values.max() <= high
    # float16 scales may be 1/2048 short of what the largest weight needs
    slack = 0.5 + (high / 2000 if block else 1e-3)
    assert (np.abs(made.dequantize() - weight) <= slack * made.steps()).all()


@given(st.integers(0, 2**32 - 1), st.sampled_from(BITS), st.booleans())
def test_quantising_twice_changes_nothing(seed, bits, search):
    once = weights.per_channel(random_weight(seed, 5, 40), 0, bits=bits, search=search).dequantize()
    # without a search the largest integer may not be used up, so the same scale has to be given
    again = weights.round_to(once, weights.per_channel(once, 0, bits=bits).steps(), bits)
    step = np.abs(once).max(axis=1, keepdims=True)
    assert np.allclose(again * weights.per_channel(once, 0, bits=bits).steps(), once, atol=float(step.max()) / 10)
    made = weights.per_channel(once, 0, bits=8).dequantize()
    if bits == 8:
        assert np.allclose(weights.per_channel(made, 0).dequantize(), made, rtol=1e-6)


@given(st.integers(0, 2**32 - 1), st.sampled_from(BITS))
def test_order_of_channels_changes_nothing(seed, bits):
    weight = random_weight(seed, 12, 33)
    order = np.random.default_rng(seed).permutation(12)
    plain, moved = (weights.blockwise(w, 1, 16, bits=bits) for w in (weight, weight[order]))
    assert np.array_equal(plain.values[order], moved.values)
    assert np.array_equal(plain.scales[order], moved.scales)


@given(st.integers(0, 2**32 - 1), st.sampled_from(BITS))
def test_search_never_adds_error(seed, bits):
    weight = np.random.default_rng(seed).standard_t(3, (6, 64)).astype(np.float32)
    errors = [
        np.square(weights.per_channel(weight, 0, bits=bits, search=s).dequantize() - weight).sum()
        for s in (True, False)
    ]
    assert errors[0] <= errors[1] * (1 + 1e-6)


def test_block_scales_are_float16_numbers_unless_out_of_its_range():
    made = weights.blockwise(random_weight(0, 4, 64), 1)
    assert np.array_equal(made.scales, made.scales.astype(np.float16).astype(np.float32))
    assert made.nbytes == 4 * 64 // 2 + 2 * made.scales.size
    tiny = weights.blockwise(np.full((4, 64), 1e-12, np.float32), 1)
    assert np.allclose(tiny.dequantize(), 1e-12, rtol=1e-6)
    assert tiny.nbytes == 4 * 64 // 2 + 4 * tiny.scales.size


@pytest.mark.parametrize("bits", BITS)
def test_channels_of_zeros_take_the_scale_of_their_neighbours(bits):
    weight = random_weight(1, 5, 20)
    weight[2] = 0
    made = weights.per_channel(weight, 0, bits=bits)
    assert made.scales[2] == np.median(made.scales[[0, 1, 3, 4]])
    assert not made.values[2].any()
    nothing = weights.per_channel(np.zeros((3, 4), np.float32), 1, bits=bits)
    assert (nothing.scales == 2.0**-7).all() and not nothing.values.any()
    assert weights.per_channel(np.zeros((0, 4), np.float32), 1).values.shape == (0, 4)


def test_subnormal_weights_do_not_overflow():
    made = weights.per_channel(np.array([[1e-44, -1e-44], [1.0, 2.0]], np.float32), 0)
    assert np.isfinite(made.dequantize()).all() and not made.values[0].any()


def test_least_scale_is_respected():
    made = weights.per_channel(random_weight(2, 4, 8), 0, least=np.array([0, 1e3, 0, 0], np.float32))
    assert made.scales[1] == 1e3 and not made.values[1].any()


@pytest.mark.parametrize("bad", (np.nan, np.inf, -np.inf))
def test_infinities_are_refused_by_name(bad):
    weight = random_weight(3, 4, 8)
    weight[1, 2] = bad
    with pytest.raises(QuantizeError, match=r"weight 'conv1\.w' holds 1 of 32 values that are NaN or infinite"):
        weights.per_channel(weight, 0, name="conv1.w")
    with pytest.raises(QuantizeError, match=r"conv1\.w"):
        weights.blockwise(weight, 0, name="conv1.w")


def test_wrong_requests_are_refused():
    weight = random_weight(4, 4, 8)
    with pytest.raises(QuantizeError, match="block of at least 1"):
        weights.blockwise(weight, 0, 0)
    with pytest.raises(QuantizeError, match="below its rank 2, got 2"):
        weights.per_channel(weight, 2)
    with pytest.raises(QuantizeError, match="expected floats"):
        weights.per_channel(weight.astype(np.int32), 0)


def network() -> onnx.ModelProto:
    """Every operator with weights but the recurrent ones: image [n, 6, 9, 9] and tokens [n, 7] -> [n, 7, 40]."""
    b = Builder(seed=5)
    image, tokens = b.input("image", ["n", 6, 9, 9]), b.input("tokens", ["n", 7], np.int64)
    x = b("Conv", image, b.weight(40, 6, 3, 3), b.weight(40), pads=[1] * 4)
    x = b("Relu", b("Conv", x, b.weight(40, 1, 3, 3), group=40))
    x = b("ConvTranspose", x, b.weight(40, 24, 2, 2), strides=[2, 2])
    x = b("Flatten", b("GlobalAveragePool", x))
    x = b("Gemm", x, b.weight(40, 24), b.weight(40), transB=1)
    words = b("MatMul", b("Gather", b.weight(50, 40), tokens), b.weight(40, 40))
    return b.model(b("Add", words, b("Unsqueeze", x, b.const([1]))))


@pytest.mark.parametrize(("bits", "block", "least"), ((8, None, 38.0), (8, 16, 38.0), (4, None, 14.0), (4, 16, 15.0)))
def test_a_model_of_integer_weights_runs_on_onnxruntime(bits, block, least):
    model = prepared(network())
    rng = np.random.default_rng(6)
    inputs = {"image": rng.standard_normal((2, 6, 9, 9)).astype(np.float32), "tokens": rng.integers(0, 50, (2, 7))}
    before = run(model, inputs)[0]
    stored = weights.quantize_weights_only(model, bits=bits, block_size=block, smallest=256)
    assert len(stored) == 6
    after = run(model, inputs)[0]
    snr = 10 * np.log10(np.square(before).sum() / np.square(before - after).sum())
    assert least < snr < 70
    names = [n.op_type for n in model.graph]
    assert names.count("DequantizeLinear") == 6
    depthwise = next(s for s in stored if s.quantized.values.shape == (40, 1, 3, 3))
    assert depthwise.quantized.bits == 8 and depthwise.quantized.block == 0


@pytest.mark.parametrize(("bits", "op", "gates"), ((8, "LSTM", 4), (4, "GRU", 3)))
def test_directions_have_separate_scales(bits, op, gates):
    b, rng = Builder(seed=7), np.random.default_rng(7)
    w, r = (rng.standard_normal((2, gates * 12, n)).astype(np.float32) for n in (40, 12))
    w[1] *= 100
    names = b.const(w), b.const(r)
    y, *_ = b(op, b.input("x", [5, "n", 40]), *names, outputs=2, hidden_size=12, direction="bidirectional")
    model = prepared(b.model(y))
    plain = model.clone()
    first, second = (s.quantized for s in weights.quantize_weights_only(model, bits=bits, block_size=0, smallest=64))
    assert (first.bits, second.bits) == (bits, 8)  # channels of twelve weights are not worth four bits
    assert first.block == 40 and first.scales.shape == (2, gates * 12, 1)
    assert first.scales[1].min() > 10 * first.scales[0].max()
    for name, made in zip(names, (first, second), strict=True):
        value = plain.graph.initializers[name]
        value.const_value = ir.tensor(made.dequantize(), name=name)
    inputs = {"x": rng.standard_normal((5, 2, 40)).astype(np.float32)}
    # onnxruntime packs constant weights, and sums packed ones in another order
    assert np.allclose(run(model, inputs)[0], run(plain, inputs)[0], atol=1e-4)


def test_one_weight_of_two_readers_is_stored_once_and_small_ones_stay():
    b = Builder(seed=8)
    shared, small = b.weight(32, 32), b.weight(32, 4)
    x = b("MatMul", b("MatMul", b.input("x", ["n", 32]), shared), shared)
    model = prepared(b.model(b("MatMul", x, small)))
    stored = weights.quantize_weights_only(model)
    assert [s.quantized.values.shape for s in stored] == [(32, 32)]
    assert sum(n.op_type == "DequantizeLinear" for n in model.graph) == 1
    assert weights.quantize_weights_only(model) == []


def test_ragged_last_block_as_onnx_has_it():
    b = Builder(seed=9)
    model = prepared(b.model(b("MatMul", b.input("x", ["n", 45]), b.weight(45, 20))))
    x = np.eye(45, dtype=np.float32)
    stored = weights.quantize_weights_only(model, bits=4, block_size=32)
    assert stored[0].quantized.scales.shape == (2, 20)
    assert np.array_equal(run(model, {"x": x})[0], stored[0].quantized.dequantize())


def test_weights_that_are_already_rounded_are_kept():
    b = Builder(seed=10)
    model = prepared(b.model(b("MatMul", b.input("x", ["n", 32]), b.weight(32, 32))))
    name = next(iter(model.graph.initializers))
    zeros = weights.quantize_place(np.zeros((32, 32), np.float32), Place(1, 1, 0), bits=8, block=0)
    weights.quantize_weights_only(model, ready={name: zeros})
    assert not run(model, {"x": np.ones((1, 32), np.float32)})[0].any()
