"""Fake quantisation: trainable ONNX that rounds as the static form does, and freezes to exactly that form."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import lite_runtime
from converter import convert
from converter.errors import QuantizeError
from converter.ir import build, spec
from converter.quantize import Options, quantize
from converter.quantize.qat import fake_quantize, freeze, scales
from tests.converter.quantize.support import prepared, run
from tests.converter.quantize.test_apply import NETWORKS, conv, image, ops, rows, snr
from tests.converter.support import Builder

PLAIN = Options(equalize=False, gptq=False, bias_correction=False)
SHAPE = (1, 4, 8, 8)


def faked(proto, options=PLAIN, **more):
    model = prepared(proto)
    record = fake_quantize(model, options, {"x": rows(SHAPE)}, **more)
    spec.check(model, "after fake quantisation")
    return model, record


def network(name, seed=2):
    b = Builder(seed=seed)
    return b.model(NETWORKS[name](b))


def initializers(model):
    return {name: build.array(value) for name, value in model.graph.initializers.items()}


def weights_behind(model, op):
    """(reader's op, the constant) of every constant that stands behind `op`."""
    found = []
    for node in model.graph:
        if node.op_type == op and node.inputs[0].is_initializer():
            reader = node.outputs[0].uses()[0].node
            if reader.op_type == "DequantizeLinear":
                reader = reader.outputs[0].uses()[0].node
            found.append((reader.op_type, build.array(node.inputs[0])))
    return found


@pytest.mark.parametrize("mode", ["int8", "int16x8"])
@pytest.mark.parametrize("name", NETWORKS)
def test_frozen_is_what_quantize_writes(name, mode):
    options = Options(mode, equalize=False, gptq=False, bias_correction=False)
    static = prepared(network(name))
    quantize(static, options, {"x": rows(SHAPE)})
    model, record = faked(network(name), options)
    assert weights_behind(model, "QuantizeLinear") and not weights_behind(model, "DequantizeLinear")
    assert record.mode == mode and record.tensors
    freeze(model)
    spec.check(model, "after freezing")
    assert ops(model) == ops(static)
    assert not weights_behind(model, "QuantizeLinear")
    ours, theirs = (
        sorted((a.dtype.name, a.shape, np.maximum(a, -127).tobytes()) for a in initializers(m).values())
        for m in (model, static)
    )  # -128 is what only trained weights may be
    assert ours == theirs


@pytest.mark.parametrize("name", NETWORKS)
def test_it_is_standard_onnx_that_computes_what_is_frozen(name):
    model, _ = faked(network(name))
    proto = ir.to_proto(model)
    assert {o.domain for o in proto.opset_import if any(n.domain == o.domain for n in proto.graph.node)} == {""}
    del proto.opset_import[1:]
    onnx.checker.check_model(proto, full_check=True)
    fresh = {"x": rows(SHAPE, 1, seed=9)}
    wanted = run(model, fresh)
    freeze(model)
    for a, b in zip(wanted, run(model, fresh), strict=True):
        assert snr(a, b) > 40  # biases are rounded, which may move an activation by a step


def test_training_floats_are_those_of_the_model():
    model, _ = faked(network("residual"))
    float_model = prepared(network("residual"))
    wanted = {name: a for name, a in initializers(float_model).items() if a.dtype == np.float32}
    got = initializers(model)
    assert wanted.keys() <= got.keys()
    for name, array in wanted.items():
        assert np.array_equal(got[name], array)
    found = scales(model)
    assert not set(found.weights) & set(found.activations)
    assert {*got} - {*wanted} >= {*found.weights, *found.activations}
    assert len(found.weights) == Counter(n.op_type for n in model.graph)["Conv"]
    assert all(got[name].ndim == 1 for name in found.weights) and all(got[name].ndim == 0 for name in found.activations)


def test_freezing_rounds_what_training_left():
    model, _ = faked(network("residual"))
    rng, expected = np.random.default_rng(3), []
    for node in list(model.graph):
        if node.op_type == "QuantizeLinear" and node.inputs[0].is_initializer():
            value, steps = node.inputs[0], build.array(node.inputs[1]).reshape(-1, 1, 1, 1)
            new = (build.array(value) + rng.normal(size=value.shape) * 40 * steps).astype(np.float32)
            value.const_value = ir.tensor(new)
            expected.append(np.clip(np.rint(new / steps), -128, 127).astype(np.int8))
    assert freeze(model) == 2 * len(expected) - 1  # the last bias stays float: so does its result
    assert freeze(model) == 0
    found = [a for _, a in weights_behind(model, "DequantizeLinear") if a.dtype == np.int8]
    assert Counter(a.tobytes() for a in found) == Counter(a.tobytes() for a in expected)
    assert min(a.min() for a in found) == -128


@pytest.mark.parametrize("bits", [8, 4])
def test_round_trip_to_an_integer_bundle(bits):
    model, _ = faked(network("residual"), weight_bits=bits)
    unfrozen = model.clone()
    freeze(model)
    fresh = {"x": rows(SHAPE, 1, seed=9)}
    wanted = run(model, fresh)
    done = convert(model)
    assert not done.report.left_float
    assert done.report.ops_after["QLinearConv"] == 3 and "Conv" not in done.report.ops_after
    got = list(lite_runtime.load(done.bundle).run(fresh).values())
    assert snr(wanted[0], got[0]) > 40
    straight = list(lite_runtime.load(convert(unfrozen).bundle).run(fresh).values())  # passes fold the weights too
    assert snr(got[0], straight[0]) > 40


def test_four_bits_for_all_but_small_channels():
    b = Builder(seed=5)
    y = b("Relu", conv(b, b("Relu", conv(b, image(b), 4, 8)), 8, 8, group=8))
    model, _ = faked(b.model(conv(b, y, 8)), weight_bits=4)
    freeze(model)
    assert [a.dtype.name for _, a in weights_behind(model, "DequantizeLinear") if a.ndim == 4] == [
        "int4",
        "int8",
        "int4",
    ]
    assert all(
        a.min() >= -8 and a.max() <= 7 for _, a in weights_behind(model, "DequantizeLinear") if a.dtype == "int4"
    )


def test_weights_of_float_layers_train_rounded_too():
    b = Builder(seed=6)
    x = b("Reshape", image(b), b.const([16, 1, 16], "int64"))
    y, *_ = b("LSTM", x, b.weight(1, 32, 16), b.weight(1, 32, 8), outputs=3, hidden_size=8)
    y = b("Reshape", y, b.const([16, 8], "int64"))
    y = b("Mul", y, b("Sigmoid", y))
    model, record = faked(b.model(b("Gemm", y, b.weight(8, 40), b.weight(40))), Options(keep_float=("Gemm",)))
    assert {n.op: n.status for n in record.nodes}["LSTM"] == "weights"
    assert [op for op, _ in weights_behind(model, "QuantizeLinear")] == ["LSTM"]  # the other has under 512 weights
    assert not any(node.domain for node in model.graph), "Silu is not ONNX"
    freeze(model)
    assert [a.dtype for _, a in weights_behind(model, "DequantizeLinear")] == [np.int8]


def test_shared_weights_stay_one():
    b = Builder()
    w, x = b.weight(4, 4, 3, 3), image(b)
    for _ in range(3):
        x = b("Relu", b("Conv", x, w, pads=[1, 1, 1, 1]))
    proto = b.model(b("Conv", x, w, pads=[1, 1, 1, 1]))
    proto.graph.node[2].name = "kept"
    model, _ = faked(proto, Options(keep_float=("kept",)))
    assert len(weights_behind(model, "QuantizeLinear")) == 1
    (kept,) = (n for n in model.graph if n.name == "kept")
    rounded = next(n for n in model.graph if n.op_type == "QuantizeLinear" and n.inputs[0].is_initializer())
    assert kept.inputs[1] is rounded.inputs[0]


def test_values_broken_by_training_are_refused():
    model, _ = faked(network("residual"))
    for names, bad, message in (
        (scales(model).weights, -1.0, "not all finite and positive"),
        (scales(model).activations, 0.0, "not all finite and positive"),
        ((weight_name(model),), np.nan, "diverged"),
    ):
        copy = model.clone()
        value = copy.graph.initializers[names[0]]
        array = np.array(build.array(value))
        array.reshape(-1)[0] = bad
        value.const_value = ir.tensor(array)
        with pytest.raises(QuantizeError, match=message):
            freeze(copy)


def weight_name(model):
    return next(n for n in model.graph if n.op_type == "QuantizeLinear" and n.inputs[0].is_initializer()).inputs[0].name


def test_bad_options():
    model = prepared(network("residual"))
    for options in (Options("w8"), Options("none"), Options(io="int8")):
        with pytest.raises(QuantizeError, match="takes mode 'int8' or 'int16x8' with io 'float32', got"):
            fake_quantize(model, options, {"x": rows(SHAPE)})
    with pytest.raises(QuantizeError, match="expected 4 or 8, got 5"):
        fake_quantize(model, PLAIN, {"x": rows(SHAPE)}, weight_bits=5)
