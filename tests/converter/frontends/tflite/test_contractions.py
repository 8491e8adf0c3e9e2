"""Convolutions, matrix products and pools of every number type, against LiteRT."""

from __future__ import annotations

from itertools import product
from typing import Any

import ai_edge_litert.schema_py_generated as schema
import numpy as np
import pytest

import lite_runtime
from converter import convert
from converter.errors import ConvertError
from converter.frontends import tflite
from converter.lowering import lower, pack_narrow
from lite_runtime import reference
from tests.converter.frontends.tflite.builder import Builder, Quant, litert
from tests.converter.frontends.tflite.support import (
    I32,
    C,
    Out,
    X,
    check,
    check_op,
    compare,
    fitted,
    floats,
    stored,
    translated,
)

PADDINGS = ("SAME", "VALID")
ACTIVATIONS = ("NONE", "RELU", "RELU6", "RELU_N1_TO_1")


def weights(shape: tuple[int, ...], axis: int, seed: int = 5, limit: int = 127) -> tuple[np.ndarray, Quant]:
    """Symmetric int8 values with a scale for each index of `axis`."""
    rng = np.random.default_rng([seed, *shape])
    return rng.integers(-limit, limit + 1, shape).astype(np.int8), Quant(
        rng.uniform(0.001, 0.02, shape[axis]).astype(np.float32), 0, axis
    )


def integer_bias(x: Quant, w: Quant, count: int, dtype: Any = np.int32) -> X:
    """Integers in steps of both scales."""
    scale = np.broadcast_to(np.float32(x.scale) * np.asarray(w.scale, np.float32), count)
    values = np.rint(floats(count, seed=9) / scale).astype(dtype)
    return C(values, None, Quant(scale.copy() if np.ndim(w.scale) else float(scale[0])))


# CONV_2D


@pytest.mark.parametrize(
    ("padding", "stride", "dilation", "kernel"),
    [
        ("SAME", (1, 1), (1, 1), (3, 3)),
        ("SAME", (2, 3), (1, 1), (3, 2)),
        ("SAME", (1, 1), (2, 3), (3, 2)),
        ("VALID", (2, 1), (1, 1), (1, 4)),
        ("VALID", (1, 1), (2, 1), (2, 2)),
        ("SAME", (2, 2), (1, 1), (1, 1)),
    ],
)
def test_conv_2d(padding: str, stride: tuple[int, int], dilation: tuple[int, int], kernel: tuple[int, int]) -> None:
    check_op(
        "CONV_2D",
        [X(floats(2, 7, 9, 3)), C(floats(5, *kernel, 3)), C(floats(5))],
        padding=padding,
        stride_h=stride[0],
        stride_w=stride[1],
        dilation_h_factor=dilation[0],
        dilation_w_factor=dilation[1],
    )


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations(activation: str) -> None:
    check_op(
        "CONV_2D",
        [X(3 * floats(1, 4, 5, 2)), C(floats(3, 2, 2, 2)), C(floats(3))],
        padding="SAME",
        stride_h=1,
        stride_w=1,
        fused_activation_function=activation,
    )


def test_conv_2d_of_groups() -> None:
    check_op(
        "CONV_2D",
        [X(floats(1, 5, 5, 6)), C(floats(4, 3, 3, 3)), C(floats(4))],
        padding="VALID",
        stride_h=1,
        stride_w=1,
    )


def test_conv_2d_of_computed_weights() -> None:
    check_op(
        "CONV_2D",
        [X(floats(1, 5, 5, 2)), X(floats(4, 3, 3, 2, seed=1)), C(floats(4))],
        padding="SAME",
        stride_h=2,
        stride_w=1,
    )


@pytest.mark.parametrize("size", [(1, 6, 7), (3, 5, 8)])
@pytest.mark.parametrize("op", ["CONV_2D", "DEPTHWISE_CONV_2D", "AVERAGE_POOL_2D", "MAX_POOL_2D"])
def test_sizes_known_only_when_run(op: str, size: tuple[int, ...]) -> None:
    model = Builder()
    x = model.input("x", (None, None, None, 4))
    operands, options = [x], {"padding": "SAME", "stride_h": 2, "stride_w": 1}
    if "CONV" in op:
        shape = (4, 3, 2, 4) if op == "CONV_2D" else (1, 3, 2, 4)
        operands += [model.const(floats(*shape)), model.const(floats(4))]
        options |= {} if op == "CONV_2D" else {"depth_multiplier": 1}
    else:
        options |= {"filter_height": 3, "filter_width": 2}
    model.output(model.op(op, operands, (None, None, None, 4), **options))
    check(model, [floats(*size, 4)])


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
@pytest.mark.parametrize("activation", ["NONE", "RELU6"])
def test_integer_conv_2d(dtype: Any, activation: str) -> None:
    x = stored(floats(2, 6, 5, 3), dtype)
    assert x.quant is not None
    if dtype == np.int8:
        values, quant = weights((4, 3, 3, 3), 0)
    else:
        values, quant = (floats(4, 3, 3, 3, low=0.0) * 255).astype(np.uint8), Quant(0.01, 121)
    check_op(
        "CONV_2D",
        [x, C(values, None, quant), integer_bias(x.quant, quant, 4)],
        [Out(dtype, fitted(np.array([-6.0, 6.0]), dtype))],
        padding="SAME",
        stride_h=1,
        stride_w=1,
        version=3,
        fused_activation_function=activation,
    )


def test_conv_2d_of_16_bits() -> None:
    x = stored(floats(1, 6, 5, 3), np.int16)
    assert x.quant is not None
    values, quant = weights((4, 3, 3, 3), 0)
    check_op(
        "CONV_2D",
        [x, C(values, None, quant), integer_bias(x.quant, quant, 4, np.int64)],
        [Out(np.int16, Quant(8 / 32767))],
        padding="VALID",
        stride_h=1,
        stride_w=1,
        version=4,
        steps=1,
    )


# activations quantised while the model runs

SIZES = np.array([8, 7], np.int32)


def check_dynamic(op: str, x: np.ndarray, operands: list[X], shape: tuple[int, ...], **options: Any) -> None:
    """Against XNNPACK, which only takes operators whose results have their shapes declared."""
    model = Builder()
    tensors = [model.input("x", x.shape), *(model.const(o.data, o.dtype, quant=o.quant) for o in operands)]
    model.output(model.op(op, tensors, shape, **options))
    check(model, [x], kernels="xnnpack")


@pytest.mark.parametrize("kernel", [1, 3])
@pytest.mark.parametrize(("stride", "groups"), [(1, 1), (2, 1), (1, 2)])
def test_dynamic_range_conv_2d(kernel: int, stride: int, groups: int) -> None:
    values, quant = weights((4, kernel, kernel, 6 // groups), 0)
    check_dynamic(
        "CONV_2D",
        floats(2, 6, 5, 6) * np.array([1, 4], np.float32).reshape(2, 1, 1, 1),
        [C(values, None, quant), C(floats(4))],
        (2, -(-6 // stride), -(-5 // stride), 4),
        padding="SAME",
        stride_h=stride,
        stride_w=stride,
        fused_activation_function="RELU",
        version=5,
    )


def test_dynamic_range_conv_2d_of_computed_sizes() -> None:
    """Files declare no shape behind an image that is resized to a computed size; the axes of MEAN need the rank."""
    values, quant = weights((4, 3, 3, 3), 0)
    model = Builder()
    x, size = model.input("x", (1, 6, 5, 3)), model.input("size", (2,), "int32")
    resized = model.op("RESIZE_NEAREST_NEIGHBOR", [x, size], ())
    options = {"padding": "SAME", "stride_h": 1, "stride_w": 1, "version": 5}
    y = model.op("CONV_2D", [resized, model.const(values, quant=quant), model.const(floats(4))], (), **options)
    axes = model.const(np.int32([1, 2]))
    model.output(model.op("MEAN", [y, axes], (), keep_dims=True))
    got = lite_runtime.load(convert(model.build()).bundle).run({"x": (image := floats(1, 6, 5, 3)), "size": SIZES})
    (wanted,) = litert(model.build(), [image, SIZES])
    np.testing.assert_allclose(*got.values(), wanted, rtol=0.02, atol=0.01)


@pytest.mark.parametrize("multiplier", [1, 2])
def test_dynamic_range_depthwise(multiplier: int) -> None:
    values, quant = weights((1, 3, 3, 4 * multiplier), 3)
    check_dynamic(
        "DEPTHWISE_CONV_2D",
        floats(3, 6, 5, 4),
        [C(values, None, quant), C(floats(4 * multiplier))],
        (3, 6, 5, 4 * multiplier),
        padding="SAME",
        stride_h=1,
        stride_w=1,
        depth_multiplier=multiplier,
        version=6,
    )


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("keep", [False, True])
def test_dynamic_range_fully_connected(per_channel: bool, keep: bool) -> None:
    values, quant = weights((5, 8), 0)
    check_dynamic(
        "FULLY_CONNECTED",
        floats(2, 3, 8) * np.array([1, 9], np.float32).reshape(2, 1, 1),
        [C(values, None, quant if per_channel else Quant(0.01)), C(floats(5))],
        (2, 3, 5) if keep else (6, 5),
        keep_num_dims=keep,
        asymmetric_quantize_inputs=True,
        version=9,
    )


@pytest.mark.parametrize("adjoint", [False, True])
def test_dynamic_range_batch_matmul(adjoint: bool) -> None:
    values, quant = weights((5, 8), 0)
    operand = C(values, None, quant) if adjoint else C(values.T.copy(), None, quant._replace(axis=1))
    check_dynamic(
        "BATCH_MATMUL",
        floats(2, 3, 8),
        [operand],
        (2, 3, 5),
        adj_y=adjoint,
        asymmetric_quantize_inputs=True,
        version=3,
    )


@pytest.mark.parametrize("batches", [1, 2])
def test_dynamic_range_batch_matmul_of_many_matrices(batches: int) -> None:
    values, _ = weights((batches, 8, 5), 0)
    check_dynamic(
        "BATCH_MATMUL",
        floats(2, 3, 8),
        [C(values, None, Quant(0.01))],
        (2, 3, 5),
        asymmetric_quantize_inputs=True,
        version=3,
    )


def test_dynamic_range_transpose_conv() -> None:
    values, quant = weights((3, 3, 3, 2), 0)
    model = Builder()
    shape, w = model.const([2, 8, 10, 3], "int32"), model.const(values, quant=quant)
    x = model.input("x", (2, 4, 5, 2))
    model.output(
        model.op("TRANSPOSE_CONV", [shape, w, x], (2, 8, 10, 3), "float32", padding="SAME", stride_h=2, stride_w=2)
    )
    check(model, [floats(2, 4, 5, 2)], kernels="xnnpack")


def test_multiplying_real_weights_would_be_seen() -> None:
    """The limit of the tests above is finer than what ranges chosen otherwise give."""
    values, quant = weights((5, 8), 0)
    x = floats(2, 8) * np.array([1, 9], np.float32).reshape(2, 1)
    model = Builder()
    w, b = model.const(values, quant=quant), model.const(floats(5))
    model.output(
        model.op("FULLY_CONNECTED", [model.input("x", x.shape), w, b], (2, 5), asymmetric_quantize_inputs=True)
    )
    plain = x @ (values * np.asarray(quant.scale)[:, None]).T + floats(5)
    with pytest.raises(AssertionError):
        compare([plain.astype(np.float32)], litert(model.build(), [x], kernels="xnnpack"), model)


# DEPTHWISE_CONV_2D, CONV_3D


@pytest.mark.parametrize("multiplier", [1, 2, 3])
@pytest.mark.parametrize("padding", PADDINGS)
def test_depthwise_conv_2d(multiplier: int, padding: str) -> None:
    check_op(
        "DEPTHWISE_CONV_2D",
        [X(floats(2, 6, 7, 3)), C(floats(1, 3, 2, 3 * multiplier)), C(floats(3 * multiplier))],
        padding=padding,
        stride_h=2,
        stride_w=2,
        depth_multiplier=multiplier,
        fused_activation_function="RELU6",
    )


@pytest.mark.parametrize("multiplier", [1, 2])
def test_integer_depthwise(multiplier: int) -> None:
    x = stored(floats(2, 6, 5, 3))
    assert x.quant is not None
    values, quant = weights((1, 3, 3, 3 * multiplier), 3)
    check_op(
        "DEPTHWISE_CONV_2D",
        [x, C(values, None, quant), integer_bias(x.quant, quant, 3 * multiplier)],
        [Out(np.int8, fitted(np.array([-4.0, 5.0])))],
        padding="SAME",
        stride_h=1,
        stride_w=1,
        depth_multiplier=multiplier,
        version=3,
    )


@pytest.mark.parametrize("padding", PADDINGS)
def test_conv_3d(padding: str) -> None:
    check_op(
        "CONV_3D",
        [X(floats(1, 4, 5, 6, 2)), C(floats(2, 3, 2, 2, 3)), C(floats(3))],
        padding=padding,
        stride_d=1,
        stride_h=2,
        stride_w=1,
        dilation_d_factor=1,
        dilation_h_factor=1,
        dilation_w_factor=1,
        fused_activation_function="RELU",
    )


# TRANSPOSE_CONV

TRANSPOSED = list(product(PADDINGS, [(1, 1), (2, 2), (3, 1)], [(3, 3), (2, 4), (1, 1)]))


@pytest.mark.parametrize(("padding", "stride", "kernel"), TRANSPOSED)
def test_transpose_conv(padding: str, stride: tuple[int, int], kernel: tuple[int, int]) -> None:
    sizes = [
        n * s if padding == "SAME" else (n - 1) * s + max(k, s) for n, s, k in zip((4, 5), stride, kernel, strict=True)
    ]
    check_op(
        "TRANSPOSE_CONV",
        [I32(2, *sizes, 3), C(floats(3, *kernel, 2)), X(floats(2, 4, 5, 2)), C(floats(3))],
        [Out(np.float32)],
        padding=padding,
        stride_h=stride[0],
        stride_w=stride[1],
        version=3,
    )


def test_transpose_conv_to_an_odd_size() -> None:
    """SAME padding of stride 2 comes from sizes 7 and 8 alike; the file says which."""
    check_op(
        "TRANSPOSE_CONV",
        [I32(1, 7, 8, 3), C(floats(3, 3, 3, 2)), X(floats(1, 4, 4, 2))],
        [Out(np.float32)],
        padding="SAME",
        stride_h=2,
        stride_w=2,
    )


def test_integer_transpose_conv() -> None:
    x = stored(floats(1, 4, 5, 2))
    assert x.quant is not None
    values, quant = weights((3, 3, 3, 2), 0)
    check_op(
        "TRANSPOSE_CONV",
        [I32(1, 8, 10, 3), C(values, None, quant), x, integer_bias(x.quant, quant, 3)],
        [Out(np.int8, fitted(np.array([-4.0, 5.0])))],
        padding="SAME",
        stride_h=2,
        stride_w=2,
        version=3,
    )


def test_transpose_conv_of_a_computed_shape() -> None:
    model = Builder()
    x = model.input("x", (None, 4, 5, 2))
    shape = model.op("SHAPE", [x], (4,), "int32", out_type="INT32")
    batch = model.op("STRIDED_SLICE", [shape, *(model.const([n], "int32") for n in (0, 1, 1))], (1,), "int32")
    rest = model.const([8, 10, 3], "int32")
    sizes = model.op("CONCATENATION", [batch, rest], (4,), "int32", axis=0)
    operands = [sizes, model.const(floats(3, 3, 3, 2)), x]
    result = model.op("TRANSPOSE_CONV", operands, (None, 8, 10, 3), "float32", padding="SAME", stride_h=2, stride_w=2)
    model.output(result)
    check(model, [floats(3, 4, 5, 2)])


# FULLY_CONNECTED


@pytest.mark.parametrize(
    ("shape", "keep"), [((2, 6), False), ((2, 6), True), ((2, 3, 6), False), ((2, 3, 6), True), ((2, 1, 2, 3), False)]
)
@pytest.mark.parametrize("bias", [False, True])
def test_fully_connected(keep: bool, shape: tuple[int, ...], bias: bool) -> None:
    check_op(
        "FULLY_CONNECTED",
        [X(floats(*shape)), C(floats(4, 6)), C(floats(4)) if bias else None],
        keep_num_dims=keep,
        fused_activation_function="RELU",
        version=6,
    )


def test_fully_connected_of_computed_weights() -> None:
    check_op("FULLY_CONNECTED", [X(floats(2, 6)), X(floats(4, 6, seed=1)), None], version=6)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
@pytest.mark.parametrize("keep", [False, True])
def test_integer_fully_connected(dtype: Any, keep: bool) -> None:
    x = stored(floats(2, 3, 16), dtype)
    assert x.quant is not None
    if dtype == np.int8:
        values, quant = weights((4, 16), 0)
        quant = Quant(0.01)
    else:
        values, quant = (floats(4, 16, low=0.0) * 255).astype(np.uint8), Quant(0.01, 121)
    check_op(
        "FULLY_CONNECTED",
        [x, C(values, None, quant), integer_bias(x.quant, quant, 4)],
        [Out(dtype, fitted(np.array([-9.0, 9.0]), dtype))],
        keep_num_dims=keep,
        version=4,
    )


def test_fully_connected_by_4_bits() -> None:
    values, quant = weights((4, 10), 0, limit=7)
    check_op(
        "FULLY_CONNECTED",
        [X(floats(3, 10)), X(values, quant, True, "int4"), C(floats(4))],
        kernels="xnnpack",
        asymmetric_quantize_inputs=True,
        version=10,
    )


def test_4_bits_stay_4_bits_in_the_file() -> None:
    values, quant = weights((64, 100), 0, limit=7)
    model = Builder()
    x = model.input("x", (2, 100))
    w = model.const(values, "int4", quant=quant)
    model.output(model.op("FULLY_CONNECTED", [x, w, None], (2, 64), asymmetric_quantize_inputs=True, version=10))
    graph = lower(translated(model.build()))
    packed = pack_narrow(graph)
    assert sorted((str(c.dtype), c.size) for c in packed.constants.values())[-1] == ("uint8", 64 * 50)
    given = {"x": floats(2, 100)}
    ((_, plain),), ((_, unpacked),) = (reference.run(g, given).items() for g in (graph, packed))
    np.testing.assert_array_equal(plain, unpacked)


@pytest.mark.parametrize(("shape", "rows", "block"), [((2, 64), 8, 32), ((3, 128), 17, 64), ((2, 3, 96), 5, 32)])
def test_fully_connected_by_blocks_of_4_bits(shape: tuple[int, ...], rows: int, block: int) -> None:
    """Activations are quantised at run time; XNNPACK multiplies by scales of bfloat16, LiteRT's own kernels by those
    that the file has."""
    rng = np.random.default_rng(3)
    values = rng.integers(-7, 8, (rows, shape[-1])).astype(np.int8)
    scales = rng.uniform(0.1, 1, (rows, shape[-1] // block)).astype(np.float16)
    model = Builder()
    x = model.input("x", shape)
    details = schema.BlockwiseQuantizationT()
    details.scales, details.zeroPoints, details.blockSize = model.const(scales).index, -1, block
    w = model.const(values, "int4", quant=Quant([1.0], 0, 0, details))
    added = model.const(floats(rows, seed=2))
    options = {"asymmetric_quantize_inputs": True, "keep_num_dims": True}
    model.output(model.op("FULLY_CONNECTED", [x, w, added], (*shape[:-1], rows), version=13, **options))
    given, data = floats(*shape), model.build()
    for integers, kernels in (("litert", "xnnpack"), ("exact", "builtin")):
        made = convert(data, integers=integers)
        (got,) = lite_runtime.load(made.bundle).run({"x": given}).values()
        (want,) = litert(data, [given], kernels=kernels)
        np.testing.assert_allclose(got, want, atol=2e-6 * np.ptp(want))
        assert not made.report.reference_ops
        assert len(made.bundle) < values.size // 2 + 6_000


def test_float16_weights() -> None:
    model = Builder()
    x = model.input("x", (2, 6))
    half = model.const(floats(4, 6).astype(np.float16))
    w = model.op("DEQUANTIZE", [half], (4, 6), "float32")
    model.output(model.op("FULLY_CONNECTED", [x, w, None], (2, 4), version=6))
    check(model, [floats(2, 6)])
    kinds = {v.dtype.name for v in translated(model.build()).graph.initializers.values() if v.dtype is not None}
    assert kinds == {"FLOAT16"}, "half precision weights must stay so in the file"


def test_float16_convolution_weights_are_stored_permuted() -> None:
    model = Builder()
    x = model.input("x", (1, 5, 5, 2))
    half = model.const(floats(4, 3, 3, 2).astype(np.float16))
    w = model.op("DEQUANTIZE", [half], (4, 3, 3, 2), "float32")
    bias = model.const(np.zeros(4, np.float32))
    model.output(model.op("CONV_2D", [x, w, bias], (1, 5, 5, 4), padding="SAME", stride_h=1, stride_w=1))
    check(model, [floats(1, 5, 5, 2)])
    assert [n.op_type for n in translated(model.build()).graph].count("Transpose") == 2


@pytest.mark.parametrize("block", [False, True])
def test_sparse_weights(block: bool) -> None:
    rng = np.random.default_rng(8)
    dense = floats(4, 8) * (rng.uniform(size=(4, 2)) < 0.5).repeat(4, axis=1).astype(np.float32)
    model = Builder()
    x = model.input("x", (3, 8))
    w = _sparse(model, dense, 4 if block else 1)
    dense_w = model.op("DENSIFY", [w], (4, 8))
    model.output(model.op("FULLY_CONNECTED", [x, dense_w, None], (3, 4), version=6))
    given = floats(3, 8)
    (got,) = check(model, [given])
    np.testing.assert_allclose(got, given @ dense.T, rtol=1e-5, atol=1e-5)


def _sparse(model: Builder, dense: np.ndarray, block: int) -> Any:
    """Rows dense, columns compressed, maybe in blocks of `block` columns."""
    rows = dense.reshape(len(dense), -1, block)
    segments, indices, values = [0], [], []
    for row in rows:
        for place, part in enumerate(row):
            if part.any():
                indices.append(place)
                values.append(part)
        segments.append(len(indices))
    found = schema.SparsityParametersT()
    found.traversalOrder, found.blockMap = [0, 1] + ([2] if block > 1 else []), [1] if block > 1 else []
    found.dimMetadata = [_dense(len(dense)), _compressed(segments, indices)] + ([_dense(block)] if block > 1 else [])
    data = np.concatenate(values).astype(np.float32).tobytes()
    return model.tensor("w", dense.shape, "float32", data=data, sparsity=found)


def _dense(size: int) -> Any:
    found = schema.DimensionMetadataT()
    found.format, found.denseSize = schema.DimensionType.DENSE, size
    return found


def _compressed(segments: list[int], indices: list[int]) -> Any:
    found = schema.DimensionMetadataT()
    found.format = schema.DimensionType.SPARSE_CSR
    found.arraySegmentsType = found.arrayIndicesType = schema.SparseIndexVector.Int32Vector
    found.arraySegments, found.arrayIndices = schema.Int32VectorT(), schema.Int32VectorT()
    found.arraySegments.values = np.asarray(segments, np.int32)
    found.arrayIndices.values = np.asarray(indices, np.int32)
    return found


# BATCH_MATMUL


@pytest.mark.parametrize(("adj_x", "adj_y"), list(product([False, True], repeat=2)))
def test_batch_matmul(adj_x: bool, adj_y: bool) -> None:
    a, b = floats(2, 1, 3, 5), floats(4, 5, 6)
    check_op(
        "BATCH_MATMUL",
        [X(a.swapaxes(-1, -2).copy() if adj_x else a), X(b.swapaxes(-1, -2).copy() if adj_y else b)],
        adj_x=adj_x,
        adj_y=adj_y,
    )


def test_batch_matmul_by_a_constant() -> None:
    check_op("BATCH_MATMUL", [X(floats(2, 3, 5)), C(floats(2, 4, 5))], adj_y=True)


def test_integer_batch_matmul() -> None:
    check_op(
        "BATCH_MATMUL",
        [stored(floats(2, 3, 8)), stored(floats(2, 8, 5, seed=1))],
        [Out(np.int8, fitted(np.array([-9.0, 9.0])))],
        version=2,
    )


# pools


@pytest.mark.parametrize("op", ["AVERAGE_POOL_2D", "MAX_POOL_2D", "L2_POOL_2D"])
@pytest.mark.parametrize(("padding", "stride", "kernel"), list(product(PADDINGS, [1, 2], [(2, 3), (3, 1)])))
def test_pools(op: str, padding: str, stride: int, kernel: tuple[int, int]) -> None:
    check_op(
        op,
        [X(floats(2, 6, 7, 3))],
        padding=padding,
        stride_h=stride,
        stride_w=stride,
        filter_height=kernel[0],
        filter_width=kernel[1],
        fused_activation_function="RELU",
    )


@pytest.mark.parametrize("op", ["AVERAGE_POOL_2D", "MAX_POOL_2D"])
@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16])
@pytest.mark.parametrize("activation", ["NONE", "RELU"])
def test_integer_pools(op: str, dtype: Any, activation: str) -> None:
    x = stored(floats(2, 6, 7, 3), dtype)
    check_op(
        op,
        [x],
        [Out(dtype, x.quant)],
        padding="SAME",
        stride_h=2,
        stride_w=2,
        filter_height=3,
        filter_width=3,
        version=3,
        fused_activation_function=activation,
    )


# what makes no sense


def test_options_that_make_no_sense() -> None:
    def conv(**changed: Any) -> bytes:
        model = Builder()
        operands = [model.input("x", (1, 4, 4, 2)), model.const(floats(3, 2, 2, 2)), model.const(floats(3))]
        options = {"padding": "SAME", "stride_h": 1, "stride_w": 1} | changed
        model.output(model.op("CONV_2D", operands, (1, 4, 4, 3), **options))
        return model.build()

    tflite.load(conv())
    for wrong, text in (
        ({"stride_h": 0}, "stride_h"),
        ({"dilation_w_factor": -1}, "dilation_w"),
        ({"padding": 7}, "SAME"),
    ):
        with pytest.raises(ConvertError, match=text):
            tflite.load(conv(**wrong))


def test_weights_of_other_channels() -> None:
    model = Builder()
    operands = [model.input("x", (1, 4, 4, 5)), model.const(floats(3, 2, 2, 2)), model.const(floats(3))]
    model.output(model.op("CONV_2D", operands, (1, 4, 4, 3), padding="SAME", stride_h=1, stride_w=1))
    with pytest.raises(ConvertError, match=r"operator 0 CONV_2D .*5 input channels"):
        tflite.load(model.build())
