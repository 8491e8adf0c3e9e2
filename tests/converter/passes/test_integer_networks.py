"""Networks quantised by onnxruntime, in each of its formats, through all passes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import onnx
import pytest
from onnxruntime.quantization import QuantFormat, QuantType

import lite_runtime
from converter.lowering import lower
from converter.passes.integer import left_float
from lite_runtime import bundle, reference
from lite_runtime.graph import Graph
from tests.converter.passes.qdq import check, inputs_for, quantized_by_onnxruntime, to_integers
from tests.converter.support import Builder


def conv(b: Builder, x: str, c: int, m: int, k: int = 3, stride: int = 1, group: int = 1) -> str:
    spread = np.sqrt(2 / (c // group * k * k))
    w = b.const((b.rng.standard_normal((m, c // group, k, k)) * spread).astype(np.float32))
    bias = b.const(b.rng.standard_normal(m).astype(np.float32) * np.float32(0.1))
    return str(b("Conv", x, w, bias, pads=[k // 2] * 4, strides=[stride] * 2, group=group))


def resnet() -> onnx.ModelProto:
    b = Builder(17, 0)
    x = b("Relu", conv(b, b.input("x", [1, 3, 16, 16]), 3, 8))
    x = b("Relu", b("Add", x, conv(b, b("Relu", conv(b, x, 8, 8)), 8, 8)))
    x = b("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    y = conv(b, b("Relu", conv(b, x, 8, 16, stride=2)), 16, 16)
    x = b("Relu", b("Add", conv(b, x, 8, 16, k=1, stride=2), y))
    x = b("Flatten", b("GlobalAveragePool", b("Sigmoid", conv(b, x, 16, 16, group=16))))
    return b.model(b("Softmax", b("Gemm", x, b.weight(10, 16), b.weight(10), transB=1), axis=-1))


def mobile() -> onnx.ModelProto:
    b = Builder(17, 3)

    def f(number: float) -> str:
        return b.const(np.float32(number))

    x = b("Clip", conv(b, b.input("x", ["n", 3, 17, 16]), 3, 8, stride=2), f(0), f(6))
    x = b("Clip", conv(b, x, 8, 8, group=8), f(0), f(6))
    x = b("Concat", b("HardSwish", conv(b, x, 8, 12, k=1)), b("LeakyRelu", conv(b, x, 8, 4, k=1), alpha=0.1), axis=1)
    gate = b("ReduceMean", x, axes=[2, 3], keepdims=1)
    x = b("Mul", x, b("HardSigmoid", conv(b, b("Relu", conv(b, gate, 16, 4, k=1)), 4, 16, k=1)))
    x = b("Concat", *b("Split", x, outputs=2, axis=1)[::-1], axis=1)
    x = b("AveragePool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    x = b("ConvTranspose", x, b.weight(16, 6, 2, 2), b.weight(6), strides=[2, 2])
    x = b("Flatten", b("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2]))
    x = b("Relu", b("Add", b("MatMul", x, b.weight(6 * 5 * 4, 7)), b.weight(7)))
    return b.model(b("Gemm", x, b.weight(7, 5), b.weight(5)))


def attention() -> onnx.ModelProto:
    b = Builder(17, 4)

    def linear(x: str, i: int, o: int) -> str:
        w = b.const((b.rng.standard_normal((i, o)) / np.sqrt(i)).astype(np.float32))
        return str(b("Add", b("MatMul", x, w), b.weight(o)))

    def heads(x: str) -> str:
        return str(b("Transpose", b("Reshape", x, b.const(np.array([0, 6, 4, 4]))), perm=[0, 2, 1, 3]))

    x = b.input("x", ["n", 6, 16])
    q, k, v = (heads(linear(x, 16, 16)) for _ in range(3))
    scores = b("Mul", b("MatMul", q, b("Transpose", k, perm=[0, 1, 3, 2])), b.const(np.float32(0.5)))
    mixed = b("Transpose", b("MatMul", b("Softmax", scores, axis=-1), v), perm=[0, 2, 1, 3])
    x = b("Add", x, linear(b("Reshape", mixed, b.const(np.array([0, 6, 16]))), 16, 16))
    x = b("LayerNormalization", x, b.weight(16), b.weight(16), axis=-1)
    h = linear(x, 16, 32)
    gate = b("Add", b("Erf", b("Div", h, b.const(np.float32(np.sqrt(2))))), b.const(np.float32(1)))
    h = b("Mul", b("Mul", h, gate), b.const(np.float32(0.5)))
    return b.model(b("Add", x, linear(h, 32, 16)))


NETS = {"resnet": resnet, "mobile": mobile, "attention": attention}
CONTRACTIONS = {"resnet": 8, "mobile": 9, "attention": 8}
FORMATS = {
    "QDQ uint8": (QuantFormat.QDQ, {"activation_type": QuantType.QUInt8, "weight_type": QuantType.QInt8}),
    "QDQ int8": (QuantFormat.QDQ, {"activation_type": QuantType.QInt8, "weight_type": QuantType.QInt8}),
    "QDQ channels": (QuantFormat.QDQ, {"weight_type": QuantType.QInt8, "per_channel": True}),
    "QDQ weights as Q": (
        QuantFormat.QDQ,
        {
            "activation_type": QuantType.QUInt8,
            "weight_type": QuantType.QUInt8,
            "extra_options": {"AddQDQPairToWeight": True},
        },
    ),
    "QOperator": (QuantFormat.QOperator, {"weight_type": QuantType.QInt8, "per_channel": True}),
    "int16": (QuantFormat.QDQ, {"activation_type": QuantType.QInt16, "weight_type": QuantType.QInt8}),
}


_STEPS = {"resnet": 1, "attention": 1, "mobile": 3, "int16": 8}
"""Allowed difference of results: one step in a layer, from rounding a tie, is several steps in a later layer."""


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("name", NETS)
def test_static(name, form):
    how, options = FORMATS[form]
    model = quantized_by_onnxruntime(NETS[name](), how, **options)
    last = next(
        n for n in model.graph.node if n.op_type == "DequantizeLinear" and n.output[0] == model.graph.output[0].name
    )
    made = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}
    step = float(made[last.input[1]].reshape(-1)[0]) if last.input[1] in made else 1e-3
    graph = check(model, step=step, steps=_STEPS.get(form, _STEPS[name]), rarely=1)
    count = Counter(n.op for n in graph.nodes)
    whole = count["QLinearConv"] + count["QLinearConvTranspose"] + count["QLinearMatMul"]
    floats = count["Conv"] + count["ConvTranspose"] + count["MatMul"] + count["Gemm"]
    kept = {("mobile", "QOperator"): 1, ("attention", "int16"): 2}.get((name, form), 0)
    assert (whole, floats) == (CONTRACTIONS[name] - kept, kept)
    _no_quantizers_around(graph, [op for op in _ON_INTEGERS if (form, op) != ("int16", "MaxPool")])


_ON_INTEGERS = (
    "Conv MaxPool AveragePool GlobalAveragePool Concat Split Reshape Transpose Flatten Resize Clip Relu".split()
)


def _no_quantizers_around(graph: Graph, ops: Sequence[str]) -> None:
    readers = {name: node for node in graph.nodes for name in node.inputs}
    for node in graph.nodes:
        if node.op == "DequantizeLinear" and node.outputs[0] in readers:
            assert readers[node.outputs[0]].op not in ops


@pytest.mark.parametrize("name", NETS)
def test_dynamic(name):
    model = quantized_by_onnxruntime(NETS[name](), "dynamic")
    graph = check(model, step=1e-4)
    count = Counter(n.op for n in graph.nodes)
    assert count["QLinearConv"] + count["QLinearMatMul"] == {"resnet": 8, "mobile": 8, "attention": 6}[name]
    assert not count["ConvInteger"] + count["MatMulInteger"] + count["Cast"] + count["DequantizeLinear"]


def test_nothing_of_a_resnet_is_float():
    model = quantized_by_onnxruntime(resnet(), QuantFormat.QDQ, weight_type=QuantType.QInt8)
    assert not left_float(to_integers(model))
    assert not left_float(to_integers(resnet()))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", NETS)
def test_the_bundle_gives_what_the_reference_gives(name, threads):
    how, options = FORMATS["QDQ channels"]
    graph = lower(to_integers(quantized_by_onnxruntime(NETS[name](), how, **options)))
    inputs = inputs_for(graph)
    model = lite_runtime.load(bundle.write(None, {"predict": graph}, provenance={}, golden={}), threads=threads)
    for output, wanted in reference.run(graph, inputs).items():
        np.testing.assert_array_equal(model.run(inputs)[output], wanted)
