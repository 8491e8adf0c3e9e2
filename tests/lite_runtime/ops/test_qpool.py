"""Pools and reductions of integers: native equals reference bit for bit; the reference equals exact arithmetic."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from lite_runtime.errors import ShapeError
from lite_runtime.graph import Node
from lite_runtime.ops.registry import INFERS, Inference, Spec
from tests.lite_runtime.ops.one_node import check, onnxruntime_results
from tests.lite_runtime.ops.targets import on_other_targets, run_on
from tests.lite_runtime.ops.test_pool import CASES, last

TYPES = ("int8", "uint8", "int16")


def drawn(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    ends = np.iinfo(dtype)
    return rng.integers(ends.min, ends.max, shape, dtype, endpoint=True)


def scales(rng: np.random.Generator, dtype: str, y_dtype: str = "", ratio: float = 0.0) -> list[np.ndarray]:
    """x_scale, x_zero_point, y_scale, y_zero_point; zero points anywhere, ends included."""
    y_dtype = y_dtype or dtype
    x_scale = np.float32(rng.uniform(0.001, 0.1))
    y_scale = np.float32(x_scale / (ratio or rng.uniform(0.3, 3)))
    x_zero, y_zero = (
        rng.choice([np.iinfo(d).min, np.iinfo(d).max, int(drawn(rng, (1,), d)[0])]) for d in (dtype, y_dtype)
    )
    return [np.array(x_scale), np.array(x_zero, dtype), np.array(y_scale), np.array(y_zero, y_dtype)]


CONSTANTS = (1, 2, 3, 4)
REDUCED = (
    *((op, dtype) for op in ("ReduceMax", "ReduceMin") for dtype in ("int8", "uint8")),
    *(("ReduceSum", "int32"), ("ReduceSum", "int64")),
)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("include", [0, 1])
@pytest.mark.parametrize(("shape", "attrs"), CASES)
def test_means_of_windows(shape: tuple[int, ...], attrs: dict[str, Any], include: int, dtype: str) -> None:
    rng = np.random.default_rng(len(shape) + include)
    x, others = last(drawn(rng, shape, dtype)), scales(rng, dtype)
    attrs = {**attrs, "count_include_pad": include}
    (got,) = check("QLinearAveragePool", [x, *others], {**attrs, "layout": "NHWC"}, constants=CONSTANTS)
    first = np.ascontiguousarray(np.moveaxis(x, -1, 1))
    (other,) = check("QLinearAveragePool", [first, *others], attrs, constants=CONSTANTS, native=False)
    np.testing.assert_array_equal(last(other), got)


@pytest.mark.parametrize("channels", [1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 31, 33, 63, 65, 100])
@pytest.mark.parametrize("dtype", TYPES)
def test_any_number_of_channels(dtype: str, channels: int) -> None:
    rng = np.random.default_rng(channels)
    x = drawn(rng, (2, 5, 4, channels), dtype)
    attrs = {"kernel_shape": (3, 2), "strides": (2, 1), "pads": (1, 1, 1, 0), "layout": "NHWC"}
    check("QLinearAveragePool", [x, *scales(rng, dtype)], attrs, constants=CONSTANTS)
    check("QLinearGlobalAveragePool", [x, *scales(rng, dtype)], {"layout": "NHWC"}, constants=CONSTANTS)
    if dtype != "int16":
        check("MaxPool", [x], attrs)


def every_kind() -> None:
    """Every kernel on every length of strip."""
    for dtype in TYPES:
        for channels in (1, 3, 9, 17, 70):
            test_any_number_of_channels(dtype, channels)
        test_means_over_any_axes((2, 3, 4, 5, 6), (0, 2, 4), dtype, dtype)
    test_sums_beyond_32_bits()
    for op, dtype in REDUCED:
        test_reductions((3, 301), (1,), op, dtype)
        test_reductions((2, 7, 5, 33), (1, 2), op, dtype)


@on_other_targets
def test_every_target_gives_these_bits(target: str) -> None:
    run_on(target, every_kind)


@pytest.mark.parametrize("dtype", TYPES)
def test_a_mean_over_axes_is_the_exact_one_rounded_half_to_even(dtype: str) -> None:
    """One scale, so that nothing but the mean is rounded: compared with exact fractions."""
    rng = np.random.default_rng(3)
    x = drawn(rng, (40, 4), dtype)
    zero = np.array(5, dtype)
    one = np.array(0.5, np.float32)
    (got,) = check("QLinearReduceMean", [x, one, zero, one, zero, np.array([1])], constants=(1, 2, 3, 4, 5))
    want = [round(Fraction(int(row.astype(int).sum()), 4)) for row in x]
    np.testing.assert_array_equal(got.ravel(), want)


def away(total: int, count: int) -> int:
    """total / count, halves away from zero."""
    return int(np.sign(total)) * int(Fraction(abs(total), count) + Fraction(1, 2))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("count", [1, 2, 3, 4, 6, 7, 49, 12, 100, 4096])
def test_pools_of_equal_parameters_are_exact_halves_away_from_zero(count: int, dtype: str) -> None:
    rng = np.random.default_rng(count)
    x = drawn(rng, (1, count, 70), dtype)
    x[0, :, 0], x[0, :, 1] = np.iinfo(dtype).min, np.iinfo(dtype).max
    x[0, : count // 2, 2], x[0, count // 2 :, 2] = 2, 1
    x[0, : count // 2, 3], x[0, count // 2 :, 3] = 0, np.iinfo(dtype).min
    zero, one = np.array(5, dtype), np.array(0.3, np.float32)
    given = [x, one, zero, one, zero]
    want = [away(int(column.astype(int).sum()), count) for column in x[0].T]
    for op, attrs in (("QLinearGlobalAveragePool", {}), ("QLinearAveragePool", {"kernel_shape": (count,)})):
        (got,) = check(op, given, {**attrs, "layout": "NHWC"}, constants=CONSTANTS)
        np.testing.assert_array_equal(got.ravel(), want)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("include", [0, 1])
@pytest.mark.parametrize(("shape", "attrs"), CASES)
def test_windows_of_equal_parameters(shape: tuple[int, ...], attrs: dict[str, Any], include: int, dtype: str) -> None:
    rng = np.random.default_rng(include)
    x, zero, one = last(drawn(rng, shape, dtype)), np.array(np.iinfo(dtype).max, dtype), np.array(0.3, np.float32)
    attrs = {**attrs, "count_include_pad": include, "layout": "NHWC"}
    check("QLinearAveragePool", [x, one, zero, one, zero], attrs, constants=CONSTANTS)


@pytest.mark.parametrize("y_dtype", TYPES)
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(
    ("shape", "axes"),
    [
        ((2, 7, 5, 33), (1, 2)),
        ((2, 7, 5, 33), (2, 3)),
        ((3, 300), (1,)),
        ((300, 3), (0,)),
        ((2, 3, 4, 5, 6), (0, 2, 4)),
        ((2, 3, 4, 5, 6), (1, 3)),
        ((1, 1, 1), (0, 1)),
        ((3, 4), ()),
        ((3, 129), (-1,)),
        ((0, 4), (1,)),
    ],
)
def test_means_over_any_axes(shape: tuple[int, ...], axes: tuple[int, ...], dtype: str, y_dtype: str) -> None:
    rng = np.random.default_rng(sum(shape))
    given = [drawn(rng, shape, dtype), *scales(rng, dtype, y_dtype), np.array(axes, np.int64)]
    for keep in (0, 1):
        attrs = {"keepdims": keep, "noop_with_empty_axes": 1}
        check("QLinearReduceMean", given, attrs, constants=(1, 2, 3, 4, 5))


def test_all_axes_where_none_are_named() -> None:
    rng = np.random.default_rng(0)
    (got,) = check("QLinearReduceMean", [drawn(rng, (3, 5), "int8"), *scales(rng, "int8")], constants=CONSTANTS)
    assert got.shape == (1, 1)


@pytest.mark.parametrize("ratio", [1e-30, 1e30, 300.0, 1.0])
@pytest.mark.parametrize("dtype", TYPES)
def test_results_saturate(dtype: str, ratio: float) -> None:
    rng = np.random.default_rng(1)
    x, others = drawn(rng, (1, 6, 6, 19), dtype), scales(rng, dtype, ratio=ratio)
    check("QLinearAveragePool", [x, *others], {"kernel_shape": (2, 2), "layout": "NHWC"}, constants=CONSTANTS)
    check("QLinearReduceMean", [x, *others], {}, constants=CONSTANTS)


def test_windows_that_count_nothing_and_empty_axes_give_the_least_value() -> None:
    others: list[np.ndarray] = [
        np.array(0.1, np.float32),
        np.array(0, np.int8),
        np.array(0.1, np.float32),
        np.array(3, np.int8),
    ]
    x = np.ones((1, 3, 3, 2), np.int8)
    attrs = {"kernel_shape": (1, 1), "pads": (1, 1, 1, 1), "layout": "NHWC"}
    (got,) = check("QLinearAveragePool", [x, *others], attrs, constants=CONSTANTS)
    assert got[0, 0, 0, 0] == -128 and got[0, 1, 1, 0] == 4
    others[1] = others[3]  # parameters alike: an exact quotient of nothing
    (got,) = check("QLinearAveragePool", [x, *others], attrs, constants=CONSTANTS)
    assert got[0, 0, 0, 0] == -128 and got[0, 1, 1, 0] == 1
    (got,) = check("QLinearReduceMean", [x[:, :0], *others, np.array([1])], {"keepdims": 0}, constants=(1, 2, 3, 4, 5))
    assert (got == -128).all()


def test_sums_beyond_32_bits() -> None:
    x = np.full((1, 40000, 9), 32767, np.int16)
    x[0, :7] = -32768
    others: list[np.ndarray] = [
        np.array(0.1, np.float32),
        np.array(-32768, np.int16),
        np.array(0.2, np.float32),
        np.array(9, np.int16),
    ]
    check("QLinearGlobalAveragePool", [x, *others], {"layout": "NHWC"}, constants=CONSTANTS)
    check("QLinearReduceMean", [x.reshape(9, 40000), *others, np.array([1])], constants=(1, 2, 3, 4, 5))
    attrs = {"kernel_shape": (40000,), "layout": "NHWC"}
    check("QLinearAveragePool", [x, *others], attrs, constants=CONSTANTS)


def test_the_mean_lies_within_a_step_of_the_float_one() -> None:
    """Dequantise, AveragePool, QuantizeLinear in onnxruntime: the same but for the order of roundings."""
    rng = np.random.default_rng(7)
    x = drawn(rng, (2, 6, 9, 9), "uint8")
    x_scale, x_zero, y_scale, y_zero = scales(rng, "uint8", ratio=0.9)
    attrs = {"kernel_shape": (3, 3), "strides": (2, 2), "pads": (1, 1, 1, 1)}
    real = ((x.astype(np.int32) - x_zero) * x_scale).astype(np.float32)
    (mean,) = onnxruntime_results("AveragePool", [real], attrs, 1)
    want = np.clip(np.rint(mean / y_scale) + y_zero, 0, 255)
    (got,) = check(
        "QLinearAveragePool", [x, x_scale, x_zero, y_scale, y_zero], attrs, constants=CONSTANTS, native=False
    )
    assert np.abs(got - want).max() <= 1 and np.mean(got == want) > 0.99


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize(("shape", "attrs"), CASES)
def test_maxima_of_windows(shape: tuple[int, ...], attrs: dict[str, Any], dtype: str) -> None:
    x = drawn(np.random.default_rng(len(shape)), shape, dtype)
    (got,) = check("MaxPool", [last(x)], {**attrs, "layout": "NHWC"})
    (other,) = check("MaxPool", [x], attrs, native=False)
    np.testing.assert_array_equal(last(other), got)


@pytest.mark.parametrize(
    ("op", "dtype"),
    REDUCED,
)
@pytest.mark.parametrize(
    ("shape", "axes"),
    [((2, 7, 5, 33), (1, 2)), ((3, 301), (1,)), ((301, 3), (0,)), ((2, 3, 4, 5, 6), (0, 2, 4)), ((2, 3), ())],
)
def test_reductions(shape: tuple[int, ...], axes: tuple[int, ...], op: str, dtype: str) -> None:
    x = drawn(np.random.default_rng(sum(shape)), shape, dtype)
    for keep in (0, 1):
        attrs = {"keepdims": keep, "noop_with_empty_axes": 1}
        check(op, [x, np.array(axes, np.int64)], attrs, constants=(1,))


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_maxima_of_planes(dtype: str, layout: str) -> None:
    x = drawn(np.random.default_rng(0), (2, 7, 5, 33), dtype)
    check("GlobalMaxPool", [x], {"layout": layout})
    check(
        "QLinearGlobalAveragePool",
        [x, *scales(np.random.default_rng(1), dtype)],
        {"layout": layout},
        constants=CONSTANTS,
    )


@pytest.mark.parametrize(
    ("op", "specs", "attrs", "text"),
    [
        ("QLinearReduceMean", {0: Spec("float32", (2, 3))}, {}, "of dtype int16, int8, uint8, got float32"),
        ("QLinearReduceMean", {2: Spec("uint8", ())}, {}, "expected x_zero_point of dtype int8, got uint8"),
        ("QLinearReduceMean", {1: Spec("float32", (2,))}, {}, "expected one x_scale"),
        ("QLinearReduceMean", {4: Spec("int8", (2,))}, {}, "expected one y_zero_point"),
        ("QLinearReduceMean", {4: Spec("int32", ())}, {}, "expected y_zero_point of dtype"),
        ("QLinearAveragePool", {}, {}, "expected batch, channels and at least one spatial axis"),
        ("QLinearAveragePool", {0: Spec("int8", (1, 2, 3))}, {}, "expected attribute kernel_shape"),
        ("QLinearGlobalAveragePool", {0: Spec("int8", (2,))}, {}, "expected batch and channels"),
    ],
)  # fmt: skip
def test_operands_that_do_not_fit(op: str, specs: dict[int, Spec], attrs: dict[str, Any], text: str) -> None:
    scale, zero = Spec("float32", ()), Spec("int8", ())
    given = [specs.get(i, spec) for i, spec in enumerate([Spec("int8", (2, 3)), scale, zero, scale, zero])]
    with pytest.raises(ShapeError, match=text.replace("(", r"\(")):
        INFERS[op](Inference(Node(op, tuple("abcde"), ("y",), attrs), given, [None] * 5))
