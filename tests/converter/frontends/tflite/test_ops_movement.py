"""Operators that move elements, or make and read shapes, against LiteRT."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from converter.passes import cleanup
from tests.converter.frontends.tflite.builder import Builder, Quant
from tests.converter.frontends.tflite.support import (
    I32,
    C,
    Out,
    X,
    check,
    check_op,
    fitted,
    floats,
    integers,
    run,
    stored,
    translated,
)

QUANT = Quant(0.05, -7)


def everything(shape: tuple[int, ...]) -> list[tuple[X, Out]]:
    """An operand of each kind in `shape`, and the result's type."""
    return [
        (X(floats(*shape)), Out()),
        (X(integers(*shape)), Out()),
        (X(integers(*shape, dtype=np.int64)), Out()),
        (X(integers(*shape, low=-128, high=128, dtype=np.int8), QUANT), Out(np.int8, QUANT)),
        (X(integers(*shape, low=0, high=256, dtype=np.uint8), QUANT._replace(zero_point=9)),
         Out(np.uint8, QUANT._replace(zero_point=9))),
    ]  # fmt: skip


def check_all(name: str, shape: tuple[int, ...], *rest: X, only: int = 5, outs: int = 1, **options: Any) -> None:
    """The operator on every kind of operand 0."""
    for x, out in everything(shape)[:only]:
        check_op(name, [x, *rest], [out] * outs, steps=0, **options)


def test_reshape() -> None:
    check_all("RESHAPE", (2, 3, 4), I32(4, -1))
    check_op("RESHAPE", [X(floats(2, 3, 4)), I32(6, 4)])
    check_op("RESHAPE", [X(floats(2, 3, 4)), X(np.int32([3, -1, 2]))])
    check_op("RESHAPE", [X(floats(2, 3, 4))], new_shape=[8, 3])
    check_op("RESHAPE", [X(floats(0, 3, 4)), I32(0, 12)])


def test_squeeze_and_expand() -> None:
    check_all("SQUEEZE", (1, 3, 1, 4), squeeze_dims=[0])
    check_op("SQUEEZE", [X(floats(1, 3, 1, 4))])
    check_op("SQUEEZE", [X(floats(1, 3, 1, 4))], squeeze_dims=[-2])
    for axis in (0, 2, -1, -3):
        check_op("EXPAND_DIMS", [X(floats(3, 4)), I32(axis)])
    check_all("EXPAND_DIMS", (3, 4), I32([1]))


def test_shape_and_rank() -> None:
    check_op("SHAPE", [X(floats(2, 3, 4))], [Out(np.int32)], out_type="INT32")
    check_op("SHAPE", [X(floats(2, 0))], [Out(np.int64)], out_type="INT64")
    check_op("RANK", [X(floats(2, 3, 4))], [Out(np.int32)])


def test_fill_and_zeros() -> None:
    check_op("FILL", [I32(2, 3), X(np.float32(1.5))], [Out(np.float32)])
    check_op("FILL", [X(np.int64([2, 1, 3])), X(np.int32(5))], [Out(np.int32)])
    check_op("ZEROS_LIKE", [X(floats(2, 3))])
    check_op("ZEROS_LIKE", [X(integers(2, 3))])


def test_broadcast() -> None:
    check_op("BROADCAST_TO", [X(floats(3, 1)), I32(2, 3, 4)], version=2)
    check_op("BROADCAST_TO", [X(integers(1, 4, dtype=np.int8), QUANT), I32(3, 4)], [Out(np.int8, QUANT)], version=3)
    check_op("BROADCAST_ARGS", [X(np.int32([3, 1])), X(np.int32([2, 1, 4]))])
    check_op("BROADCAST_ARGS", [X(np.int64([5, 1, 3])), X(np.int64([7, 3]))])


def test_range() -> None:
    check_op("RANGE", [X(np.int32(2)), X(np.int32(11)), X(np.int32(3))])
    check_op("RANGE", [X(np.float32(2)), X(np.float32(-1)), X(np.float32(-0.5))])


def test_concatenation() -> None:
    for axis in (0, 1, -1):
        shape = tuple(5 if i == axis % 3 else 3 for i in range(3))
        check_op("CONCATENATION", [X(floats(3, 3, 3)), X(floats(*shape, seed=1))], axis=axis)
    check_op("CONCATENATION", [X(integers(2, 3)), X(integers(2, 5)), X(integers(2, 1))], axis=1)
    x = integers(2, 3, dtype=np.int8)
    check_op("CONCATENATION", [X(x, QUANT), X(x, QUANT)], [Out(np.int8, QUANT)], axis=1, steps=0)
    a, b = floats(2, 3), floats(2, 4) * 3
    out = fitted(np.concatenate([a, b], 1), np.uint8)
    check_op("CONCATENATION", [stored(a, np.uint8), stored(b, np.uint8)], [Out(np.uint8, out)], axis=1)


def test_pack_and_unpack() -> None:
    for axis in (0, 1, -1):
        check_op("PACK", [X(floats(2, 3, seed=i)) for i in range(4)], axis=axis, values_count=4)
        check_all("UNPACK", (2, 2, 2), only=2, outs=2, num=2, axis=axis)
        x = X(integers(2, 2, 2, dtype=np.int8), QUANT)
        check_op("UNPACK", [x], [Out(np.int8, QUANT)] * 2, num=2, axis=axis, steps=0)
    check_op("PACK", [X(integers(2, dtype=np.int8), QUANT)] * 2, [Out(np.int8, QUANT)], axis=0, values_count=2)
    check_op("PACK", [X(np.int32(3)), X(np.int32(4)), C(np.int32(5))], axis=0, values_count=3)


def test_split() -> None:
    for axis in (0, 1, -1):
        for x, out in everything((4, 6, 2)):
            check_op("SPLIT", [I32(axis), x], [out] * 2, num_splits=2, steps=0)
    for sizes in ((1, 2, 3), (2, -1, 1)):
        for x, out in everything((2, 6)):
            check_op("SPLIT_V", [x, I32(*sizes), I32(1)], [out] * 3, num_splits=3, steps=0)


def test_transpose() -> None:
    check_all("TRANSPOSE", (2, 3, 4), I32(2, 0, 1))
    check_op("TRANSPOSE", [X(floats(2, 3, 4, 5)), I32(0, 3, 1, 2)])


def test_tile() -> None:
    check_op("TILE", [X(floats(2, 3)), I32(2, 3)])
    check_op("TILE", [X(integers(2, 3)), X(np.int64([1, 2]))])


def test_reverse() -> None:
    check_op("REVERSE_V2", [X(floats(2, 3, 4)), I32([1])])
    check_op("REVERSE_V2", [X(integers(2, 3, 4)), I32([0, 1])])
    for seq, batch in ((1, 0), (0, 1), (2, 1), (0, 2)):
        shape = (4, 3, 5)
        lengths = integers(shape[batch], low=1, high=shape[seq] + 1)
        check_op("REVERSE_SEQUENCE", [X(floats(*shape)), X(lengths)], seq_dim=seq, batch_dim=batch)


PADS = [[[0, 0], [1, 2], [0, 3], [0, 0]], [[0, 0], [0, 0], [2, 0], [1, 1]]]


@pytest.mark.parametrize("pads", PADS)
def test_pad(pads: list[list[int]]) -> None:
    check_all("PAD", (1, 3, 4, 2), I32(pads))
    check_op("PAD", [X(floats(1, 3, 4, 2)), X(np.int32(pads))])
    check_op("PAD", [X(floats(1, 3, 4, 2)), C(pads, np.int64)])
    check_op("PADV2", [X(floats(1, 3, 4, 2)), I32(pads), C(np.float32(2.5))])
    x, value = integers(1, 3, 4, 2, dtype=np.int8), C(np.int8(3), quant=QUANT)
    check_op("PADV2", [X(x, QUANT), I32(pads), value], [Out(np.int8, QUANT)], steps=0)


@pytest.mark.parametrize("mode", ["REFLECT", "SYMMETRIC"])
def test_mirror_pad(mode: str) -> None:
    for pads in ([[1, 2], [0, 1], [2, 0]], [[0, 0], [1, 1], [0, 0]]):
        check_op("MIRROR_PAD", [X(floats(3, 2, 4)), I32(pads)], mode=mode)
        x = integers(3, 2, 4, dtype=np.int8)
        check_op("MIRROR_PAD", [X(x, QUANT), I32(pads)], [Out(np.int8, QUANT)], mode=mode, steps=0)


def test_slice() -> None:
    check_all("SLICE", (4, 5, 6), I32(1, 0, 2), I32(2, -1, 3))
    check_op("SLICE", [X(floats(4, 5)), X(np.int32([1, 2])), X(np.int32([2, -1]))])
    check_op("SLICE", [X(floats(4, 5)), C([1, 2], np.int64), C([-1, 1], np.int64)])


STRIDED: list[dict[str, Any]] = [
    {"begin": [1, 0, 2], "end": [3, 5, 6], "strides": [1, 2, 3]},
    {"begin": [-1, -1, -1], "end": [-5, -9, 1], "strides": [-1, -2, -1]},
    {"begin": [1, 1, 1], "end": [2, 2, 2], "strides": [1, 1, 1], "begin_mask": 5, "end_mask": 3},
    {"begin": [1, 2, 1], "end": [2, 3, 2], "strides": [-1, 1, -2], "begin_mask": 5, "end_mask": 5},
    {"begin": [1, 0, -1], "end": [2, 5, 0], "strides": [1, 1, 1], "shrink_axis_mask": 5, "end_mask": 2},
    {"begin": [0, 1], "end": [0, 3], "strides": [1, 1], "begin_mask": 1, "end_mask": 1},
    {"begin": [0, 1], "end": [0, 4], "strides": [1, 2], "ellipsis_mask": 1},
    {"begin": [1, 0, 0], "end": [3, 0, 2], "strides": [1, 1, 1], "ellipsis_mask": 2},
    {"begin": [0, 0, 1, 0], "end": [0, 0, 3, 0], "strides": [1, 1, 1, 1], "new_axis_mask": 2, "end_mask": 9},
    {"begin": [0, 0, 2], "end": [0, 0, 3], "strides": [1, 1, 1], "new_axis_mask": 1, "ellipsis_mask": 2},
    {"begin": [0, 0, 2], "end": [0, 0, 3], "strides": [1, 1, 1], "shrink_axis_mask": 5, "ellipsis_mask": 2},
    {"begin": [1, 2, 0], "end": [2, 2, 3], "strides": [1, 1, 1], "offset": True},
    {"begin": [0, 0, 0], "end": [100, 100, 100], "strides": [1, 1, 1]},
]


def _numpy_index(begin: list[int], end: list[int], strides: list[int], **masks: Any) -> tuple[Any, ...]:
    """The specification as NumPy writes it."""

    def entry(i: int) -> Any:
        bits = {name for name, mask in masks.items() if name != "offset" and mask >> i & 1}
        if "ellipsis_mask" in bits:
            return Ellipsis
        if "new_axis_mask" in bits:
            return None
        if "shrink_axis_mask" in bits:
            return begin[i]
        first = None if "begin_mask" in bits else begin[i]
        last = begin[i] + end[i] if masks.get("offset") else end[i]
        return slice(first, None if "end_mask" in bits else last, strides[i])

    return tuple(entry(i) for i in range(len(begin)))


@pytest.mark.parametrize("case", range(len(STRIDED)))
@pytest.mark.parametrize("computed", [False, True])
def test_strided_slice(case: int, computed: bool) -> None:
    """NumPy is the oracle: LiteRT crashes on some masks. Where it does not crash, it is compared too, below."""
    spec = STRIDED[case]
    x = floats(4, 5, 6)
    wanted = x[_numpy_index(**spec)]
    builder = Builder()
    options = dict(spec)
    begin, end, strides = (np.int32(options.pop(k)) for k in ("begin", "end", "strides"))
    make = [builder.input(k, v.shape, "int32") if computed else builder.const(v) for k, v in (("b", begin), ("e", end))]
    operands = [builder.input("x", x.shape), *make, builder.const(strides)]
    builder.output(builder.op("STRIDED_SLICE", operands, wanted.shape, version=8, **options))
    order = [begin, end, x] if computed else [x]
    np.testing.assert_array_equal(run(translated(builder.build()), order)[0], wanted)


@pytest.mark.parametrize("case", [0, 1, 2, 3, 4, 11, 12])
def test_strided_slice_as_litert(case: int) -> None:
    options = dict(STRIDED[case])
    begin, end, strides = (np.int32(options.pop(k)) for k in ("begin", "end", "strides"))
    check_all("STRIDED_SLICE", (4, 5, 6), C(begin), C(end), C(strides), version=8, **options)


def test_strided_slice_of_shape() -> None:
    """How converters write a dynamic batch: sizes[0], packed, reshaped."""
    builder = Builder()
    x = builder.input("x", (None, 3, 4))
    shape = builder.op("SHAPE", [x], (3,), "int32", out_type="INT32")
    batch = builder.op(
        "STRIDED_SLICE",
        [shape, builder.const(np.int32([0])), builder.const(np.int32([1])), builder.const(np.int32([1]))],
        (),
        shrink_axis_mask=1,
    )
    target = builder.op("PACK", [batch, builder.const(np.int32(12))], (2,), axis=0, values_count=2)
    builder.output(builder.op("RESHAPE", [x, target], (None, 12)))
    for n in (1, 3):
        check(builder, [floats(n, 3, 4)])


GATHERS = [((5, 4, 3), (2,), 0, 0), ((5, 4, 3), (2, 3), 1, 0), ((5, 4, 3), (), -1, 0), ((2, 4, 3), (2, 3), 1, 1),
           ((2, 4, 3, 5), (2, 4, 3), 2, 1), ((2, 4, 3, 5), (2, 2), 3, 1), ((2, 3, 4, 5), (2, 3, 6), 2, 2),
           ((2, 3, 4), (2,), 1, 1)]  # fmt: skip


@pytest.mark.parametrize(("shape", "index", "axis", "batch"), GATHERS)
def test_gather(shape: tuple[int, ...], index: tuple[int, ...], axis: int, batch: int) -> None:
    if batch and index[:batch] != shape[:batch]:
        index = (*shape[:batch], *index[batch:])
    where = X(integers(*index, low=0, high=shape[axis]))
    check_all("GATHER", shape, where, axis=axis, batch_dims=batch)
    check_op("GATHER", [X(floats(*shape)), X(where.data.astype(np.int64))], axis=axis, batch_dims=batch)


def test_gather_nd() -> None:
    check_all("GATHER_ND", (3, 3, 3), X(integers(4, 2, low=0, high=3)))
    check_op("GATHER_ND", [X(floats(3, 3, 3)), X(integers(2, 2, 3, low=0, high=3, dtype=np.int64))])


def test_dynamic_update_slice() -> None:
    for start in ([1, 2], [3, 4], [-2, 0]):
        check_op("DYNAMIC_UPDATE_SLICE", [X(floats(4, 5)), X(floats(2, 3, seed=1)), X(np.int32(start))])
    check_op("DYNAMIC_UPDATE_SLICE", [X(integers(4, 5)), X(integers(2, 3)), I32(1, 1)])


RESIZES = [((1, 4, 5, 3), (8, 10)), ((2, 7, 5, 1), (3, 4)), ((1, 3, 3, 2), (3, 3)), ((1, 5, 5, 2), (1, 1)),
           ((1, 6, 4, 3), (13, 9))]  # fmt: skip


@pytest.mark.parametrize(("shape", "size"), RESIZES)
@pytest.mark.parametrize("name", ["RESIZE_BILINEAR", "RESIZE_NEAREST_NEIGHBOR"])
def test_resize(name: str, shape: tuple[int, ...], size: tuple[int, int]) -> None:
    for corners, half in ((False, False), (True, False), (False, True)):
        options = {"align_corners": corners, "half_pixel_centers": half}
        check_op(name, [X(floats(*shape)), I32(*size)], **options)
        x = integers(*shape, low=-128, high=128, dtype=np.int8)
        check_op(name, [X(x, QUANT), I32(*size)], [Out(np.int8, QUANT)], version=3, **options)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_resize_interpolates_stored_numbers(dtype: type) -> None:
    """DeepLab's published files have other scales after resizing than before, which LiteRT's kernels do not look at."""
    limits = np.iinfo(dtype)
    x = integers(1, 4, 5, 3, low=limits.min, high=limits.max + 1, dtype=dtype)
    given, made = Quant(0.0124, limits.min + 3), Quant(0.0352, limits.min)
    check_op("RESIZE_BILINEAR", [X(x, given), I32(8, 10)], [Out(dtype, made)], version=3)


def test_resize_nearest_follows_float32() -> None:
    """Every small pair of sizes, where TFLite's rounding may pick another pixel than exact arithmetic."""
    for size in range(1, 12):
        for out in (1, 3, 7, 14, 15, 30):
            check_op("RESIZE_NEAREST_NEIGHBOR", [X(floats(1, size, 1, 1)), I32(out, 1)], half_pixel_centers=True)
    check_op("RESIZE_NEAREST_NEIGHBOR", [X(floats(1, 5, 4, 1)), I32(9, 9)], align_corners=True, half_pixel_centers=True)


def test_depth_and_space() -> None:
    for x, out in everything((2, 4, 6, 3)):
        check_op("SPACE_TO_DEPTH", [x], [out], block_size=2, steps=0)
    for x, out in everything((2, 4, 6, 12)):
        check_op("DEPTH_TO_SPACE", [x], [out], block_size=2, steps=0)


BLOCKS = [([2, 2], [[0, 0], [0, 0]]), ([2, 3], [[1, 1], [2, 1]]), ([3, 1], [[0, 2], [0, 0]])]


@pytest.mark.parametrize(("block", "pads"), BLOCKS)
def test_space_and_batch(block: list[int], pads: list[list[int]]) -> None:
    height, width = (n - sum(p) for n, p in zip((6, 6), pads, strict=True))
    check_all("SPACE_TO_BATCH_ND", (2, height, width, 3), I32(block), I32(pads))
    check_all("BATCH_TO_SPACE_ND", (2 * block[0] * block[1], 4, 3, 2), I32(block), I32(pads))


@pytest.mark.parametrize(("block", "pads"), BLOCKS)
def test_space_and_batch_with_computed_borders(block: list[int], pads: list[list[int]]) -> None:
    """Old exporters compute paddings and crops from the image's sizes."""
    height, width = (n - sum(p) for n, p in zip((6, 6), pads, strict=True))
    for op, shape in (
        ("SPACE_TO_BATCH_ND", (2, height, width, 3)), ("BATCH_TO_SPACE_ND", (2 * block[0] * block[1], 4, 3, 2)),
    ):  # fmt: skip
        builder = Builder()
        x, given = builder.input("x", shape), builder.input("given", (2, 2), "int32")
        borders = builder.op("ADD", [given, builder.const(np.int32([[0, 0], [0, 0]]))], (2, 2), "int32")
        builder.output(builder.op(op, [x, builder.const(np.int32(block)), borders], (None, None, None, shape[-1])))
        check(builder, [floats(*shape), np.int32(pads)])


def test_space_and_batch_of_rank_3() -> None:
    check_op("SPACE_TO_BATCH_ND", [X(floats(2, 6, 3)), I32([3]), I32([[1, 2]])])
    check_op("BATCH_TO_SPACE_ND", [X(floats(6, 4, 2)), I32([3]), I32([[1, 2]])])


@pytest.mark.parametrize("activation", ["NONE", "RELU"])
def test_dilated_convolution(activation: str) -> None:
    """What stands between the block operators becomes one convolution with dilations and pads."""
    builder = Builder()
    x = builder.input("x", (1, 13, 11, 3))
    block, pads = builder.const(np.int32([2, 3])), builder.const(np.int32([[2, 3], [3, 4]]))
    spread = builder.op("SPACE_TO_BATCH_ND", [x, block, pads], (6, 9, 6, 3))
    weights, bias = builder.const(floats(4, 3, 3, 3)), builder.const(floats(4))
    options = {"padding": "VALID", "stride_w": 1, "stride_h": 1, "fused_activation_function": activation}
    y = builder.op("CONV_2D", [spread, weights, bias], (6, 7, 4, 4), **options)
    crops = builder.const(np.int32([[0, 1], [1, 1]]))
    builder.output(builder.op("BATCH_TO_SPACE_ND", [y, block, crops], (1, 13, 10, 4)))
    check(builder, [floats(1, 13, 11, 3)])
    model = translated(builder.build())
    cleanup.unused(model)
    (conv,) = (n for n in model.graph if n.op_type == "Conv")
    assert not [n for n in model.graph if n.op_type == "Reshape"]
    assert list(conv.attributes["dilations"].as_ints()) == [2, 3]
    assert list(conv.attributes["pads"].as_ints()) == [2, 2, 2, 3]
