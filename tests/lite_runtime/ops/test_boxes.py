"""Non-maximum suppression of padded size: many boxes, ties, boxes without area, numbers that are none."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from lite_runtime import reference
from lite_runtime.errors import ShapeError
from lite_runtime.graph import Node
from lite_runtime.ops.registry import INFERS, Inference, Spec
from tests.lite_runtime.ops.one_node import check, onnxruntime_results

OP = "NonMaxSuppressionPadded"


def crowd(batches: int, classes: int, n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Boxes that overlap much, with corners in any order; scores of which many are equal."""
    rng = np.random.default_rng(seed)
    centres, sizes = rng.uniform(0, 4, (batches, n, 2)), rng.uniform(-1.5, 1.5, (batches, n, 2))
    boxes = np.concatenate([centres - sizes, centres + sizes], -1).astype(np.float32)
    return boxes, (rng.integers(0, 40, (batches, classes, n)) / 40).astype(np.float32)


def exactly(inputs: list[np.ndarray | None], attrs: Mapping[str, int] | None = None) -> list[np.ndarray]:
    return check(OP, inputs, attrs, outputs=2, constants=[2], rtol=0, atol=0)


def number(value: float) -> np.ndarray:
    return np.array([value], np.float32)


@pytest.mark.parametrize("centred", [0, 1])
@pytest.mark.parametrize(("batches", "classes", "n"), [(1, 1, 1), (1, 1, 65), (2, 3, 40), (1, 90, 33), (3, 1, 257)])
def test_what_is_kept(batches: int, classes: int, n: int, centred: int) -> None:
    boxes, scores = crowd(batches, classes, n)
    if centred:
        boxes[..., 2:] = np.abs(boxes[..., 2:])
    inputs = [boxes, scores, np.array([7]), number(0.3), number(0.2)]
    rows, count = exactly(inputs, {"center_point_box": centred})
    (wanted,) = reference.evaluate(Node("NonMaxSuppression", (), ("y",), {"center_point_box": centred}, "it"), inputs)
    np.testing.assert_array_equal(rows[: count[0]], wanted)
    assert not rows[count[0] :].any()


@pytest.mark.parametrize("most", [-1, 0, 1, 1000])
@pytest.mark.parametrize("given", [(), (0.5,), (None, 0.5), (0.0, -1.0), (1.0, 2.0)])
def test_limits(most: int, given: tuple[float | None, ...]) -> None:
    limits = [None if v is None else number(v) for v in given]
    exactly([*crowd(1, 2, 31), np.array([most]), *limits])


@pytest.mark.parametrize("shape", [(0, 2, 3), (1, 0, 3), (1, 2, 0)])
def test_nothing_to_keep(shape: tuple[int, int, int]) -> None:
    exactly([*crowd(*shape), np.array([3]), number(0.5)])


def test_numbers_that_are_none() -> None:
    boxes, scores = crowd(1, 2, 60, seed=3)
    rng = np.random.default_rng(4)
    for values in (boxes, scores):
        places = rng.choice(values.size, values.size // 5, replace=False)
        values.ravel()[places] = rng.choice(np.array([np.nan, np.inf, -np.inf, 0.0, -0.0], np.float32), len(places))
    with np.errstate(invalid="ignore", over="ignore"):
        for centred in (0, 1):
            exactly([boxes, scores, np.array([60]), number(0.4), number(-1)], {"center_point_box": centred})


def test_onnxruntime_keeps_the_same() -> None:
    boxes, _ = crowd(2, 3, 200, seed=9)
    scores = np.random.default_rng(1).permuted(np.arange(1200, dtype=np.float32)).reshape(2, 3, 200)  # no ties
    inputs = [boxes, scores, np.array([20]), number(0.25), number(100)]
    rows, count = exactly(inputs)
    (theirs,) = onnxruntime_results("NonMaxSuppression", inputs, {}, outputs=1)
    np.testing.assert_array_equal(rows[: count[0]], theirs)


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (((1, 5, 3), (1, 2, 5)), "boxes of shape"),
        (((1, 5, 4), (1, 2, 6)), "scores of shape"),
        (((1, 5, 4), (2, 2, 5)), "scores of shape"),
    ],
)
def test_shapes_that_do_not_fit(shapes: tuple[tuple[int, ...], tuple[int, ...]], message: str) -> None:
    specs = [Spec("float32", shapes[0]), Spec("float32", shapes[1]), Spec("int64", ())]
    node = Node(OP, ("a", "b", "c"), ("x", "y"), {}, "it")
    with pytest.raises(ShapeError, match=message):
        INFERS[OP](Inference(node, specs, [None, None, np.array(3)]))
