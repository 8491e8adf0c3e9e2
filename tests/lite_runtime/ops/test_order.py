"""ArgMax, ArgMin and TopK: ties, NaN, every axis."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lite_runtime.errors import ShapeError
from lite_runtime.graph import Node
from lite_runtime.ops.registry import INFERS, Inference, Spec
from tests.lite_runtime.ops.one_node import check, onnxruntime_results

SHAPES = [
    ((7,), 0),
    ((3, 5), 1),
    ((3, 5), 0),
    ((4, 129), -1),
    ((2, 3, 37), 1),
    ((300, 17), 0),
    ((1, 1), 0),
    ((0, 3), 1),
]


def ties(shape: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(len(shape)).integers(-4, 4, shape).astype(np.float32)


_INTEGERS = ["int8", "uint8", "int16", "int32"]


def crowded(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Integers among which the least and the greatest come up often."""
    ends = np.iinfo(dtype)
    return np.random.default_rng(len(shape)).choice(np.array([ends.min, ends.max, 0, 1, 5], dtype), shape)


@pytest.mark.parametrize("dtype", _INTEGERS)
@pytest.mark.parametrize("last", [0, 1])
@pytest.mark.parametrize(("shape", "axis"), [*SHAPES, ((2, 5, 3, 67), 1), ((3, 40, 5), 1)])
@pytest.mark.parametrize("op", ["ArgMax", "ArgMin"])
def test_places_among_integers(op: str, shape: tuple[int, ...], axis: int, last: int, dtype: str) -> None:
    check(op, [crowded(shape, dtype)], {"axis": axis, "select_last_index": last})


@pytest.mark.parametrize("dtype", _INTEGERS)
@pytest.mark.parametrize("largest", [0, 1])
@pytest.mark.parametrize(("shape", "axis"), [((7,), 0), ((3, 40), 1), ((3, 40), 0), ((4, 129), -1), ((2, 37, 3), 1)])
def test_the_largest_integers(shape: tuple[int, ...], axis: int, largest: int, dtype: str) -> None:
    for k in (0, 1, 3):
        attrs = {"axis": axis, "largest": largest}
        check("TopK", [crowded(shape, dtype), np.array([k])], attrs, outputs=2, constants=[1])


@pytest.mark.parametrize("last", [0, 1])
@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize(("shape", "axis"), SHAPES)
@pytest.mark.parametrize("op", ["ArgMax", "ArgMin"])
def test_places(op: str, shape: tuple[int, ...], axis: int, keepdims: int, last: int) -> None:
    attrs = {"axis": axis, "keepdims": keepdims, "select_last_index": last}
    (got,) = check(op, [ties(shape)], attrs)
    if got.size:
        np.testing.assert_array_equal(got, onnxruntime_results(op, [ties(shape)], attrs, 1)[0])


@pytest.mark.parametrize("last", [0, 1])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("op", ["ArgMax", "ArgMin"])
def test_nan_and_infinity(op: str, axis: int, last: int) -> None:
    x = np.random.default_rng(0).normal(size=(40, 40)).astype(np.float32)
    x[3, 3], x[30, 3], x[7, 20], x[9, 9], x[11], x[:, 12] = np.nan, np.nan, np.nan, np.inf, -np.inf, np.inf
    check(op, [x], {"axis": axis, "select_last_index": last})


@pytest.mark.parametrize("largest", [0, 1])
@pytest.mark.parametrize("k", [0, 1, 3, 5])
@pytest.mark.parametrize(
    ("shape", "axis"), [((5,), 0), ((3, 5), 1), ((6, 5), 0), ((2, 129), -1), ((2, 9, 37), 1), ((200, 17), 0)]
)
def test_top_k(shape: tuple[int, ...], axis: int, k: int, largest: int) -> None:
    x, amount = ties(shape), np.array([k], np.int64)
    attrs = {"axis": axis, "largest": largest}
    got = check("TopK", [x, amount], attrs, outputs=2, constants=[1])
    if k:
        for ours, theirs in zip(got, onnxruntime_results("TopK", [x, amount], attrs, 2), strict=True):
            np.testing.assert_array_equal(ours, theirs)


def test_all_of_a_long_row_in_order() -> None:
    x = np.random.default_rng(0).normal(size=(2, 1000)).astype(np.float32)
    values, places = check("TopK", [x, np.array([1000])], {}, outputs=2, constants=[1])
    np.testing.assert_array_equal(values, -np.sort(-x, axis=1))
    np.testing.assert_array_equal(np.take_along_axis(x, places, 1), values)


@pytest.mark.parametrize("outputs", [1, 2])
def test_unsorted_and_other_types(outputs: int) -> None:
    check("TopK", [ties((3, 9)), np.array([4])], {"sorted": 0}, outputs=2, constants=[1])
    check("TopK", [ties((3, 9)).astype(np.int64), np.array([4])], {}, outputs=2, constants=[1], native=False)


def infer(op: str, shape: tuple[int, ...], k: int | None = None, **attrs: Any) -> tuple[Spec, ...]:
    value = None if k is None else np.array([k])
    specs = [Spec("float32", shape), Spec("int64", (1,))][: 1 + (k is not None)]
    return tuple(INFERS[op](Inference(Node(op, ("x", "k"), ("y",), attrs), specs, [None, value])))


@pytest.mark.parametrize(
    ("k", "attrs"), [(-1, {}), (6, {}), (1, {"axis": 2}), (1, {"axis": 0.5}), (1, {"sorted": "no"})]
)
def test_hostile_top_k_is_refused(k: int, attrs: dict[str, Any]) -> None:
    with pytest.raises(ShapeError):
        infer("TopK", (3, 5), k, **attrs)


@pytest.mark.parametrize(
    ("shape", "attrs"), [((), {}), ((0, 3), {}), ((2,), {"axis": 1}), ((2,), {"select_last_index": 2})]
)
def test_hostile_arg_max_is_refused(shape: tuple[int, ...], attrs: dict[str, Any]) -> None:
    with pytest.raises(ShapeError):
        infer("ArgMax", shape, **attrs)
