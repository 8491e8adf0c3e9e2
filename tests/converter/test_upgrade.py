"""Nodes of old opsets mean the same after the upgrade: by onnxruntime where it reads the opset, else by formula."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from converter import ConvertError, convert
from converter.ir.upgrade import ML_OPSET, OPSET, ROWS
from converter.pass_lists import to_ir
from lite_runtime import reference
from tests.converter.support import Builder, check, converted, random_inputs

CASES = {}


def case(opset: int):
    def register(make):
        CASES[f"{make.__name__}-{opset}"] = (make, opset)
        return make

    return register


@case(9)
def softmax_over_several_axes(b):
    return b.model(b("Softmax", b.input("x", [2, 3, 4]), axis=1))


@case(12)
def log_softmax_of_an_unknown_rank(b):
    return b.model(b("LogSoftmax", b.input("x", ["n", 3, 4]), axis=0))


@case(11)
def softmax_whose_other_axes_are_one(b):
    return b.model(b("Softmax", b.input("x", [2, 3, 1, 1])))


@case(11)
def softmax_last(b):
    return b.model(b("Softmax", b.input("x", [2, 3, 4]), axis=-1))


@case(8)
def clip_attributes(b):
    return b.model(b("Clip", b.input("x", [9]), min=-0.5, max=0.25))


@case(10)
def clip_one_bound(b):
    return b.model(b("Clip", b.input("x", [9]), max=0.25))


@case(9)
def squeeze_and_unsqueeze(b):
    return b.model(b("Squeeze", b("Unsqueeze", b.input("x", [2, 3]), axes=[0, 3]), axes=[0]))


@case(11)
def squeeze_everything(b):
    return b.model(b("Squeeze", b.input("x", [1, 3, 1])))


@case(11)
def reductions(b):
    x = b.input("x", [2, 3, 4])
    return b.model(b("ReduceSum", x, axes=[1], keepdims=0), b("ReduceMean", x, axes=[-1]), b("ReduceMax", x))


@case(17)
def late_reductions(b):
    x = b.input("x", [2, 3, 4])
    return b.model(b("ReduceL2", x, axes=[0, 2]), b("ReduceLogSumExp", x, axes=[1]), b("ReduceProd", x, keepdims=0))


@case(9)
def slice_attributes(b):
    return b.model(b("Slice", b.input("x", [5, 6]), starts=[1, -3], ends=[4, 9], axes=[0, 1]))


@case(9)
def slice_without_axes(b):
    return b.model(b("Slice", b.input("x", [5, 6]), starts=[1], ends=[4]))


@case(10)
def pad_attributes(b):
    return b.model(b("Pad", b.input("x", [2, 3]), pads=[0, 1, 1, 0], value=1.5))


@case(9)
def pad_reflected(b):
    return b.model(b("Pad", b.input("x", [4, 3]), pads=[0, 1, 1, 1], mode="reflect"))


@case(9)
def top_k(b):
    return b.model(*b("TopK", b.input("x", [3, 7]), outputs=2, k=3, axis=1))


@case(11)
def split_sizes(b):
    return b.model(*b("Split", b.input("x", [2, 6]), outputs=2, split=[2, 4], axis=1))


@case(11)
def split_equally(b):
    return b.model(*b("Split", b.input("x", [2, 6]), outputs=3, axis=1))


@case(13)
def split_equally_13(b):
    return b.model(*b("Split", b.input("x", [6]), outputs=2))


@case(9)
def upsample(b):
    return b.model(b("Upsample", b.input("x", [1, 2, 3, 4]), b.const([1, 1, 2, 3], np.float32), mode="nearest"))


@case(7)
def upsample_attribute(b):
    return b.model(b("Upsample", b.input("x", [1, 2, 3, 4]), scales=[1.0, 1.0, 2.0, 2.0], mode="linear"))


@case(10)
def resize_linear(b):
    return b.model(b("Resize", b.input("x", [1, 2, 3, 4]), b.const([1, 1, 2, 2], np.float32), mode="linear"))


@case(10)
def resize_larger(b):
    return b.model(b("Resize", b.input("x", [1, 2, 3, 4]), b.const([1, 1, 2, 1.5], np.float32)))


@case(10)
def resize_smaller(b):
    return b.model(b("Resize", b.input("x", [1, 2, 4, 6]), b.const([1, 1, 0.6, 0.6], np.float32)))


@case(11)
def resize_tf_half_pixel(b):
    x, none = b.input("x", [1, 2, 4, 6]), b.const([], np.float32)
    scales = b.const([1, 1, 1.5, 0.5], np.float32)
    mode = "tf_half_pixel_for_nn"
    return b.model(
        b("Resize", x, none, scales, mode="nearest", coordinate_transformation_mode=mode, nearest_mode="floor")
    )


@case(9)
def dropout(b):
    return b.model(b("Relu", b("Dropout", b.input("x", [3, 4]), ratio=0.4)))


@case(10)
def dropout_as_output(b):
    return b.model(b("Dropout", b.input("x", [3, 4])))


@case(9)
def batch_norm(b):
    var = b.const(b.rng.random(3).astype(np.float32) + 0.1)
    x = b.input("x", [2, 3, 4])
    return b.model(b("BatchNormalization", x, b.weight(3), b.weight(3), b.weight(3), var, epsilon=1e-3))


@case(10)
def scatter(b):
    index = b.const([[1, 0, 2], [0, 2, 1]], np.int64)
    return b.model(b("Scatter", b.input("x", [3, 3]), index, b.input("u", [2, 3])))


@case(12)
def gru(b):
    return b.model(*b("GRU", b.input("x", [4, 2, 3]), b.weight(1, 15, 3), b.weight(1, 15, 5), outputs=2, hidden_size=5))


@case(7)
def gemm(b):
    x = b.input("x", [2, 3])
    return b.model(b("Gemm", x, b.weight(3, 4), b.weight(4), alpha=0.5, beta=2.0))


@case(9)
def cast(b):
    return b.model(b("Cast", b.input("x", [5]), to=onnx.TensorProto.INT32))


@case(16)
def grid_sample(b):
    grid = b.const((b.rng.random((1, 3, 3, 2)) * 2 - 1).astype(np.float32))
    return b.model(b("GridSample", b.input("x", [1, 2, 4, 4]), grid, mode="bilinear"))


@case(15)
def roi_align(b):
    rois, batch = b.const([[0, 0, 4, 4]], np.float32), b.const([0], np.int64)
    return b.model(b("RoiAlign", b.input("x", [1, 2, 6, 6]), rois, batch, output_height=2, output_width=2))


@case(17)
def dft(b):
    return b.model(b("DFT", b.input("x", [1, 6, 1]), axis=1))


@case(12)
def mean_max_min_sum(b):
    x, y = b.input("x", [3, 4]), b.input("y", [4])
    return b.model(b("Mean", x, y), b("Max", x, y), b("Min", x, y), b("Sum", x, y))


@pytest.mark.parametrize("name", CASES)
def test_it_means_the_same(name):
    make, opset = CASES[name]
    check(make(Builder(opset)))


def reference_of(model, **inputs):
    graph = converted(model, ())
    return reference.run(graph, inputs or random_inputs(graph))


def oldest(op: str, opset: int, *shapes, outputs: int = 1, ready: bool = True, **attrs):
    """A one-node model whose inputs are a, b, c…; types are declared, since old inference is of little help."""
    infos = [onnx.helper.make_tensor_value_info(n, 1, s) for n, s in zip("abcdef", shapes, strict=False)]
    names = [f"y{i}" for i in range(outputs)]
    node = onnx.helper.make_node(op, [i.name for i in infos], names, "it", **attrs)
    outs = [onnx.helper.make_tensor_value_info(n, 1, None) for n in names[:1]]
    graph = onnx.helper.make_graph([node], "g", infos, outs)
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)], ir_version=3)


A = np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)
B3 = np.arange(1, 4, dtype=np.float32)
FORMULAS = [
    (oldest("Add", 6, (2, 3, 4), (3,), broadcast=1, axis=1), {"a": A, "b": B3}, A + B3[:, None]),
    (oldest("Mul", 6, (2, 3, 4), (2,), broadcast=1, axis=0), {"a": A, "b": B3[:2]}, A * B3[:2, None, None]),
    (oldest("Sub", 6, (2, 3, 4), (4,), broadcast=1), {"a": A, "b": A[0, 0]}, A - A[0, 0]),
    (oldest("PRelu", 6, (2, 3, 4), (3,)), {"a": A, "b": B3}, np.where(A < 0, A * B3[:, None], A)),
    (oldest("Reshape", 4, (2, 3, 4), shape=[6, 4]), {"a": A}, A.reshape(6, 4)),
    (oldest("Relu", 1, (2, 3, 4), consumed_inputs=[0]), {"a": A}, np.maximum(A, 0)),
    (oldest("Cast", 5, (2, 3, 4), to="DOUBLE"), {"a": A}, A.astype(np.float64)),
    (oldest("Pad", 1, (2, 3, 4), paddings=[0, 0, 1, 0, 0, 0]), {"a": A}, np.pad(A, ((0, 0), (0, 0), (1, 0)))),
    (oldest("Dropout", 6, (2, 3, 4), is_test=1), {"a": A}, A),
    (oldest("Gemm", 6, (2, 3), (3, 4), (4,), broadcast=1), {"a": A[0, :2, :3], "b": A[0], "c": A[1, 0]},
     A[0, :2, :3] @ A[0] + A[1, 0]),
    (oldest("Upsample", 1, (1, 1, 3, 4), height_scale=2.0, width_scale=1.0), {"a": A[None, :1]},
     A[None, :1].repeat(2, 2)),
    (oldest("LpPool", 1, (1, 1, 3, 4), kernel_shape=[3, 4], p=2.0), {"a": A[None, :1]},
     np.sqrt((A[:1] ** 2).sum()).reshape(1, 1, 1, 1)),
]  # fmt: skip


@pytest.mark.parametrize(("model", "inputs", "wanted"), FORMULAS, ids=lambda v: getattr(v, "ir_version", None) and "")
def test_opsets_no_engine_reads(model, inputs, wanted):
    got = reference_of(model, **inputs)["y0"]
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


def test_group_normalization_of_opset_18_scales_groups():
    b = Builder(18)
    model = b.model(
        b("GroupNormalization", b.input("x", [2, 4, 3]), b.const([2, 3], np.float32), b.const([0, 1], np.float32),
          num_groups=2)
    )  # fmt: skip
    x = np.random.default_rng(0).standard_normal((2, 4, 3)).astype(np.float32)
    groups = x.reshape(2, 2, -1)
    normal = (groups - groups.mean(-1, keepdims=True)) / np.sqrt(groups.var(-1, keepdims=True) + 1e-5)
    wanted = normal * np.array([[2], [3]]) + np.array([[0], [1]])
    got = next(iter(reference_of(model, x=x).values()))
    np.testing.assert_allclose(got, wanted.reshape(x.shape), rtol=1e-4, atol=1e-5)


def test_batch_norm_per_element():
    shape = (3, 2)
    model = oldest("BatchNormalization", 7, (2, *shape), shape, shape, shape, shape, spatial=0, epsilon=0.0)
    x = A[:, :, :2]
    one = np.ones(shape, np.float32)
    got = reference_of(model, a=x, b=2 * one, c=one, d=0.5 * one, e=4 * one)["y0"]
    np.testing.assert_allclose(got, (x - 0.5) / 2 * 2 + 1, rtol=1e-5)


def test_label_encoder_of_ml_1():
    node = onnx.helper.make_node("LabelEncoder", ["x"], ["y"], domain="ai.onnx.ml", classes_strings=["a", "b"])
    graph = onnx.helper.make_graph(
        [node],
        "g",
        [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.STRING, [3])],
        [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.INT64, [3])],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("ai.onnx.ml", 1)])
    got = reference.run(converted(model, ()), {"x": np.array(["b", "z", "a"], object)})["y"]
    assert got.tolist() == [1, -1, 0]


def test_every_opset_ends_pinned():
    b = Builder(8)
    model = to_ir(b.model(b("Relu", b.input("x", [2]))))
    assert model.graph.opset_imports[""] == OPSET
    assert ML_OPSET == 5


def test_a_withdrawn_form_is_refused_by_name():
    b = Builder(11)
    none = b.const([], np.float32)
    scales = b.const([1, 1, 2, 2], np.float32)
    model = b.model(
        b("Resize", b.input("x", [1, 1, 3, 3]), none, scales, mode="linear",
          coordinate_transformation_mode="tf_half_pixel_for_nn")
    )  # fmt: skip
    with pytest.raises(ConvertError, match=r"Resize .*tf_half_pixel_for_nn"):
        to_ir(model)


@pytest.mark.parametrize("op", ["Gelu", "Mish", "OptionalGetElement"])
def test_results_of_operators_that_the_opset_does_not_have_yet_are_checked(op):
    """onnx's inference knows nothing of them before the upgrade: a false declaration reached the bundle."""
    model = oldest(op, 13, (2, 3))
    np.testing.assert_allclose(reference_of(model, a=A[0, :2, :3])["y0"].shape, (2, 3))
    model.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.FLOAT8E4M3FN
    with pytest.raises(ConvertError, match="declared as FLOAT8E4M3FN, but its operator gives FLOAT"):
        convert(model)


def test_rows_name_real_operators():
    known = {s.name for s in onnx.defs.get_all_schemas_with_history()}
    assert {op for row in ROWS for op in row.ops} - {"*"} <= known


@pytest.mark.parametrize(("op", "attrs"), [("Gelu", {}), ("QuickGelu", {}), ("QuickGelu", {"alpha": 1.3})])
def test_operators_of_onnxruntimes_domain(op, attrs):
    """What its optimiser writes instead of ONNX's operators."""
    import onnxruntime
    from onnx import helper

    from converter import convert
    from lite_runtime import load

    b = Builder(17)
    y = b("Relu", b(op, b("Neg", b.input("x", [3, 5])), domain="com.microsoft", **attrs))
    proto = b.model(y)
    proto.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    x = np.random.default_rng(0).normal(0, 2, (3, 5)).astype(np.float32)
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    wanted = session.run(None, {"x": x})[0]
    (got,) = load(convert(proto).bundle).run({"x": x}).values()
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


def test_a_false_type_behind_a_foreign_operator_is_refused():
    """Nothing checks what is declared until the operator is replaced by one that ONNX knows."""
    node = onnx.helper.make_node("Trilu", ["x"], ["y"], domain="com.microsoft", upper=1)
    x = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [2, 3])
    for declared in (onnx.TensorProto.FLOAT, onnx.TensorProto.INT64):
        y = onnx.helper.make_tensor_value_info("y", declared, [2, 3])
        imports = [onnx.helper.make_opsetid("", 20), onnx.helper.make_opsetid("com.microsoft", 1)]
        model = onnx.helper.make_model(onnx.helper.make_graph([node], "g", [x], [y]), opset_imports=imports)
        if declared == onnx.TensorProto.FLOAT:
            convert(model)
        else:
            with pytest.raises(ConvertError, match="'y' is declared INT64, and its operator makes FLOAT"):
                convert(model)
