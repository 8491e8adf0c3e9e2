"""QLinearConvTranspose: native equals reference bit for bit; the reference equals exact arithmetic and onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lite_runtime import reference
from lite_runtime.errors import ShapeError
from lite_runtime.graph import Node, dtype_name
from lite_runtime.ops.registry import INFERS, Inference, Spec
from tests.lite_runtime.ops.one_node import check, onnxruntime_results
from tests.lite_runtime.ops.targets import on_other_targets, run_on

OP = "QLinearConvTranspose"
CONSTANTS = (1, 2, 3, 4, 5, 6, 7, 8)

# image (NHWC), weights (channels, columns, kernel…), window
CASES: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((1, 4, 5, 8), (8, 16, 3, 3), {"strides": (2, 2), "pads": (1, 1, 1, 1), "output_padding": (1, 1)}),
    ((2, 3, 4, 5), (5, 3, 2, 2), {"strides": (2, 2)}),
    ((1, 5, 3, 17), (17, 33, 4, 3), {"strides": (3, 1), "dilations": (1, 2), "pads": (2, 0, 1, 3)}),
    ((1, 6, 6, 3), (3, 1, 3, 2), {"dilations": (2, 3), "strides": (4, 2)}),
    ((1, 5, 5, 4), (4, 7, 3, 3), {"strides": (2, 3), "auto_pad": "SAME_UPPER"}),
    ((1, 5, 5, 4), (4, 7, 3, 3), {"strides": (2, 2), "auto_pad": "SAME_LOWER"}),
    ((1, 5, 5, 4), (4, 70, 1, 1), {"strides": (2, 2)}),
    ((1, 4, 4, 2), (2, 5, 3, 3), {"strides": (2, 2), "output_shape": (8, 9)}),
    ((3, 7, 6), (6, 10, 5), {"strides": (3,), "pads": (2, 1)}),
    ((1, 1, 1, 1), (1, 1, 1, 1), {}),
    ((0, 4, 4, 2), (2, 5, 3, 3), {}),
    ((1, 4, 5, 8), (8, 2, 3, 3), {"group": 4, "strides": (2, 2)}),
    ((2, 3, 4, 15), (15, 5, 2, 3), {"group": 3, "strides": (2, 1), "pads": (1, 0, 0, 1)}),
    ((1, 5, 4, 7), (7, 1, 4, 4), {"group": 7, "strides": (2, 2), "pads": (1, 1, 1, 1)}),
    ((1, 9, 6), (6, 3, 5), {"group": 2, "strides": (3,)}),
]

ACTIVATIONS: list[dict[str, Any]] = [
    {},
    {"activation": "Relu"},
    {"activation": "Clip", "activation_min": -0.5, "activation_max": 6.0},
]


def drawn(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    ends = np.iinfo(dtype)
    return rng.integers(ends.min, ends.max, shape, dtype, endpoint=True)


def operands(
    rng: np.random.Generator,
    x: np.ndarray,
    weights: tuple[int, ...],
    *,
    w_dtype: str = "int8",
    y_dtype: str = "",
    per_channel: bool = True,
    spread: float = 1.0,
    group: int = 1,
) -> list[np.ndarray | None]:
    """All nine, y spreads over its range `spread` times. y_dtype "float32": no y_scale and y_zero_point."""
    columns = weights[1] * group
    each = (columns,) if per_channel else ()
    w = drawn(rng, weights, w_dtype)
    w_zero = drawn(rng, each, w_dtype)
    x_scale, w_scale = np.float32(0.03), rng.uniform(0.01, 0.02, each).astype(np.float32)
    wide = x.dtype.itemsize > 1
    head: list[np.ndarray | None] = [np.array(x_scale), drawn(rng, (), str(x.dtype)), w, np.asarray(w_scale), w_zero]
    if y_dtype == "float32":
        return [x, *head, None, None, rng.normal(size=columns).astype(np.float32)]
    reach = np.iinfo(x.dtype).max * 80 * np.sqrt(weights[0] * np.prod(weights[2:]))
    y_dtype = y_dtype or str(x.dtype)
    y_scale = np.float32(x_scale * 0.015 * reach / np.iinfo(y_dtype).max / spread)
    bias = rng.integers(-9999, 9999, columns).astype(np.int64 if wide else np.int32)
    return [x, *head, np.array(y_scale), drawn(rng, (), y_dtype), bias]


@pytest.mark.parametrize("y_dtype", ["int8", "uint8", "float32"])
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize(("shape", "weights", "attrs"), CASES)
def test_windows(
    shape: tuple[int, ...], weights: tuple[int, ...], attrs: dict[str, Any], dtype: str, y_dtype: str
) -> None:
    rng = np.random.default_rng(sum(weights))
    given = operands(rng, drawn(rng, shape, dtype), weights, y_dtype=y_dtype, group=attrs.get("group", 1))
    check(OP, given, {**attrs, "layout": "NHWC"}, constants=CONSTANTS, rtol=0, atol=0)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("y_dtype", ["int8", "uint8", "float32"])
@pytest.mark.parametrize("w_dtype", ["int8", "uint8"])
@pytest.mark.parametrize("per_channel", [True, False])
def test_scales_types_and_activations(
    per_channel: bool, w_dtype: str, y_dtype: str, activation: dict[str, Any]
) -> None:
    rng = np.random.default_rng(5)
    x = drawn(rng, (1, 5, 6, 12), "uint8")
    given = operands(rng, x, (12, 19, 3, 3), w_dtype=w_dtype, y_dtype=y_dtype, per_channel=per_channel)
    attrs = {"strides": (2, 2), "layout": "NHWC", **activation}
    (got,) = check(OP, given, attrs, constants=CONSTANTS, rtol=0, atol=0)
    if activation.get("activation") == "Clip" and y_dtype == "float32":
        assert got.min() >= -0.5 and got.max() <= 6


def every_kind() -> None:
    """Every kernel over several windows."""
    for y_dtype in ("int8", "uint8", "float32"):
        for shape, weights, attrs in CASES:
            test_windows(shape, weights, attrs, "int8", y_dtype)


@on_other_targets
def test_every_target_gives_these_bits(target: str) -> None:
    run_on(target, every_kind)


@pytest.mark.parametrize("spread", [1e-6, 30.0, 1e12])
def test_results_saturate(spread: float) -> None:
    rng = np.random.default_rng(6)
    given = operands(rng, drawn(rng, (1, 5, 5, 9), "int8"), (9, 5, 3, 3), spread=spread)
    check(OP, given, {"strides": (2, 2), "layout": "NHWC"}, constants=CONSTANTS)


@pytest.mark.parametrize(
    ("shape", "weights", "attrs", "dtype"),
    [
        ((1, 1, 1, 1024), (1024, 1, 2, 3), {"group": 1024, "strides": (2, 2)}, "int8"),
        ((1, 6, 4, 4), (4, 3, 3, 3), {}, "int16"),
        ((1, 3, 4, 4, 4), (4, 3, 2, 2, 2), {"strides": (2, 2, 2)}, "uint8"),
    ],
)
def test_what_takes_the_reference(
    shape: tuple[int, ...], weights: tuple[int, ...], attrs: dict[str, Any], dtype: str
) -> None:
    rng = np.random.default_rng(1)
    x = drawn(rng, shape, dtype)
    given = operands(rng, x, weights, group=attrs.get("group", 1))
    (got,) = check(OP, given, {**attrs, "layout": "NHWC"}, constants=CONSTANTS, native=False)
    given[0] = np.ascontiguousarray(np.moveaxis(x, -1, 1))
    (other,) = check(OP, given, attrs, constants=CONSTANTS, native=False)
    np.testing.assert_array_equal(np.moveaxis(other, 1, -1), got)


def test_the_sum_is_exact() -> None:
    """One tap, one scale: every result is a sum that integers can be asked for."""
    rng = np.random.default_rng(2)
    x, w = drawn(rng, (1, 3, 3, 40), "int8"), drawn(rng, (40, 6, 1, 1), "int8")
    one, zero = np.array(1, np.float32), np.array(3, np.int8)
    attrs = {"layout": "NHWC"}
    (got,) = check(OP, [x, one, zero, w, one, zero, None, None, None], attrs, constants=(1, 2, 3, 4, 5), rtol=0, atol=0)
    want = (x.astype(np.int64) - 3) @ (w[:, :, 0, 0].astype(np.int64) - 3)
    np.testing.assert_array_equal(got, want)


def test_the_result_lies_within_a_step_of_the_float_one() -> None:
    rng = np.random.default_rng(8)
    x = drawn(rng, (1, 8, 6, 6), "uint8")
    given = operands(rng, x, (8, 5, 3, 3), y_dtype="uint8", spread=0.5)
    _, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, bias = (np.asarray(g, np.float64) for g in given)
    attrs = {"strides": (2, 2), "pads": (1, 1, 1, 1)}
    real_w = (w - w_zero.reshape(1, -1, 1, 1)) * w_scale.reshape(1, -1, 1, 1)
    reals = [(x - x_zero) * x_scale, real_w, bias * x_scale * w_scale]
    (y,) = onnxruntime_results("ConvTranspose", [r.astype(np.float32) for r in reals], attrs, 1)
    want = np.clip(np.rint(y / y_scale) + y_zero, 0, 255)
    (got,) = reference.evaluate(Node(OP, tuple("abcdefghi"), ("y",), attrs), given)
    assert np.abs(got - want).max() <= 1 and np.mean(got == want) > 0.99


def test_a_scale_for_every_image() -> None:
    rng = np.random.default_rng(9)
    x = drawn(rng, (3, 4, 4, 5), "int8")
    given = operands(rng, x, (5, 4, 2, 2), y_dtype="float32")
    scales, zeros = rng.uniform(0.1, 1, (3, 1, 1, 1)).astype(np.float32), drawn(rng, (3, 1, 1, 1), "int8")
    given[1:3] = scales, zeros
    attrs = {"layout": "NHWC"}
    (got,) = check(OP, given, attrs, constants=CONSTANTS, native=False)
    for i in range(3):
        one_scale = [np.asarray(s[i, 0, 0, 0]) for s in (scales, zeros)]
        (one,) = reference.evaluate(Node(OP, tuple("abcdefghi"), ("y",), attrs), [x[i : i + 1], *one_scale, *given[3:]])
        np.testing.assert_array_equal(got[i : i + 1], one)


@pytest.mark.parametrize(
    ("place", "value", "text"),
    [
        (8, np.zeros(2, np.int32), "bias: expected int32"),
        (8, np.zeros(6, np.int64), "bias: expected int32"),
        (4, np.zeros(5, np.float32), "w_scale: expected one element or shape"),
        (5, np.zeros(5, np.int8), "w_zero_point: expected one element or shape"),
        (7, None, "expected both y_scale and y_zero_point"),
        (3, np.zeros((3, 6, 3, 3), np.int8), "do not fit"),
    ],
)
def test_operands_that_do_not_fit(place: int, value: np.ndarray | None, text: str) -> None:
    rng = np.random.default_rng(0)
    given = operands(rng, drawn(rng, (1, 4, 4, 2), "int8"), (2, 6, 3, 3))
    given[place] = value
    specs = [None if g is None else Spec(dtype_name(g.dtype), g.shape) for g in given]
    with pytest.raises(ShapeError, match=text):
        INFERS[OP](Inference(Node(OP, tuple("abcdefghi"), ("y",), {"layout": "NHWC"}), specs, [None] * 9))
