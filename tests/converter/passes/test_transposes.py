"""Transposes sink through every operator in the table and cancel; chains of movements become one."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from converter import ConvertError, convert
from converter.passes.sink_transposes import RULES
from lite_runtime import ShapeError, load, reference
from tests.converter.support import Builder, assert_close, check, converted, ops, random_inputs

LAST, FIRST = [0, 2, 3, 1], [0, 3, 1, 2]


def i64(b: Builder, *values: int) -> str:
    return b.const(list(values), np.int64)


def c4(b: Builder) -> str:
    return b.weight(4, 1, 1)


THROUGH = {
    "unary": lambda b, x: b("Sigmoid", x),
    "clip": lambda b, x: b("Clip", x, b.const(0.1, np.float32)),
    "constant": lambda b, x: b("Pow", b("Add", b("Abs", x), b.weight(1, 4, 3, 1)), b.const(2.0, np.float32)),
    "low-rank constant": lambda b, x: b("Mul", x, b.weight(3, 5)),
    "prelu": lambda b, x: b("PRelu", x, c4(b)),
    "both operands": lambda b, x: b("Mul", x, b("Tanh", x)),
    "cast like": lambda b, x: b("CastLike", x, b.const([1.0], np.float32)),
    "where": lambda b, x: b("Where", b("Greater", x, b.const(0.0, np.float32)), x, b.const(1.0, np.float32)),
    "concat": lambda b, x: b("Concat", x, b("Neg", x), b.weight(1, 2, 3, 5), axis=1),
    "slice": lambda b, x: b("Slice", x, i64(b, 1, 0), i64(b, 3, 2), i64(b, 1, -1)),
    "pad": lambda b, x: b("Pad", x, i64(b, 0, 1, 0, 2, 0, 0, 3, 0)),
    "pad axes": lambda b, x: b("Pad", x, i64(b, 1, 2), "", i64(b, 3)),
    "resize": lambda b, x: b("Resize", x, "", b.const([1, 1, 2, 3], np.float32), mode="nearest"),
    "resize to": lambda b, x: b("Resize", x, "", "", i64(b, 1, 4, 6, 7), mode="linear"),
    "resize axes": lambda b, x: b("Resize", x, "", b.const([2, 3], np.float32), axes=[2, 3], mode="linear"),
    "tile": lambda b, x: b("Tile", x, i64(b, 1, 2, 1, 3)),
    "expand": lambda b, x: b("Expand", x, i64(b, 2, 4, 3, 5)),
    "softmax": lambda b, x: b("Softmax", x, axis=1),
    "cumsum": lambda b, x: b("CumSum", x, b.const(1, np.int64)),
    "center crop": lambda b, x: b("CenterCropPad", x, i64(b, 6, 2), axes=[1, -2]),
    "center crop all": lambda b, x: b("CenterCropPad", x, i64(b, 1, 2, 6, 3)),
    "top k": lambda b, x: b("TopK", x, i64(b, 2), axis=1, outputs=2)[0],
    "reduce": lambda b, x: b("ReduceMax", x, i64(b, 1)),
    "gather": lambda b, x: b("Gather", x, i64(b, 2, 0), axis=1),
    "split": lambda b, x: b("Concat", *b("Split", x, outputs=2, num_outputs=2, axis=1)[::-1], axis=1),
    "quantize": lambda b, x: b(
        "DequantizeLinear",
        b("QuantizeLinear", x, b.const([0.1, 0.2, 0.3, 0.4], np.float32), b.const([0] * 4, np.int8), axis=1),
        b.const([0.1, 0.2, 0.3, 0.4], np.float32),
        axis=1,
    ),
}


@pytest.mark.parametrize("name", THROUGH)
def test_it_sinks_through(name):
    b = Builder(20)
    x = b("Transpose", b.input("x", [1, 3, 5, 4]), perm=FIRST)
    graph = check(b.model(b("Transpose", THROUGH[name](b, x), perm=LAST)))
    assert "Transpose" not in ops(graph), ops(graph)


NEWER = {
    "SwiGLU": lambda b, x: b("SwiGLU", x, b("Add", x, b.weight(1, 4, 3, 5)), alpha=1.2),
    "CumProd": lambda b, x: b("CumProd", x, b.const(1, np.int64)),
    "BitCast": lambda b, x: b("BitCast", b("BitCast", x, to=6), to=1),
}
"""Operators that onnxruntime does not know."""


@pytest.mark.parametrize("op", NEWER)
def test_it_sinks_through_newer_operators(op):
    b = Builder(28)
    x = b("Transpose", b.input("x", [1, 3, 5, 4]), perm=FIRST)
    model = b.model(b("Transpose", NEWER[op](b, x), perm=LAST))
    graph, plain = converted(model), converted(model, ())
    assert "Transpose" not in ops(graph) and op in ops(graph), ops(graph)
    inputs = random_inputs(graph)
    assert_close(reference.run(graph, inputs), reference.run(plain, inputs))


SHRINKING = {
    "squeeze": lambda b, x: b("Squeeze", b("ReduceMean", x, i64(b, 2)), i64(b, 2)),
    "reduce": lambda b, x: b("ReduceSum", x, i64(b, 1), keepdims=0),
    "reduce two": lambda b, x: b("ReduceSum", x, i64(b, 1, 3), keepdims=0),
    "argmax": lambda b, x: b("Cast", b("ArgMax", x, axis=1, keepdims=0), to=1),
    "argmax kept": lambda b, x: b("Cast", b("ArgMax", x, axis=-1), to=1),
    "gather one": lambda b, x: b("Gather", x, b.const(1, np.int64), axis=1),
    "unsqueeze": lambda b, x: b("Unsqueeze", x, i64(b, 0, 3)),
    "reshape": lambda b, x: b("Reshape", x, i64(b, 1, -1)),
    "reduce all": lambda b, x: b("ReduceSum", x),
    "layer norm": lambda b, x: b("LayerNormalization", x, b.weight(5), axis=-1),
}


@pytest.mark.parametrize("perm", [FIRST, LAST, [0, 2, 1, 3], [3, 0, 2, 1]])
@pytest.mark.parametrize("name", SHRINKING)
def test_axes_come_and_go(name, perm):
    b = Builder(20)
    x = b("Transpose", b.input("x", [1 if perm[0] == 0 else 5, 5, 5, 5]), perm=perm)
    check(b.model(SHRINKING[name](b, x), b("Relu", SHRINKING[name](b, b("Abs", x)))))


def test_the_table_is_covered():
    assert len(RULES) > 80


def test_an_operand_from_elsewhere_is_not_transposed_back_for_nothing():
    b = Builder(20)
    x = b("Transpose", b.input("x", [1, 3, 5, 4]), perm=FIRST)
    graph = check(b.model(b("Add", x, b.input("y", [1, 4, 3, 5]))))
    assert ops(graph).count("Transpose") == 1


def test_transposes_of_matrices_go_into_the_product():
    b = Builder(20)
    x, y = b.input("x", [2, 5, 3]), b.input("y", [2, 4, 5])
    graph = check(b.model(b("MatMul", b("Transpose", x, perm=[0, 2, 1]), b("Transpose", y, perm=[0, 2, 1]))))
    assert ops(graph) == ["MatMul"] and graph.nodes[0].attrs == {"transA": 1, "transB": 1}


def test_flattened_images_permute_the_weights():
    b = Builder(20)
    y = b("Conv", b.input("x", [1, 1, 6, 6]), b.weight(4, 1, 3, 3))
    flat = b("Flatten", b("MaxPool", y, kernel_shape=[2, 2], strides=[2, 2]))
    graph = check(b.model(b("MatMul", flat, b.weight(16, 3))))
    assert "Transpose" not in ops(graph)


def test_channel_shuffle_becomes_strided_slices():
    b = Builder(20)
    x = b.input("x", [1, 6, 4, 4])
    wide = b("Reshape", x, i64(b, 3, 2, 16))
    turned = b("Reshape", b("Transpose", wide, perm=[1, 0, 2]), i64(b, 2, 1, 3, 4, 4))
    parts = [b("Gather", turned, b.const(i, np.int64), axis=0) for i in (0, 1)]
    graph = check(b.model(*parts))
    assert ops(graph) == ["Slice", "Slice"]


def test_movements_of_symbolic_batches():
    b = Builder(20)
    x = b.input("x", ["n", 2, 3, 4])
    wide = b("Reshape", b("Transpose", x, perm=[0, 2, 3, 1]), i64(b, -1, 12, 2))
    graph = check(b.model(b("Reshape", b("Transpose", wide, perm=[0, 2, 1]), i64(b, -1, 24))), symbolic=3)
    assert ops(graph) == ["Reshape"]


@pytest.mark.parametrize("rank", [3, 4, 5])
def test_every_rank_goes_channels_last(rank):
    b = Builder(20)
    space = [6, 5, 4][: rank - 2]
    x = b.input("x", [1, 3, *space])
    k = [2] * (rank - 2)
    y = b("MaxPool", b("Relu", b("Conv", x, b.weight(4, 3, *k))), kernel_shape=k)
    y = b("AveragePool", y, kernel_shape=[1] * (rank - 2))
    y = b("Conv", b("InstanceNormalization", y, b.weight(4), b.weight(4)), b.weight(2, 4, *[1] * (rank - 2)))
    graph = check(b.model(b("GlobalAveragePool", y)))
    assert ops(graph).count("Transpose") <= 1
    assert all(n.attrs["layout"] == "NHWC" for n in graph.nodes if n.op not in ("Transpose", "Reshape"))


def test_a_pool_alone_stays_channels_first():
    b = Builder(20)
    graph = check(b.model(b("MaxPool", b.input("x", [1, 3, 6, 6]), kernel_shape=[2, 2])))
    assert ops(graph) == ["MaxPool"]


def test_indices_of_a_max_pool_keep_it_channels_first():
    b = Builder(20)
    y, index = b("MaxPool", b.input("x", [1, 3, 6, 6]), outputs=2, kernel_shape=[2, 2])
    check(b.model(y, b("Cast", index, to=1)))


def test_a_declared_rank_that_the_operator_does_not_give():
    b = Builder(22)
    x = b("Conv", b.input("x", [1, 4, 8, 6]), b.weight(2, 4, 3, 3))
    mean = b.weight(2, 1)  # a second axis: ONNX infers nothing
    y = b("LeakyRelu", b("BatchNormalization", x, b.weight(2), b.weight(2), mean, b.weight(2)))
    model = b.model(y)
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info(y, TensorProto.FLOAT, [1, 2, 4]))
    with pytest.raises(ConvertError, match=r"declared with 3 dimensions, but its operator gives 4"):
        convert(model)


def test_a_convolution_and_its_activation_are_quantised_once():
    """.tflite files have a Transpose between them."""
    b = Builder(seed=1)
    y = b("Transpose", b("Conv", b.input("x", [1, 3, 6, 5]), b.weight(8, 3, 3, 3), b.weight(8)), perm=LAST)
    y = b("Transpose", b("Relu", y), perm=FIRST)
    y = b("Conv", y, b.weight(4, 8, 1, 1), b.weight(4))
    data = np.random.default_rng(0).standard_normal((8, 3, 6, 5)).astype(np.float32)
    made = onnx.load_from_string(convert(b.model(y), to="onnx", quantize="int8", calibration={"x": data}).bundle)
    names = [node.op_type for node in made.graph.node]
    assert names.count("QuantizeLinear") == 2 and "Transpose" not in names
    exported = onnx.load_from_string(convert(b.model(y), to="onnx").bundle)
    assert [node.op_type for node in exported.graph.node] == ["Conv", "Relu", "Conv"]


def test_factors_for_another_number_of_axes_are_no_bug_of_the_converter():
    """Sizes that are known only when the model runs: the Resize is named there."""
    b = Builder(opset=9)
    x = b.input("x", ["N", 2, 6])
    to = b("Concat", b("Gather", b("Shape", x), i64(b, 0)), i64(b, 4, -1), axis=0)
    turned = b("Transpose", b("Reshape", x, to), perm=[0, 2, 1])
    scales = b.const([1, 1, 2, 2], np.float32)
    model = b.model(b("Upsample", b("Unsqueeze", turned, axes=[0, 2, 1]), scales, mode="nearest"))
    with pytest.raises(ShapeError, match="expected 6 scales or sizes, got shape"):
        load(convert(model).bundle).run({"x": np.ones((2, 2, 6), np.float32)})
