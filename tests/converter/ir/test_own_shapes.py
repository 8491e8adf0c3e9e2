"""Types and shapes of our own operators, known before anything runs, are those of what the reference computes."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from onnx import helper

from converter import ConvertError, convert
from converter.ir import build, own_shapes, shapes, spec
from converter.lowering import lower
from converter.pass_lists import to_ir
from lite_runtime import reference
from tests.converter.support import Builder, random_inputs

OURS = "msedge"


def scalars(b: Builder, dtype: type = np.int8) -> tuple[str, str]:
    return b.const(np.float32(0.1)), b.const(dtype(3))


def weights(b: Builder, *shape: int) -> tuple[str, str, str]:
    return b.const(b.rng.integers(-9, 9, shape), np.int8), b.const(np.float32(0.1)), b.const(np.int8(0))


def image(b: Builder) -> tuple[str, str, str]:
    return (b.input("x", [2, 4, 6, 7], np.int8), *scalars(b))


def table(b: Builder, dtype: type) -> str:
    return b.const(np.zeros(256), dtype)


BLOCKS = {"K": 64, "N": 5, "bits": 4, "block_size": 32, "zero_point": 8}


def blocks(b: Builder) -> tuple[str, str]:
    """Integers and scales of a matrix of 5 outputs and a depth of 64."""
    return b.const(np.ones((5, 2, 16)), np.uint8), b.const(np.ones((5, 2)), np.float16)


CASES = {
    "QLinearConv": lambda b: b(
        "QLinearConv", *image(b), *weights(b, 6, 2, 3, 3), *scalars(b), domain=OURS, group=2, strides=[2, 1]
    ),
    "Inverse": lambda b: b("Inverse", b.input("x", [2, 3, 3]), domain=OURS),
    "QLinearConv channels last": lambda b: b(
        "QLinearConv", b.input("x", [2, 6, 7, 4], np.int8), *scalars(b), *weights(b, 5, 4, 3, 2), *scalars(b),
        domain=OURS, layout="NHWC", pads=[1, 0, 0, 0],
    ),
    "QLinearConvTranspose channels last": lambda b: b(
        "QLinearConvTranspose", b.input("x", [2, 6, 7, 4], np.int8), *scalars(b), *weights(b, 4, 5, 2, 2), *scalars(b),
        domain=OURS, layout="NHWC", strides=[2, 2],
    ),
    "QLinearConv float": lambda b: b("QLinearConv", *image(b), *weights(b, 6, 4, 1, 1), domain=OURS),
    "QLinearConvTranspose": lambda b: b(
        "QLinearConvTranspose", *image(b), *weights(b, 4, 5, 2, 2), *scalars(b), domain=OURS, strides=[2, 2]
    ),
    "QLinearMatMul": lambda b: b(
        "QLinearMatMul", *image(b), *weights(b, 5, 7), *scalars(b, np.uint8), domain=OURS, transB=1
    ),
    **{
        op: lambda b, op=op: b(
            op, *image(b), b.const(np.ones((4, 1, 7)), np.int8), *scalars(b), *scalars(b), domain=OURS
        )
        for op in ("QLinearAdd", "QLinearSub", "QLinearMul")
    },
    "QLinearAveragePool": lambda b: b(
        "QLinearAveragePool", *image(b), *scalars(b), domain=OURS, kernel_shape=[3, 2], strides=[2, 2]
    ),
    "QLinearGlobalAveragePool": lambda b: b("QLinearGlobalAveragePool", *image(b), *scalars(b), domain=OURS),
    "QLinearReduceMean": lambda b: b(
        "QLinearReduceMean", *image(b), *scalars(b), b.const(np.array([1, -1])), domain=OURS, keepdims=0
    ),
    "QLinearSoftmax": lambda b: b("QLinearSoftmax", *image(b), *scalars(b), domain=OURS, axis=1),
    "QLinearResize": lambda b: b(
        "QLinearResize", image(b)[0], "", b.const(np.array([1, 1, 2, 2], np.float32)), domain=OURS, mode="linear"
    ),
    "NonMaxSuppressionPadded": lambda b: b(
        "NonMaxSuppressionPadded", b.input("boxes", [2, 5, 4]), b.input("scores", [2, 3, 5]),
        b.const([4], np.int64), domain=OURS, outputs=2,
    ),
    "Rescale": lambda b: b(
        "Rescale", b.input("x", [2, 4, 1], np.int32), b.const(np.full(7, 1 << 30, np.int32)),
        b.const(np.full((4, 1), 40, np.int32)), b.const(np.int8(3)), domain=OURS, rounding="DOUBLE",
    ),
    **{
        op: lambda b, op=op: b(op, b.input("x", [3, 4], np.int16), domain=OURS)
        for op in ("FixedPointSigmoid", "FixedPointTanh")
    },
    "FixedPointDiv": lambda b: b(
        "FixedPointDiv", b.input("x", [2, 4, 1], np.int32), b.input("y", [3], np.int32), domain=OURS,
        multiplier=1 << 30, shift=31,
    ),
    "FixedPointRsqrt": lambda b: b("FixedPointRsqrt", b.input("x", [3, 4], np.int32), domain=OURS, part="SHIFT"),
    "InterpolatedTable": lambda b: b(
        "InterpolatedTable", b.input("x", [3, 4], np.int16), b.const(np.arange(513), np.int16), domain=OURS
    ),
    "LSTM": lambda b: b(
        "LSTM", b.input("x", [5, 2, 3]), b.weight(1, 8, 3), b.const(np.ones((1, 8, 2)), np.int8), "", "", "", "", "",
        b.weight(1, 8, 1), domain=OURS, outputs=3, hidden_size=2, block_size=2, rounding="SYMMETRIC",
    ),
    "GRU": lambda b: b(
        "GRU", b.input("x", [2, 5, 3]), b.weight(1, 6, 3), b.const(np.ones((1, 6, 2)), np.int8), "", "", "",
        b.weight(1, 6, 1), domain=OURS, outputs=2, hidden_size=2, block_size=2, layout=1,
    ),
    "LookupTable": lambda b: b("LookupTable", image(b)[0], table(b, np.float32), domain=OURS),
    "Silu": lambda b: b("Silu", b.input("x", [3, 4]), domain=OURS),
    "QuickGelu": lambda b: b("QuickGelu", b.input("x", [3, 4]), domain=OURS),
    "DynamicQuantizeLinear": lambda b: b(
        "DynamicQuantizeLinear", b.input("x", [3, 4, 5]), outputs=3, domain=OURS, kept=1, dtype="int8"
    ),
    "ConvWeightGrad": lambda b: b(
        "ConvWeightGrad", b.input("x", [2, 4, 6, 7]), b.input("dy", [2, 6, 3, 7]), domain=OURS, kernel_shape=[3, 1],
        strides=[2, 1], pads=[1, 0, 0, 0], group=2,
    ),
    "ConvWeightGrad last": lambda b: b(
        "ConvWeightGrad", b.input("x", [2, 6, 7, 4]), b.input("dy", [2, 6, 7, 6]), domain=OURS, kernel_shape=[1, 1],
        layout="NHWC",
    ),
    **{
        op: lambda b, op=op: b(
            op, b.input("x", [2, 4, 6, 7]), b.input("dy", [2, 4, 5, 6]), domain=OURS, kernel_shape=[2, 2]
        )
        for op in ("MaxPoolGrad", "AveragePoolGrad")
    },
    "BatchNormalizationGrad": lambda b: b(
        "BatchNormalizationGrad", b.input("dy", [2, 4, 6]), b.input("x", [2, 4, 6]), *(b.weight(4) for _ in range(3)),
        outputs=3, domain=OURS,
    ),
    "LayerNormalizationGrad": lambda b: b(
        "LayerNormalizationGrad", b.input("dy", [2, 4, 6]), b.input("x", [2, 4, 6]), b.weight(6),
        *(b.weight(2, 4, 1) for _ in range(2)), outputs=3, domain=OURS,
    ),
    "LSTMGrad": lambda b: b(
        "LSTMGrad", b.input("x", [5, 2, 3]), b.weight(1, 8, 3), b.weight(1, 8, 2), b.weight(5, 1, 2, 2),
        b.weight(1, 16), "", b.weight(1, 2, 2), b.weight(1, 2, 2), b.input("dy", [5, 1, 2, 2]), outputs=6, domain=OURS,
    ),
    "GRUGrad": lambda b: b(
        "GRUGrad", b.input("x", [5, 2, 3]), b.weight(1, 6, 3), b.weight(1, 6, 2), b.weight(5, 1, 2, 2),
        b.weight(1, 12), "", b.weight(1, 2, 2), b.input("dy", [5, 1, 2, 2]), outputs=5, domain=OURS,
    ),
    "DynamicQuantizeBlocks": lambda b: b("DynamicQuantizeBlocks", b.input("x", [3, 64]), outputs=3, domain=OURS),
    "MatMulNBits": lambda b: b("MatMulNBits", b.input("x", [3, 64]), *blocks(b), domain=OURS, **BLOCKS),
    "GatherBlockQuantized": lambda b: b(
        "GatherBlockQuantized", blocks(b)[0], b.const(np.array([[0, 4]]), np.int32), blocks(b)[1], domain=OURS, **BLOCKS
    ),
    "LoraMatMul": lambda b: b(
        "LoraMatMul", b.input("x", [3, 32]), b.input("base", [3, 16]), b.input("adapters", [2, 100]),
        b.const(np.array([-1, 1, 0]), np.int32), domain=OURS, K=32, N=16, rank=2, offset=4,
    ),
    "PagedAttention": lambda b: b(
        "PagedAttention", *(b.input(name, [3, width]) for name, width in (("q", 32), ("k", 16), ("v", 24))),
        b.input("keys", [2, 2, 8, 16], np.float16), b.input("values", [2, 2, 16, 12], np.float16),
        b.const(np.array([0, 3]), np.int32), b.const(np.array([0]), np.int32), b.const(np.array([[1]]), np.int32),
        outputs=3, domain=OURS, num_heads=4, kv_num_heads=2,
    ),
    "Unpack4": lambda b: b("Unpack4", b.const(np.arange(6), np.uint8), domain=OURS, shape=[3, 4], signed=1),
}


def test_every_rule_has_its_case():
    assert {name.split()[0] for name in CASES} == set(own_shapes.RULES)


@pytest.mark.parametrize("name", CASES)
def test_as_the_reference_gives(name):
    b = Builder(21)
    made = CASES[name](b)
    model = b.model(*([made] if isinstance(made, str) else made))
    for value in model.graph.output:
        value.ClearField("type")
    model.opset_import.append(helper.make_opsetid(OURS, 1))
    found = ir.serde.deserialize_model(model)
    build.adopt(found)
    own_shapes.fill(found)
    assert not list(spec.violations(found, upgraded=False))
    graph = lower(found)
    for value, got in zip(graph.outputs, reference.run(graph, random_inputs(graph)).values(), strict=True):
        assert (value.dtype, value.shape) == (str(got.dtype), got.shape)


@pytest.mark.parametrize("op", sorted(set(own_shapes.ONNX) - {"RegexFullMatch"}))
def test_what_onnx_does_not_know(op):
    b = Builder()
    more, attrs = {
        "GroupNormalization": ([b.weight(4), b.weight(4)], {"num_groups": 2}),
        "RMSNormalization": ([b.weight(3)], {}),
    }.get(op, ([], {"axes": [2]}))
    made = b(op, b.input("x", ["n", 4, 3]), *more, **attrs)
    assert build.dims(to_ir(b.model(made)).graph.outputs[0]) == ("n", 4, 3)


def test_a_text_that_matches():
    node = ir.node("RegexFullMatch", [ir.val("x", ir.DataType.STRING, ["n", 4])], {"pattern": "a"})
    assert own_shapes.ONNX["RegexFullMatch"](node) == [(ir.DataType.BOOL, ("n", 4))]


FLOAT, INT64 = ir.DataType.FLOAT, ir.DataType.INT64
ML_CASES = {
    "TreeEnsemble": ({"n_targets": 3}, ir.DataType.DOUBLE, [(ir.DataType.DOUBLE, ("n", 3))]),
    "SVMClassifier": ({"classlabels_ints": [0, 1]}, FLOAT, [(INT64, ("n",)), (FLOAT, ("n", None))]),
    "SVMRegressor": ({}, INT64, [(FLOAT, ("n", 1))]),
    "Binarizer": ({}, INT64, [(INT64, ("n", 4))]),
    "Imputer": ({}, FLOAT, [(FLOAT, ("n", 4))]),
    "Scaler": ({}, INT64, [(FLOAT, ("n", 4))]),
    "Normalizer": ({}, INT64, [(FLOAT, ("n", 4))]),
}


def test_every_rule_of_machine_learning_has_its_case():
    assert set(ML_CASES) == set(own_shapes.ML)


@pytest.mark.parametrize("op", ML_CASES)
def test_rows_through_machine_learning(op):
    attrs, dtype, wanted = ML_CASES[op]
    node = ir.node(op, [ir.val("x", dtype, ["n", 4])], attrs, domain="ai.onnx.ml")
    assert own_shapes.ML[op](node) == wanted


def test_standard_operators_after_ours_get_shapes():
    b = Builder(21)
    q, scale, _ = b("DynamicQuantizeLinear", b.input("x", ["n", 3, 8, 8]), outputs=3, domain=OURS, kept=1)
    y = b("MaxPool", b("QLinearConv", q, scale, b.const(np.uint8(0)), *weights(b, 4, 3, 3, 3), domain=OURS),
          kernel_shape=[2, 2], strides=[2, 2])  # fmt: skip
    model = b.model(b("Softmax", y, axis=1))
    model.opset_import.append(helper.make_opsetid(OURS, 1))
    shapes = {n.op_type: build.dims(n.outputs[0]) for n in to_ir(model).graph}
    assert shapes["QLinearConv"] == ("n", 4, 6, 6) and shapes["Softmax"] == ("n", 4, 3, 3)


def test_one_pass_follows_a_long_chain():
    b = Builder(21)
    y = b.input("x", [2, 3], np.int32)
    for _ in range(9):
        by = b.const(np.int32(1 << 30)), b.const(np.int32(31)), b.const(np.int32(0))
        y = b("Unsqueeze", b("Rescale", y, *by, domain=OURS, rounding="UP"), b.const(np.array([0])))
        y = b("ReduceSum", y, b.const(np.array([0])), keepdims=0)
    model = b.model(y)
    model.opset_import.append(helper.make_opsetid(OURS, 1))
    found = ir.serde.deserialize_model(model)
    build.adopt(found)
    own_shapes.fill(found)
    assert all(build.dims(node.outputs[0]) in ((2, 3), (1, 2, 3)) for node in list(found.graph)[:-1])


def test_operators_newer_than_the_opset_without_operands_are_refused_by_name():
    """No schema of opset 18 says how many operands it has."""
    node = helper.make_node("RMSNormalization", [], ["y"])
    graph = helper.make_graph([node], "g", [], [helper.make_tensor_value_info("y", 1, None)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    with pytest.raises(ConvertError, match="RMSNormalization"):
        convert(model)


def test_shapes_of_unknown_types_are_no_warnings(caplog):
    """onnx_ir logs a value that has a shape and no type, and Python shows that to a user."""
    b = Builder(21)
    model = ir.from_proto(b.model(b("Relu", b.input("x", [2, 3]))))
    model.graph.outputs[0].type, model.graph.outputs[0].shape = None, ir.Shape([2, 3])
    build.adopt(model)
    with caplog.at_level("WARNING"):
        shapes.infer(model)
    assert not caplog.records
