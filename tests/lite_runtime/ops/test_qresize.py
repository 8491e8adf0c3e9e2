"""QLinearResize: native equals reference bit for bit; the reference equals exact fractions and is near onnxruntime."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import floor
from typing import Any

import numpy as np
import pytest

from lite_runtime import reference
from lite_runtime.errors import ShapeError, UnsupportedOpError
from lite_runtime.graph import Node
from lite_runtime.ops.registry import INFERS, Inference, Spec
from tests.lite_runtime.ops.one_node import check, graph_of, onnxruntime_results, run
from tests.lite_runtime.ops.targets import on_other_targets, run_on

OP = "QLinearResize"
TYPES = ("int8", "uint8", "int16")
MODES = ("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric")


def drawn(shape: tuple[int, ...], dtype: str, seed: int = 0) -> np.ndarray:
    ends = np.iinfo(dtype)
    return np.random.default_rng(seed).integers(ends.min, ends.max, shape, dtype, endpoint=True)


def to_sizes(x: np.ndarray, *sizes: int) -> list[np.ndarray | None]:
    return [x, None, None, np.array(sizes, np.int64)]


def resized(x: np.ndarray, sizes: tuple[int, ...], native: bool = True, **attrs: Any) -> np.ndarray:
    (got,) = check(OP, to_sizes(x, *sizes), {"mode": "linear", **attrs}, constants=(3,), native=native)
    return got


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("sizes", [(14, 10), (3, 4), (1, 1), (20, 5), (7, 13), (33, 2)])
@pytest.mark.parametrize("channels", [1, 3, 17, 40])
def test_images(channels: int, sizes: tuple[int, int], mode: str, dtype: str) -> None:
    x = drawn((2, 7, 5, channels), dtype)
    native = resized(x, (2, *sizes, channels), coordinate_transformation_mode=mode)
    first = np.ascontiguousarray(np.moveaxis(x, -1, 1))
    other = resized(first, (2, channels, *sizes), coordinate_transformation_mode=mode)
    np.testing.assert_array_equal(np.moveaxis(other, 1, -1), native)
    named = resized(x, sizes, axes=(1, 2), coordinate_transformation_mode=mode)
    np.testing.assert_array_equal(named, native)


@pytest.mark.parametrize("channels", [1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 65, 129])
@pytest.mark.parametrize("dtype", TYPES)
def test_any_number_of_channels(dtype: str, channels: int) -> None:
    resized(drawn((1, 3, 4, channels), dtype), (1, 5, 7, channels))


@pytest.mark.parametrize(
    ("shape", "sizes"),
    [
        ((9,), (14,)),
        ((5, 4), (5, 9)),
        ((2, 3, 4, 5), (5, 3, 4, 9)),
        ((3, 6, 4), (3, 9, 4)),
        ((0, 3, 3, 2), (0, 6, 6, 2)),
    ],
)
def test_other_axes(shape: tuple[int, ...], sizes: tuple[int, ...]) -> None:
    resized(drawn(shape, "uint8"), sizes)


def test_three_axes_take_the_reference() -> None:
    resized(drawn((1, 3, 4, 5, 2), "int8"), (1, 5, 6, 7, 2), native=False)


def test_nothing_to_resize_is_a_view() -> None:
    x = drawn((1, 3, 4, 5), "int8")
    graph, fed, (want,) = graph_of(OP, to_sizes(x, *x.shape), {"mode": "linear"}, 1, (3,))
    np.testing.assert_array_equal(want, x)
    np.testing.assert_array_equal(run(graph, fed)[0], x)


@pytest.mark.parametrize("scales", [(1.0, 2.0, 2.0, 1.0), (1.0, 0.6, 1.7, 1.0)])
@pytest.mark.parametrize("dtype", TYPES)
def test_scales(dtype: str, scales: tuple[float, ...]) -> None:
    x = drawn((1, 8, 6, 9), dtype)
    (got,) = check(OP, [x, None, np.array(scales, np.float32)], {"mode": "linear"}, constants=(2,))
    (want,) = onnxruntime_results(
        "Resize", [x.astype(np.float32), None, np.array(scales, np.float32)], {"mode": "linear"}, 1
    )
    assert np.abs(got - want).max() <= (16 if dtype == "int16" else 0.56)


@pytest.mark.parametrize("dtype", TYPES)
def test_halves_are_rounded_up(dtype: str) -> None:
    """Weights of quarters are exact in 11 bits: the result is the exact blend rounded."""
    x = drawn((6, 7), dtype)
    got = resized(x, (12, 14))
    places = [[Fraction(2 * i + 1, 4) - Fraction(1, 2) for i in range(2 * n)] for n in x.shape]

    def blend(line: Sequence[Any], at: Fraction) -> Fraction:
        at = min(max(at, Fraction(0)), Fraction(len(line) - 1))
        low = int(at)
        return line[low] * (1 - at + low) + line[min(low + 1, len(line) - 1)] * (at - low)

    rows = [[blend([int(v) for v in row], at) for at in places[1]] for row in x]
    columns = list(zip(*rows, strict=True))
    want = [[floor(blend(column, at) + Fraction(1, 2)) for column in columns] for at in places[0]]
    np.testing.assert_array_equal(got, want)


def every_kind() -> None:
    """Every kernel on every length of strip."""
    for dtype in TYPES:
        for channels in (1, 3, 9, 17, 70):
            resized(drawn((2, 5, 3, channels), dtype), (2, 7, 8, channels))


@on_other_targets
def test_every_target_gives_these_bits(target: str) -> None:
    run_on(target, every_kind)


def test_extremes_stay() -> None:
    for dtype in TYPES:
        for value in (np.iinfo(dtype).min, np.iinfo(dtype).max):
            x = np.full((1, 5, 3, 4), value, dtype)
            assert (resized(x, (1, 9, 8, 4)) == value).all()


def test_sizes_that_a_run_computes() -> None:
    x = drawn((1, 3, 4, 5), "int8")
    (got,) = reference.evaluate(Node(OP, ("x", "", "", "s"), ("y",), {"mode": "linear"}), to_sizes(x, 1, 6, 8, 5))
    check(OP, to_sizes(x, 1, 6, 8, 5), {"mode": "linear"}, native=False)
    np.testing.assert_array_equal(got, resized(x, (1, 6, 8, 5)))


@pytest.mark.parametrize(
    ("dtype", "attrs", "text"),
    [
        ("float32", {"mode": "linear"}, "expected input 0 to be one of int8, uint8, int16"),
        ("int8", {}, "expected mode to be one of linear, got 'nearest'"),
        ("int8", {"mode": "cubic"}, "expected mode to be one of linear"),
        ("int8", {"mode": "linear", "antialias": 1}, "expected antialias 0, got 1"),
        ("int8", {"mode": "linear", "exclude_outside": 1}, "expected exclude_outside 0"),
        ("int8", {"mode": "linear", "coordinate_transformation_mode": "tf_crop_and_resize"}, "got 'tf_crop"),
    ],
)  # fmt: skip
def test_what_is_refused(dtype: str, attrs: dict[str, Any], text: str) -> None:
    node = Node(OP, ("x", "", "", "s"), ("y",), attrs)
    given = to_sizes(np.zeros((1, 3, 4, 5), dtype), 1, 6, 8, 5)
    specs = [None if g is None else Spec(str(g.dtype), g.shape) for g in given]
    with pytest.raises(ShapeError, match=text):
        INFERS[OP](Inference(node, specs, given))
    if dtype == "int8":
        with pytest.raises(UnsupportedOpError, match="expected mode linear without antialias"):
            reference.evaluate(node, given)
