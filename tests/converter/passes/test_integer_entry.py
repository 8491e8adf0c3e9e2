"""Operators on integers of source models, rewritten on entry, give onnxruntime's results for the source."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from converter.errors import ConvertError
from converter.lowering import lower
from converter.pass_lists import to_ir
from converter.passes import qlinear_to_qdq
from lite_runtime import reference
from tests.converter.passes.qdq import Q, body, check, inputs_for, to_integers
from tests.converter.support import with_onnxruntime

MS = "com.microsoft"


def model_of(b: Q, *outputs: str, dtype: int = TensorProto.UINT8) -> onnx.ModelProto:
    """onnxruntime's operators are no part of ONNX's inference: outputs are declared by hand."""
    model = b.model(*outputs)
    for value in model.graph.output:
        if not value.type.tensor_type.HasField("shape"):
            value.type.tensor_type.elem_type = dtype
    model.opset_import.append(helper.make_opsetid(MS, 1))
    return model


def steps(b: Q, scale: float = 0.02, zero: int = 120, dtype=np.uint8) -> tuple[str, str]:
    return b.const(np.float32(scale)), b.const(dtype(zero))


def image(b: Q, name: str = "x", shape=(2, 4, 6, 8)) -> tuple[str, str, str]:
    return (b.input(name, list(shape), np.uint8), *steps(b))


def weights(b: Q, *shape: int, channels: int = 0) -> tuple[str, str, str]:
    values = b.const(b.rng.integers(-127, 128, shape), np.int8)
    if not channels:
        return values, b.const(np.float32(0.01)), b.const(np.int8(0))
    return (
        values,
        b.const(b.rng.uniform(0.005, 0.02, channels).astype(np.float32)),
        b.const(np.zeros(channels, np.int8)),
    )


def int32(b: Q, size: int) -> str:
    return b.const(b.rng.integers(-3000, 3000, size), np.int32)


CASES = {
    "QLinearConv": lambda b: b(
        "QLinearConv", *image(b), *weights(b, 6, 4, 3, 3, channels=6), *steps(b, 0.1), int32(b, 6), pads=[1, 1, 1, 1]
    ),
    "QLinearConv plain": lambda b: b("QLinearConv", *image(b), *weights(b, 6, 2, 3, 3), *steps(b, 0.1), group=2),
    "QLinearMatMul": lambda b: b("QLinearMatMul", *image(b), *weights(b, 8, 5, channels=5), *steps(b, 0.1)),
    "QLinearAdd": lambda b: b("QLinearAdd", *image(b), *image(b, "y"), *steps(b, 0.03), domain=MS),
    "QLinearMul": lambda b: b("QLinearMul", *image(b), *image(b, "y", (4, 1, 1)), *steps(b, 0.05), domain=MS),
    "QLinearSigmoid": lambda b: b("QLinearSigmoid", *image(b), *steps(b, 1 / 256, 0), domain=MS),
    "QLinearLeakyRelu": lambda b: b("QLinearLeakyRelu", *image(b), *steps(b, 0.02, 9), domain=MS, alpha=0.2),
    "QLinearConcat": lambda b: b("QLinearConcat", *steps(b, 0.03), *image(b), *image(b, "y"), domain=MS, axis=1),
    "QLinearAveragePool": lambda b: b(
        "QLinearAveragePool", *image(b), *steps(b, 0.021), domain=MS, kernel_shape=[3, 2], strides=[2, 2]
    ),
    "QLinearAveragePool last": lambda b: b(
        "QLinearAveragePool", *image(b), *steps(b, 0.021), domain=MS, kernel_shape=[3, 2], channels_last=1
    ),
    "QLinearGlobalAveragePool": lambda b: b("QLinearGlobalAveragePool", *image(b), *steps(b, 0.01), domain=MS),
    "QLinearGlobalAveragePool last": lambda b: b(
        "QLinearGlobalAveragePool", *image(b), *steps(b, 0.01), domain=MS, channels_last=1
    ),
    "QLinearSoftmax": lambda b: b("QLinearSoftmax", *image(b), *steps(b, 1 / 256, 0), domain=MS, axis=-1, opset=13),
    "QLinearSoftmax flat": lambda b: b(
        "QLinearSoftmax", *image(b), *steps(b, 1 / 2560, 0), domain=MS, axis=2, opset=12
    ),
    "QLinearWhere": lambda b: b(
        "QLinearWhere", b.input("c", [2, 4, 6, 8], bool), *image(b), *image(b, "y"), *steps(b, 0.03), domain=MS
    ),
    "QGemm": lambda b: b(
        "QGemm", *image(b, "x", (5, 8)), *weights(b, 3, 8, channels=3), int32(b, 3), *steps(b, 0.1), domain=MS, transB=1
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_operators_on_integers(name):
    b = Q()
    model = model_of(b, CASES[name](b))
    check(model)
    found = to_ir(model)
    qlinear_to_qdq.run(found)
    assert not [n for n in found.graph if n.domain == MS or n.op_type.startswith("QLinear")]


def floats(b: Q, shape=(5, 8)) -> str:
    return b.input("x", list(shape))


def quantize_scale(b: Q, dtype) -> str:
    x = b("QuantizeLinear", floats(b), *steps(b, 0.001, 3, dtype), domain=MS)
    return b("DequantizeLinear", x, *steps(b, 0.001, 3, dtype), domain=MS)


def n_bits(b: Q, bits: int, zeros: bool) -> str:
    rows, depth, block = 3, 40, 16
    blocks = -(-depth // block)
    packed = b.const(b.rng.integers(0, 256, (rows, blocks, block * bits // 8)), np.uint8)
    scales = b.const(b.rng.uniform(0.01, 0.05, rows * blocks).astype(np.float32))
    zero = [b.const(b.rng.integers(0, 256, rows * -(-blocks * bits // 8)), np.uint8)] if zeros else []
    x = floats(b, (5, depth))
    return b("MatMulNBits", x, packed, scales, *zero, domain=MS, K=depth, N=rows, bits=bits, block_size=block)


FLOATS = {
    "QuantizeLinear 16": lambda b: quantize_scale(b, np.int16),
    "QuantizeLinear u16": lambda b: quantize_scale(b, np.uint16),
    "DynamicQuantizeMatMul": lambda b: b(
        "DynamicQuantizeMatMul", floats(b), *weights(b, 8, 5, channels=5)[:2], "", b.weight(5), domain=MS
    ),
    "MatMulIntegerToFloat": lambda b: b(
        "MatMulIntegerToFloat",
        b.input("x", [5, 8], np.uint8),
        b.const(b.rng.integers(-127, 128, (8, 3)), np.int8),
        b.const(np.float32(0.02)),
        b.const(np.float32(0.01)),
        b.const(np.uint8(99)),
        b.const(np.int8(0)),
        b.weight(3),
        domain=MS,
    ),
    "QGemm float": lambda b: b("QGemm", *image(b, "x", (5, 8)), *weights(b, 8, 3), int32(b, 3), domain=MS, alpha=0.5),
    "MatMulNBits 4": lambda b: n_bits(b, 4, False),
    "MatMulNBits 4 zeros": lambda b: n_bits(b, 4, True),
    "MatMulNBits 8": lambda b: n_bits(b, 8, False),
}


@pytest.mark.parametrize("name", FLOATS)
def test_operators_with_float_results(name):
    b = Q()
    # results are up to 50, and the peer adds products in an order of its processor's: 4e-6 apart
    graph = check(model_of(b, FLOATS[name](b), dtype=TensorProto.FLOAT), step=1e-3)
    wanted = {"DynamicQuantizeMatMul": ["DynamicQuantizeLinear", "QLinearMatMul"], "QGemm float": ["QLinearMatMul"]}
    assert body(graph) == wanted.get(name, body(graph))


def dynamic(b: Q, op: str, order: int) -> str:
    conv = op == "ConvInteger"
    x = b.input("x", [2, 3, 6, 5] if conv else [4, 7])
    q, scale, zero = b("DynamicQuantizeLinear", x, outputs=3)
    w, step, w_zero = weights(b, *((4, 3, 3, 3) if conv else (7, 5)))
    total = b("Cast", b(op, q, w, zero, w_zero), to=TensorProto.FLOAT)
    if order == 0:
        return b("Mul", total, b("Mul", scale, step))
    return b("Mul", b("Mul", total, step), scale) if order == 1 else b("Mul", scale, b("Mul", scale, total))


@pytest.mark.parametrize("order", [0, 1])
@pytest.mark.parametrize("op", ["ConvInteger", "MatMulInteger"])
def test_sums_that_are_only_scaled(op, order):
    b = Q()
    y = dynamic(b, op, order)
    bias = b.weight(4, 1, 1) if op == "ConvInteger" else b.weight(5)
    graph = check(b.model(b("Relu", b("Add", y, bias))), step=1e-4)
    assert body(graph) == ["DynamicQuantizeLinear", "QLinearConv" if op == "ConvInteger" else "QLinearMatMul"]
    assert graph.nodes[-1].attrs.get("activation") == "Relu" or op == "ConvInteger"


@pytest.mark.parametrize("op", ["ConvInteger", "MatMulInteger"])
def test_sums_with_an_integer_bias(op):
    """As onnxruntime's older quantisers add it: in units of both scales, rounded at run time."""
    b, conv = Q(), op == "ConvInteger"
    q, scale, zero = b("DynamicQuantizeLinear", b.input("x", [2, 3, 6, 5] if conv else [4, 7]), outputs=3)
    w, step, w_zero = weights(b, *((4, 3, 3, 3) if conv else (7, 5)))
    units = b("Mul", scale, step)
    bias = b("Cast", b("Floor", b("Div", b.weight(4 if conv else 5), units)), to=TensorProto.INT32)
    bias = b("Reshape", bias, b.const(np.array([1, -1, 1, 1]))) if conv else bias
    total = b("Cast", b("Add", b(op, q, w, zero, w_zero), bias), to=TensorProto.FLOAT)
    graph = check(b.model(b("Relu", b("Mul", total, b("Mul", scale, step)))), step=1e-4)
    assert f"QLinear{op.removesuffix('Integer')}" in body(graph) and op not in body(graph)


@pytest.mark.parametrize("op", ["ConvInteger", "MatMulInteger"])
def test_sums_used_otherwise_stay(op):
    b = Q()
    assert op in body(check(b.model(dynamic(b, op, 2)), step=1e-4))


@pytest.mark.parametrize("op", ["ConvInteger", "MatMulInteger"])
def test_a_range_for_every_image_and_row(op):
    """Our DynamicQuantizeLinear gives one scale an image or row: rows by themselves and together are the same."""
    b, conv = Q(), op == "ConvInteger"
    x = b.input("x", ["n", 3, 6, 5] if conv else ["n", 7])
    q, scale, zero = b("DynamicQuantizeLinear", x, outputs=3, domain="msedge", kept=1, dtype="int8")
    w, step, w_zero = weights(b, *((4, 3, 3, 3) if conv else (7, 5)))
    total = b("Cast", b(op, q, w, zero, w_zero), to=TensorProto.FLOAT)
    model = b.model(b("Relu", b("Mul", b("Mul", total, scale), step)))
    model.opset_import.append(helper.make_opsetid("msedge", 1))
    graph = lower(to_integers(model))
    assert body(graph) == ["DynamicQuantizeLinear", "QLinearConv" if conv else "QLinearMatMul"]
    given = inputs_for(graph, symbolic=3)["x"] * np.array([1, 10, 0.1], np.float32).reshape(
        -1, *[1] * (3 if conv else 1)
    )
    together = next(iter(reference.run(graph, {"x": given}).values()))
    apart = [next(iter(reference.run(graph, {"x": row[None]}).values())) for row in given]
    np.testing.assert_array_equal(together, np.concatenate(apart))
    constants = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}
    real = constants[w].astype(np.float32) * np.float32(0.01)
    plain = Q()
    y = plain("Relu", plain("Conv" if conv else "MatMul", plain.input("x", list(given.shape)), plain.const(real)))
    wanted = with_onnxruntime(plain.model(y), {"x": given})[y]
    for got, expected in zip(together, wanted, strict=True):
        assert np.abs(got - expected).max() < 0.02 * np.abs(expected).max()


@pytest.mark.parametrize("op", ["QLinearMul", "QLinearSigmoid", "QGemm", "MatMulIntegerToFloat"])
def test_too_few_operands_are_refused_by_name(op):
    b = Q()
    y = b(op, b.input("x", [4, 3], np.uint8), domain=MS)
    with pytest.raises(ConvertError, match=rf"{op} .* has 1 operands and 1 results, fewer than the operator needs"):
        to_ir(model_of(b, y))
