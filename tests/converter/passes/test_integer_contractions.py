"""Convolutions and products between quantisers become operators on integers, with results within one step."""

from __future__ import annotations

import numpy as np
import pytest

from converter.passes.integer import left_float
from tests.converter.passes.qdq import Q, body, check, to_integers

CONVS = {
    "plain": {},
    "pads and strides": {"pads": [1, 0, 2, 1], "strides": [2, 1]},
    "dilated": {"dilations": [2, 2], "pads": [2, 2, 2, 2]},
    "same": {"auto_pad": "SAME_UPPER", "strides": [2, 2]},
    "grouped": {"group": 2},
}


@pytest.mark.parametrize("axis", [None, 0])
@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16])
@pytest.mark.parametrize("name", CONVS)
def test_conv(name, dtype, axis):
    b, attrs = Q(), CONVS[name]
    x = b.integers("x", [2, 4, 7, 6], zero=0 if dtype == np.int16 else 5, dtype=dtype)
    w = b.stored(6, 4 // attrs.get("group", 1), 3, 3, axis=axis)
    y = b("Conv", b.dq(x), w, b.whole_bias(x, w, 6), **attrs)
    graph = check(b.model(b.q(y, 0.5 if dtype == np.int16 else 0.2, 0 if dtype == np.int16 else 9, dtype)))
    assert body(graph) == ["QLinearConv"]


BIASES = {
    "none": lambda b, x, w: [],
    "whole": lambda b, x, w: [b.whole_bias(x, w, 6)],
    "float": lambda b, x, w: [b.weight(6)],
    "other steps": lambda b, x, w: [
        b("DequantizeLinear", b.const(b.rng.integers(-99, 99, 6), np.int32), b.const(np.float32(0.01)))
    ],
    "int8": lambda b, x, w: [b.stored(6)],
}


@pytest.mark.parametrize("name", BIASES)
def test_biases(name):
    b = Q()
    x = b.integers("x", [1, 3, 5, 6], zero=-4)
    w = b.stored(6, 3, 2, 2, axis=0)
    graph = check(b.model(b.q(b("Conv", b.dq(x), w, *BIASES[name](b, x, w)), 0.1, 7)))
    assert body(graph) == ["QLinearConv"]
    operands = next(n for n in graph.nodes if n.op == "QLinearConv").inputs
    assert [graph.constants[name].dtype for name in operands[8:]] == [np.int32] * (name != "none")


ACTIVATIONS = {
    "relu": lambda b, y: b("Relu", y),
    "relu6": lambda b, y: b("Clip", y, b.const(np.float32(0)), b.const(np.float32(6))),
    "both sides": lambda b, y: b("Clip", y, b.const(np.float32(-1)), b.const(np.float32(0.5))),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_bounds_go_into_the_convolution(name):
    b = Q()
    x = b.integers("x", [1, 3, 8, 8], zero=1)
    y = ACTIVATIONS[name](b, b("Conv", b.dq(x), b.stored(4, 3, 3, 3), b.weight(4)))
    assert body(check(b.model(b.q(y, 0.05, -20)))) == ["QLinearConv"]


def test_other_activations_read_the_float_result():
    b = Q()
    x = b.integers("x", [1, 3, 8, 8], zero=1)
    y = b("Sigmoid", b("Conv", b.dq(x), b.stored(4, 3, 3, 3), b.weight(4)))
    assert body(check(b.model(b.q(y, 1 / 256, -128)))) == ["QLinearConv", "Sigmoid", "QuantizeLinear"]


@pytest.mark.parametrize(("group", "each", "axis"), [(1, 3, 1), (2, 3, 1), (4, 1, 0), (4, 1, 1), (4, 2, 1)])
def test_conv_transpose(group, each, axis):
    """Depthwise operators have a scale for each channel on axis 0, or one for all on axis 1."""
    b = Q()
    x = b.integers("x", [1, 4, 5, 6], zero=2)
    w = b.stored(4, each, 2, 3, axis=axis)
    y = b("ConvTranspose", b.dq(x), w, b.weight(each * group), strides=[2, 3], group=group)
    assert body(check(b.model(b.q(y, 0.2, 9)))) == ["QLinearConvTranspose"]


PRODUCTS = {
    "matrix": lambda b: b("MatMul", b.dq(b.integers("x", [5, 7])), b.stored(7, 3, axis=1)),
    "batched": lambda b: b("MatMul", b.dq(b.integers("x", [2, 4, 5, 7])), b.stored(7, 3)),
    "symbolic": lambda b: b("MatMul", b.dq(b.integers("x", ["n", 7])), b.stored(7, 3, axis=1)),
    "bias": lambda b: b("Add", b("MatMul", b.dq(b.integers("x", [5, 7])), b.stored(7, 3, axis=1)), b.weight(3)),
    "gemm": lambda b: b("Gemm", b.dq(b.integers("x", [5, 7])), b.stored(3, 7, axis=0), b.weight(3), transB=1),
    "gemm factors": lambda b: b(
        "Gemm", b.dq(b.integers("x", [5, 7])), b.stored(7, 3), b.weight(3), alpha=0.5, beta=2.0
    ),
    "gemm turned": lambda b: b("Gemm", b.dq(b.integers("x", [7, 5])), b.stored(7, 3), transA=1),
    "two computed": lambda b: b("MatMul", b.dq(b.integers("x", [2, 5, 7])), b.dq(b.integers("y", [2, 7, 4], zero=-9))),
    "turned": lambda b: b(
        "MatMul",
        b.dq(b.integers("x", [2, 5, 7])),
        b("Transpose", b.dq(b.integers("y", [2, 4, 7], zero=8)), perm=[0, 2, 1]),
    ),
    "constant left": lambda b: b("MatMul", b.stored(5, 7), b.dq(b.integers("x", [2, 7, 3]))),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_products(name):
    b = Q(seed=3)
    graph = check(b.model(b.q(PRODUCTS[name](b), 0.05, 4)))
    assert body(graph) == ["QLinearMatMul"]


def test_a_result_also_read_as_float_stays_float():
    b = Q()
    x = b.integers("x", [1, 3, 6, 6])
    y = b("Conv", b.dq(x), b.stored(4, 3, 3, 3, axis=0), b.weight(4))
    graph = check(b.model(b.q(y, 0.1), b("Softmax", y, axis=1)))
    assert body(graph).count("QLinearConv") == 1 and "DequantizeLinear" not in body(graph)
    assert len(next(n for n in graph.nodes if n.op == "QLinearConv").inputs) == 9


def test_a_bias_beyond_32_bits_is_added_in_float():
    b = Q()
    x = b.integers("x", [4, 6], scale=1e-6)
    y = b("Gemm", b.dq(x), b.stored(6, 3), b.const([30.0, -40.0, 0.5], np.float32))
    graph = check(b.model(b.q(y, 0.5)))
    assert body(graph) == ["QLinearMatMul", "QuantizeLinear"]
    assert graph.constants[graph.nodes[0].inputs[8]].dtype == np.float32


def test_four_bit_weights_stay_narrow():
    b = Q()
    x = b.integers("x", [4, 6])
    packed = b.name("w")
    from onnx import TensorProto, helper

    values = b.rng.integers(-8, 8, 18)
    b.constants.append(helper.make_tensor(packed, TensorProto.INT4, [6, 3], values.tolist()))
    w = b("DequantizeLinear", packed, b.const(np.array([0.1, 0.2, 0.3], np.float32)), axis=1)
    graph = check(b.model(b.q(b("MatMul", b.dq(x), w), 0.05)))
    assert body(graph) == ["QLinearMatMul"]
    assert graph.constants[graph.nodes[-1].inputs[3]].dtype.name == "int4"
    assert graph.constants[graph.nodes[-1].inputs[5]].dtype == np.int8


def test_weights_alone_stay_behind_their_dequantizer():
    b = Q()
    y = b("MatMul", b.input("x", [4, 6]), b.stored(6, 3, axis=1))
    graph = check(b.model(y), step=1e-5)
    assert body(graph) == ["DequantizeLinear", "MatMul"]


def test_batch_norm_goes_into_the_steps():
    b = Q()
    x = b.integers("x", [1, 3, 6, 6])
    y = b("Conv", b.dq(x), b.stored(4, 3, 3, 3, axis=0), b.stored(4))
    norm = [b.const(b.rng.uniform(0.5, 2, 4).astype(np.float32)) for _ in range(4)]
    graph = check(b.model(b.q(b("BatchNormalization", y, *norm), 0.1)))
    assert body(graph) == ["QLinearConv"]


def test_rows_of_quantised_weights_are_permuted():
    """Channels-last convolution, flattened as channels first: no Transpose is left but the input's."""
    b = Q()
    x = b.integers("x", [2, 3, 6, 5])
    y = b.q(b("Relu", b("Conv", b.dq(x), b.stored(4, 3, 3, 3, axis=0))), 0.05, -128)
    flat = b.q(b("Flatten", b.dq(y)), 0.05, -128)
    for w in (b.stored(4 * 4 * 3, 5, axis=1), b.stored(4 * 4 * 3, 5, axis=0)):
        model = Q()
        model.__dict__.update({k: list(v) if isinstance(v, list) else v for k, v in b.__dict__.items()})
        out = model.q(model("MatMul", model.dq(flat), w), 0.5)
        graph = check(model.model(out))
        assert [n.op for n in graph.nodes].count("Transpose") == 1


def test_float_operators_are_reported():
    b = Q()
    x = b.integers("x", [1, 4, 6, 6])
    y = b("Add", b.dq(x), b.dq(b.integers("r", [1, 4, 6, 6], zero=-1)))
    z = b("MatMul", b("LayerNormalization", y, b.weight(6)), b.stored(6, 6))
    z = b("LRN", b.dq(b.q(z)), size=3)
    told = {left.op: left.reason for left in left_float(to_integers(b.model(z)))}
    assert told["MatMul"] == "its input is not quantised"
    assert "one pass" in told["Add"]
    assert told["LRN"] == "LRN has no integer form"
