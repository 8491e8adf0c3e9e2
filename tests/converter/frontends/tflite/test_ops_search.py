"""Reductions, searching, scattering, normalisation and type changes against LiteRT."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from converter.errors import ConvertError
from tests.converter.frontends.tflite.builder import Builder, Quant
from tests.converter.frontends.tflite.support import (
    I32,
    C,
    Out,
    X,
    check_op,
    fitted,
    floats,
    integers,
    run,
    stored,
    translated,
)

QUANT = Quant(0.05, -7)
REDUCTIONS = {
    "SUM": np.sum, "MEAN": np.mean, "REDUCE_MAX": np.max, "REDUCE_MIN": np.min, "REDUCE_PROD": np.prod,
}  # fmt: skip


@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("axes", [(1,), (0, -1), (1, 2), (0, 1, 2), (2, 2)])
def test_reduction(name: str, keep: bool, axes: tuple[int, ...]) -> None:
    check_op(name, [X(floats(3, 4, 5)), C(axes, np.int32)], keep_dims=keep)
    if name != "MEAN":
        check_op(name, [X(integers(3, 4, 5)), C(axes, np.int32)], keep_dims=keep)


@pytest.mark.parametrize("name", ["SUM", "MEAN", "REDUCE_MAX", "REDUCE_MIN"])
@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_reduction_quantised(name: str, dtype: Any) -> None:
    x = floats(2, 5, 7, 3)
    quant = fitted(x, dtype)
    out = quant if "REDUCE" in name else fitted(REDUCTIONS[name](x, (1, 2)), dtype)
    check_op(name, [stored(x, dtype), C([1, 2], np.int32)], [Out(dtype, out)], version=2, keep_dims=True)


def test_reduction_edges() -> None:
    check_op("MEAN", [X(integers(3, 4, 5, low=-100, high=100)), I32([1])])
    check_op("MEAN", [X(integers(3, 4, dtype=np.int64)), I32([0, 1])])
    check_op("SUM", [X(floats(3, 4)), I32(1)])
    check_op("SUM", [X(floats(3, 4)), X(np.int32([1]))], keep_dims=True)
    flags = integers(4, 5, low=0, high=4).astype(bool)
    check_op("REDUCE_ANY", [X(flags), I32([1])])
    check_op("REDUCE_ALL", [X(flags), I32([0, 1])], keep_dims=True)


@pytest.mark.parametrize("name", ["ARG_MAX", "ARG_MIN"])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_arg_extreme(name: str, axis: int) -> None:
    for data in (floats(3, 4, 5), integers(3, 4, 5, low=0, high=3)):
        check_op(name, [X(data), I32(axis)], [Out(np.int32)], output_type="INT32")
    x = X(integers(3, 4, 5, dtype=np.int8), QUANT)
    check_op(name, [x, I32([axis])], [Out(np.int64)], version=2, output_type="INT64")


def test_top_k() -> None:
    check_op("TOPK_V2", [X(floats(3, 9)), I32(4)], [Out(), Out(np.int32)])
    check_op("TOPK_V2", [X(integers(3, 9, low=0, high=3)), I32(5)], [Out(), Out(np.int32)])
    check_op("TOPK_V2", [X(floats(9)), X(np.int32(2))], [Out(), Out(np.int32)])
    x = X(integers(3, 9, dtype=np.int8), QUANT)
    check_op("TOPK_V2", [x, I32(4)], [Out(np.int8, QUANT), Out(np.int32)], version=2, steps=0)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_one_hot(axis: int) -> None:
    places = X(np.int32([[0, 2, -1], [3, 1, 7]]))
    check_op("ONE_HOT", [places, I32(4), C(np.float32(2)), C(np.float32(-1))], [Out(np.float32)], axis=axis)
    check_op("ONE_HOT", [places, I32(3), C(np.int32(1)), C(np.int32(0))], [Out(np.int32)], axis=axis)


def test_where_and_unique() -> None:
    check_op("WHERE", [X(integers(4, 5, low=0, high=2).astype(bool))], [Out(np.int64)])
    check_op("WHERE", [X(integers(9, low=0, high=2).astype(bool))], [Out(np.int64)])
    check_op("UNIQUE", [X(np.int32([3, 1, 3, 2, 1]))], [Out(), Out(np.int32)], idx_out_type="INT32")
    check_op("UNIQUE", [X(np.float32([3, 1, 3, 2, 1]))], [Out(), Out(np.int64)], idx_out_type="INT64")


def test_bucketize() -> None:
    edges = np.float32([0, 1.5, 4])
    data = np.float32([[-1, 0, 1], [1.5, 4, 9]])
    check_op("BUCKETIZE", [X(data)], [Out(np.int32)], boundaries=edges)
    check_op("BUCKETIZE", [X(data.astype(np.int32))], [Out(np.int32)], boundaries=edges)


def test_scatter_nd() -> None:
    where = np.int32([[0, 1], [2, 2], [0, 1]])
    check_op("SCATTER_ND", [X(where), X(floats(3)), I32(3, 4)], [Out(np.float32)])
    check_op("SCATTER_ND", [X(where[:, :1]), X(floats(3, 5)), I32(4, 5)], [Out(np.float32)])
    check_op("SCATTER_ND", [X(where), X(integers(3)), X(np.int32([3, 4]))], [Out(np.int32)])


def test_sparse_to_dense() -> None:
    for places, shape, values in (
        (np.int32(3), [6], np.float32(2)),
        (np.int32([1, 4]), [6], np.float32([2, 3])),
        (np.int32([[0, 1], [2, 0]]), [3, 2], np.float32([2, 3])),
        (np.int32([[0, 1], [2, 0]]), [3, 2], np.float32(7)),
    ):
        operands = [X(places), I32(shape), X(values), C(np.float32(-1))]
        check_op("SPARSE_TO_DENSE", operands, [Out(np.float32)])


def test_segments() -> None:
    for data in (floats(5, 3), integers(5, 3)):
        check_op("SEGMENT_SUM", [X(data), X(np.int32([0, 0, 1, 2, 2]))])
        for fold in ("SUM", "PROD", "MAX", "MIN"):
            check_op(f"UNSORTED_SEGMENT_{fold}", [X(data), X(np.int32([2, 0, -1, 2, 0])), I32(4)])


def test_matrix_diagonals() -> None:
    check_op("MATRIX_DIAG", [X(floats(3, 4))])
    check_op("MATRIX_DIAG", [X(integers(4))])
    for rows, columns in ((3, 3), (3, 5), (4, 2)):
        check_op("MATRIX_SET_DIAG", [X(floats(2, rows, columns)), X(floats(2, min(rows, columns), seed=1))])


@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
def test_cumsum(exclusive: bool, reverse: bool) -> None:
    for axis in (0, -1):
        check_op("CUMSUM", [X(floats(3, 5)), I32(axis)], exclusive=exclusive, reverse=reverse)
        check_op("CUMSUM", [X(integers(3, 5)), I32(axis)], exclusive=exclusive, reverse=reverse)


def test_l2_normalization() -> None:
    x = floats(2, 3, 3, 5)
    x[0, 0] = 0
    check_op("L2_NORMALIZATION", [X(x)])
    check_op("L2_NORMALIZATION", [stored(floats(2, 9))], [Out(np.int8, Quant(1 / 128, 0))], version=2)


def test_local_response_normalization() -> None:
    options = {"radius": 2, "alpha": 0.3, "beta": 0.7, "bias": 1.2}
    check_op("LOCAL_RESPONSE_NORMALIZATION", [X(floats(2, 3, 3, 7))], **options)


CASTS = [np.float32, np.int32, np.int64, np.int16, np.int8, np.uint8, np.bool_]


@pytest.mark.parametrize("source", CASTS)
@pytest.mark.parametrize("target", CASTS)
def test_cast(source: Any, target: Any) -> None:
    x = (np.abs(floats(3, 4)) * 30).astype(source)
    check_op("CAST", [X(x)], [Out(target)], in_data_type=np.dtype(source).name.replace("np.", ""),
             out_data_type=np.dtype(target).name)  # fmt: skip


def test_bitcast() -> None:
    check_op("BITCAST", [X(floats(3, 4))], [Out(np.int32)])
    builder = Builder()
    builder.output(builder.op("BITCAST", [builder.input("x", (3, 4))], (3, 4, 4), "uint8"))
    with pytest.raises(ConvertError, match="equal size"):
        translated(builder.build())


def test_quantize_to_32_bits() -> None:
    x = floats(5, 9)
    check_op("QUANTIZE", [stored(x, np.int16)], [Out(np.int32, Quant(2.0**-20, 0))], version=2)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16])
def test_quantize_and_back(dtype: Any) -> None:
    x = floats(5, 9)
    quant = fitted(x, dtype)
    check_op("QUANTIZE", [X(x)], [Out(dtype, quant)])
    check_op("DEQUANTIZE", [stored(x, dtype)], [Out(np.float32)], version=2)


def test_requantise() -> None:
    x = floats(5, 9)
    wide = Quant(fitted(x).scale * 1.7, 5)
    check_op("QUANTIZE", [stored(x)], [Out(np.int8, wide)])
    check_op("QUANTIZE", [stored(x, np.uint8)], [Out(np.int8, fitted(x))])
    check_op("QUANTIZE", [stored(x)], [Out(np.uint8, fitted(x, np.uint8))])


def test_dequantize_half() -> None:
    check_op("DEQUANTIZE", [X(floats(3, 4).astype(np.float16))], [Out(np.float32)], version=3)


@pytest.mark.parametrize("bits", [4, 8, 16])
def test_fake_quant(bits: int) -> None:
    options = {"min": -1.3, "max": 2.1, "num_bits": bits, "narrow_range": False}
    check_op("FAKE_QUANT", [X(floats(7, 9) * 2)], version=2, **options)


def test_fake_quant_of_weights() -> None:
    """A narrow range, which LiteRT knows in files but does not run: as its definition says."""
    builder = Builder()
    x = builder.input("x", (40,))
    builder.output(builder.op("FAKE_QUANT", [x], (40,), version=2, min=-1.0, max=1.0, num_bits=4, narrow_range=True))
    data = floats(40)
    (found,) = run(translated(builder.build()), [data])
    np.testing.assert_allclose(found, np.floor(np.clip(data, -1, 1) * 7 + 0.5) / 7, atol=1e-6)


def test_embedding_lookup() -> None:
    ids = X(np.int32([3, 0, 3]))
    check_op("EMBEDDING_LOOKUP", [ids, C(floats(5, 4))], [Out(np.float32)])
    check_op("EMBEDDING_LOOKUP", [ids, C(floats(5, 2, 3))], [Out(np.float32)])
    table = C(integers(5, 4, low=-127, high=128, dtype=np.int8), quant=Quant(0.03))
    check_op("EMBEDDING_LOOKUP", [ids, table], [Out(np.float32)])
    rows = table._replace(quant=Quant([0.1, 0.2, 0.3, 0.4, 0.5]))
    check_op("EMBEDDING_LOOKUP", [ids, rows], [Out(np.float32)], version=2)


def test_random() -> None:
    """Shapes, types and moments: generators differ."""
    for name, mean, deviation in (("RANDOM_UNIFORM", 0.5, 12**-0.5), ("RANDOM_STANDARD_NORMAL", 0.0, 1.0)):
        builder = Builder()
        builder.output(builder.op(name, [builder.const(np.int32([40, 50]))], (40, 50), "float32", seed=3, seed2=4))
        (found,) = run(translated(builder.build()), [])
        assert found.shape == (40, 50) and found.dtype == np.float32
        assert abs(found.mean() - mean) < 0.1 and abs(found.std() - deviation) < 0.05


def test_multinomial() -> None:
    builder = Builder()
    logits = builder.input("x", (2, 3))
    builder.output(builder.op("MULTINOMIAL", [logits, builder.const(np.int32(500))], (2, 500), "int64", seed=1))
    (found,) = run(translated(builder.build()), [np.log(np.float32([[1, 0.001, 9], [5, 5, 0.001]]))])
    assert found.dtype == np.int64 and found.shape == (2, 500)
    assert 0.8 < (found[0] == 2).mean() < 0.97 and 0.4 < (found[1] == 0).mean() < 0.6
