"""Meaningless operands and options are refused by name; sizes may be known only at run time."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from converter import convert
from converter.errors import ConvertError
from converter.frontends import tflite
from lite_runtime.errors import MsedgeError
from tests.converter.frontends.tflite.builder import Builder, Quant, Tensor
from tests.converter.frontends.tflite.support import check, floats, translated

Make = Callable[[Builder, Tensor], Tensor]


def _const(builder: Builder, *numbers: Any) -> Tensor:
    return builder.const(np.int32(numbers[0] if len(numbers) == 1 else numbers))


REFUSED: dict[str, tuple[Make, str]] = {
    "axis outside": (lambda b, x: b.op("CONCATENATION", [x, x], (2, 3, 8), axis=7), "axis from -3 to 2, got 7"),
    "reduced axis outside": (lambda b, x: b.op("SUM", [x, _const(b, 5)], (2, 3)), "axis from -3 to 2, got 5"),
    "computed permutation": (
        lambda b, x: b.op("TRANSPOSE", [x, b.input("p", (3,), "int32")], (2, 3, 4)),
        "expected constant permutation",
    ),
    "computed block": (
        lambda b, x: b.op("SPACE_TO_BATCH_ND", [x, b.input("p", (1,), "int32"), _const(b, [[0, 0]])], (2, 3, 4)),
        "expected constant block shape",
    ),
    "batch not of blocks": (
        lambda b, x: b.op("BATCH_TO_SPACE_ND", [x, _const(b, [3]), _const(b, [[0, 0]])], (1, 9, 4)),
        "multiple of the block",
    ),
    "block of zero": (
        lambda b, x: b.op("BATCH_TO_SPACE_ND", [x, _const(b, [0]), _const(b, [[0, 0]])], (1, 9, 4)),
        "block of at least 1",
    ),
    "too many slices": (
        lambda b, x: b.op("STRIDED_SLICE", [x, *(_const(b, 1, 1, 1, 1) for _ in range(3))], (1,)),
        "at most 3 slices",
    ),
    "too much mirrored": (
        lambda b, x: b.op("MIRROR_PAD", [x, _const(b, [[0, 0], [4, 0], [0, 0]])], (2, 7, 4), mode="SYMMETRIC"),
        "0 to 3 mirrored entries on axis 1",
    ),
    "huge diagonal": (
        lambda b, x: b.op("MATRIX_DIAG", [b.input("d", (2**30,))], (4, 4)),
        "size of at most",
    ),
    "images of rank 1": (
        lambda b, x: b.op("LOCAL_RESPONSE_NORMALIZATION", [b.input("v", (4,))], (4,)),
        "batch of images",
    ),
    "fake quantisation without zero": (
        lambda b, x: b.op("FAKE_QUANT", [x], (2, 3, 4), min=1.0, max=2.0, num_bits=8),
        "range around zero",
    ),
    "missing operand": (lambda b, x: b.op("ADD", [x], (2, 3, 4)), "expected an input 1"),
    "soft suppression": (
        lambda b, x: b.op(
            "NON_MAX_SUPPRESSION_V5",
            [b.input("b", (9, 4)), b.input("s", (9,)), _const(b, 3), *(b.const(np.float32(0.5)) for _ in range(3))],
            (3,),
        ),
        "soft_nms_sigma 0",
    ),
    "two axes for one": (
        lambda b, x: b.op("ARG_MAX", [x, _const(b, 0, 1)], (3, 4), "int32", output_type="INT32"),
        "one number as axis, got 2",
    ),
    "real axis": (
        lambda b, x: b.op("ARG_MAX", [x, b.const(np.float32(0.5))], (3, 4), "int32", output_type="INT32"),
        "whole numbers in .*FLOAT32",
    ),
    "longer block": (
        lambda b, x: b.op("BATCH_TO_SPACE_ND", [x, _const(b, 1, 1, 1), _const(b, [[0, 0]] * 3)], (2, 3, 4)),
        "block of at most 2 sizes, got 3",
    ),
    "three sizes": (
        lambda b, x: b.op("RESIZE_NEAREST_NEIGHBOR", [b.input("i", (1, 2, 2, 1)), _const(b, 4, 4, 4)], (1, 4, 4, 1)),
        "two sizes, got rank 4 and 3 sizes",
    ),
    "diagonal of a scalar": (lambda b, x: b.op("MATRIX_DIAG", [b.input("d", ())], ()), "at least 1 dimensions, got 0"),
    "numbers of 99 bits": (lambda b, x: b.op("FAKE_QUANT", [x], (2, 3, 4), min=-1.0, max=1.0, num_bits=99), "16 bits"),
    "sums of truths": (
        lambda b, x: b.op("UNSORTED_SEGMENT_SUM", [b.input("t", (2,), "bool"), _const(b, 0, 1), _const(b, 2)], (2,)),
        "expected numbers, got bool",
    ),
    "shapes of no length": (
        lambda b, x: b.op("BROADCAST_ARGS", [b.input("a", (), "int32"), _const(b, 1, 2)], (2,), "int32"),
        "two shapes of known lengths",
    ),
    "state that is none": (
        lambda b, x: b.op("RNN", [b.input("v", (1, 2)), *(b.const(floats(2, 2)) for _ in range(2)), b.const(floats(2)),
                                  b.input("h", (1, 2))], (1, 2)),
        "to be a variable",
    ),
    "weights of one axis": (
        lambda b, x: b.op("RNN", [b.input("v", (1, 2)), b.const(floats(4)), b.const(floats(2, 2)), b.const(floats(2)),
                                  b.variable("h", (1, 2))], (1, 2)),
        r"with 2 axes, got shape \[4\]",
    ),
    "batch beyond the axis": (
        lambda b, x: b.op("GATHER", [x, _const(b, [[0], [1]])], (2, 1, 4), axis=1, batch_dims=2),
        "batch_dims from 0 to 1",
    ),
    "negative repetitions": (lambda b, x: b.op("TILE", [x, _const(b, 1, -2, 1)], (2, 3, 4)), "sizes of at least 0"),
    "transform of no length": (
        lambda b, x: b.op("RFFT2D", [x, _const(b, -8, 8)], (2, 8, 5), "complex64"),
        "lengths of at least 1",
    ),
    "unknown subgraph": (lambda b, x: b.op("CALL", [x], (2, 3, 4), subgraph=9), "calls subgraph 9"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refusal(name: str) -> None:
    make, message = REFUSED[name]
    builder = Builder()
    builder.output(make(builder, builder.input("x", (2, 3, 4))))
    with pytest.raises(ConvertError, match=message) as caught:
        translated(builder.build())
    assert "operator 0" in str(caught.value)


@pytest.mark.parametrize("number", [-125, 77])
def test_activations_that_do_not_exist(number: int) -> None:
    b, quant = Builder(), Quant(1.0)
    x = b.input("x", (1, 4, 4, 2), "int8", quant=quant)
    options: dict[str, Any] = {"filter_height": 2, "filter_width": 2, "stride_h": 1, "stride_w": 1, "padding": "VALID"}
    options["fused_activation_function"] = number
    b.output(b.op("AVERAGE_POOL_2D", [x], (1, 3, 3, 2), "int8", quant=quant, **options))
    with pytest.raises(ConvertError, match=f"expected a fused activation of 0 to 5, got {number}"):
        convert(b.build())


def test_time_weights_of_one_axis() -> None:
    """Of an SVDF that LiteRT computes in integers."""
    b, one = Builder(), Quant(1.0)
    operands = [
        b.input("v", (1, 2), "int8", quant=one),
        b.const(np.ones((4, 2), np.int8), quant=one),
        b.const(np.ones(4, np.int16), quant=one),
        None,
        b.variable("h", (1, 4), "int16", quant=one),
    ]
    b.output(b.op("SVDF", operands, (1, 4), "int8", quant=one, rank=1, version=3))
    with pytest.raises(ConvertError, match=r"SVDF.*time weights of a known shape \[filters, memory\]"):
        convert(b.build())


def test_all_refused_operators_are_listed() -> None:
    """Each with its name; not those that may fail only because an operand could not be translated."""
    builder = Builder()
    x = builder.input("x", (2, 3, 4))
    bad = [builder.op("SUM", [x, _const(builder, axis)], (2, 3)) for axis in (5, 6)]
    follower = builder.op("SUM", [bad[0], _const(builder, 7)], (2,))
    later = builder.op("SUM", [builder.op("RELU", [follower], (2,)), _const(builder, 8)], ())
    builder.output(bad[1], later)
    with pytest.raises(ConvertError) as caught:
        tflite.load(builder.build())
    lines = str(caught.value).splitlines()
    assert lines[0] == "3 operators cannot be translated:"
    assert [line.split("got ")[-1] for line in lines[1:]] == ["5", "6", "8"]


IMAGES: dict[str, Make] = {
    "SPACE_TO_BATCH_ND": lambda b, x: b.op(
        "SPACE_TO_BATCH_ND", [x, _const(b, 2, 2), _const(b, [[0, 0], [1, 1]])], (None, 2, 3, 3)
    ),
    "BATCH_TO_SPACE_ND": lambda b, x: b.op(
        "BATCH_TO_SPACE_ND", [x, _const(b, 2, 1), _const(b, [[1, 0], [0, 0]])], (None, 7, 4, 3)
    ),
    "RESIZE_BILINEAR": lambda b, x: b.op("RESIZE_BILINEAR", [x, _const(b, 7, 5)], (None, 7, 5, 3)),
    "RESIZE_NEAREST_NEIGHBOR": lambda b, x: b.op("RESIZE_NEAREST_NEIGHBOR", [x, _const(b, 7, 5)], (None, 7, 5, 3)),
    "MEAN": lambda b, x: b.op("MEAN", [x, _const(b, [1, 2])], (None, 3), keep_dims=False),
    "PAD": lambda b, x: b.op("PAD", [x, _const(b, [[0, 0], [1, 2], [0, 1], [0, 0]])], (None, 7, 5, 3)),
    "MIRROR_PAD": lambda b, x: b.op("MIRROR_PAD", [x, _const(b, [[0, 0], [1, 2], [0, 1], [0, 0]])], (None, 7, 5, 3)),
    "DEPTH_TO_SPACE": lambda b, x: b.op("SPACE_TO_DEPTH", [x], (None, 2, 2, 12), block_size=2),
    "STRIDED_SLICE": lambda b, x: b.op(
        "STRIDED_SLICE", [x, *(_const(b, *v) for v in ((0, 1, 0, 0), (0, 3, 4, 3), (1, 1, 2, 1)))], (None, 2, 2, 3),
        begin_mask=1, end_mask=1,
    ),
    "SPLIT": lambda b, x: b.op("SLICE", [x, _const(b, 0, 1, 0, 0), _const(b, -1, 2, -1, 2)], (None, 2, 4, 2)),
    "L2_NORMALIZATION": lambda b, x: b.op("L2_NORMALIZATION", [x], (None, 4, 4, 3)),
    "SOFTMAX": lambda b, x: b.op("SOFTMAX", [x], (None, 4, 4, 3), beta=1.0),
    "GATHER": lambda b, x: b.op("GATHER", [x, _const(b, 2, 0)], (None, 4, 2, 3), axis=2),
    "ARG_MAX": lambda b, x: b.op("ARG_MAX", [x, _const(b, -1)], (None, 4, 4), "int32", output_type="INT32"),
    "RESHAPE": lambda b, x: b.op("RESHAPE", [x, _const(b, -1, 48)], (None, 48)),
}  # fmt: skip


@pytest.mark.parametrize("name", IMAGES)
def test_any_batch(name: str) -> None:
    """The same translation for every batch size."""
    builder = Builder()
    builder.output(IMAGES[name](builder, builder.input("x", (None, 4, 4, 3))))
    for batch in (2, 6):
        check(builder, [floats(batch, 4, 4, 3)])


@pytest.mark.parametrize("name", [*IMAGES, *REFUSED])
def test_damage(name: str) -> None:
    """Flipped bytes give a model or one MsedgeError, never anything else."""
    builder = Builder()
    if name in IMAGES:
        builder.output(IMAGES[name](builder, builder.input("x", (None, 4, 4, 3))))
    else:
        builder.output(REFUSED[name][0](builder, builder.input("x", (2, 3, 4))))
    data = np.frombuffer(builder.build(), np.uint8)
    rng = np.random.default_rng(sum(name.encode()))
    for _ in range(40):
        damaged = data.copy()
        damaged[rng.integers(0, data.size, 2)] = rng.choice([0, 1, 2, 127, 128, 255], 2)
        with contextlib.suppress(MsedgeError):
            tflite.load(damaged.tobytes())
