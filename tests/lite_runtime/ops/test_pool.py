"""Pools against their references: layouts, ranks, paddings, strides, dilations, rounding."""

from __future__ import annotations

import numpy as np
import pytest

from lite_runtime.errors import ShapeError
from lite_runtime.graph import Node
from lite_runtime.ops.registry import INFERS, Inference, Spec
from tests.lite_runtime.ops.one_node import check

CASES = [
    ((1, 3, 8, 9), {"kernel_shape": (2, 2), "strides": (2, 2)}),
    ((2, 17, 7, 5), {"kernel_shape": (3, 3), "strides": (2, 2), "pads": (1, 1, 1, 1)}),
    ((2, 33, 7, 6), {"kernel_shape": (3, 2), "strides": (1, 2), "pads": (0, 1, 2, 0)}),
    ((1, 16, 9, 9), {"kernel_shape": (3, 3), "strides": (2, 2), "ceil_mode": 1}),
    ((1, 5, 10, 11), {"kernel_shape": (3, 3), "strides": (3, 2), "ceil_mode": 1, "pads": (1, 0, 1, 1)}),
    ((1, 4, 12, 12), {"kernel_shape": (3, 3), "dilations": (2, 3), "pads": (2, 3, 2, 3)}),
    ((1, 4, 7, 8), {"kernel_shape": (3, 4), "strides": (2, 3), "auto_pad": "SAME_UPPER"}),
    ((1, 4, 7, 8), {"kernel_shape": (3, 4), "strides": (2, 3), "auto_pad": "SAME_LOWER"}),
    ((1, 4, 7, 8), {"kernel_shape": (3, 4), "strides": (2, 3), "auto_pad": "VALID"}),
    ((3, 19, 23), {"kernel_shape": (4,), "strides": (3,), "pads": (1, 2)}),
    ((1, 35, 5, 6, 7), {"kernel_shape": (2, 3, 2), "strides": (2, 1, 2), "pads": (1, 0, 1, 0, 1, 1)}),
    ((1, 2, 1, 1), {"kernel_shape": (1, 1)}),
    ((0, 2, 3, 3), {"kernel_shape": (2, 2)}),
]


def last(x: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(np.moveaxis(x, 1, -1))


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize(("shape", "attrs"), CASES)
@pytest.mark.parametrize("op", ["MaxPool", "AveragePool", "AveragePool with padding"])
def test_windows(op: str, shape: tuple[int, ...], attrs: dict[str, object], layout: str) -> None:
    x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    op, _, counted = op.partition(" ")
    include = {"count_include_pad": 1} if counted else {}
    x = last(x) if layout == "NHWC" else x
    (got,) = check(op, [x], {**attrs, **include, "layout": layout})
    if layout == "NHWC":
        (first,) = check(op, [np.moveaxis(x, -1, 1).copy()], {**attrs, **include})
        np.testing.assert_allclose(last(first), got, rtol=1e-6, atol=1e-6)


def test_places_of_maxima_take_the_reference() -> None:
    x = np.random.default_rng(0).normal(size=(1, 2, 6, 6)).astype(np.float32)
    check("MaxPool", [x], {"kernel_shape": (2, 2)}, outputs=2, native=False)


def test_infinities_and_nan() -> None:
    x = np.full((1, 1, 4, 4), -np.inf, np.float32)
    check("MaxPool", [x], {"kernel_shape": (2, 2)})
    x[0, 0, 1, 1], x[0, 0, 3, 3] = np.nan, np.inf
    for layout, given in (("NCHW", x), ("NHWC", last(x))):
        from tests.lite_runtime.ops.one_node import graph_of, run

        graph, fed, _ = graph_of("MaxPool", [given], {"kernel_shape": (2, 2), "layout": layout}, 1, ())
        got = run(graph, fed)[0].ravel()
        assert np.isnan(got[[0, 1, 3, 4]]).all() and got[8] == np.inf and got[2] == -np.inf


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("op", ["GlobalAveragePool", "GlobalMaxPool"])
@pytest.mark.parametrize("shape", [(2, 33, 7, 5), (1, 3, 11), (1, 2, 3, 4, 5)])
def test_planes(op: str, shape: tuple[int, ...], layout: str) -> None:
    x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    check(op, [last(x) if layout == "NHWC" else x], {"layout": layout})


@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("shape", [(2, 33, 7, 5), (1, 3, 11), (1, 2, 3, 4, 5), (3, 2, 0, 1)])
def test_norms_of_planes(shape: tuple[int, ...], p: int) -> None:
    check("GlobalLpPool", [np.random.default_rng(0).normal(size=shape).astype(np.float32)], {"p": p})


def infer(op: str, shape: tuple[int, ...], **attrs: object) -> tuple[Spec, ...]:
    spec = Spec("float32", shape)
    return tuple(INFERS[op](Inference(Node(op, ("x",), ("y",), attrs), [spec], [None])))


@pytest.mark.parametrize(
    "attrs",
    [
        {},
        {"kernel_shape": (2,)},
        {"kernel_shape": (0, 2)},
        {"kernel_shape": (2, 2.0)},
        {"kernel_shape": (9, 9)},
        {"kernel_shape": (2, 2), "strides": (0, 1)},
        {"kernel_shape": (2, 2), "pads": (-1, 0, 0, 0)},
        {"kernel_shape": (2, 2), "pads": (1, 0)},
        {"kernel_shape": (2, 2), "auto_pad": "SAME"},
        {"kernel_shape": (2, 2), "layout": "CHWN"},
        {"kernel_shape": (2, 2), "dilations": (0, 1)},
    ],
)
@pytest.mark.parametrize("op", ["MaxPool", "AveragePool", "LpPool"])
def test_hostile_attributes_are_refused(op: str, attrs: dict[str, object]) -> None:
    with pytest.raises(ShapeError):
        infer(op, (1, 2, 5, 5), **attrs)


def test_a_window_of_enormous_size_ends_quickly() -> None:
    x = np.ones((1, 1, 3, 3), np.float32)
    attrs = {"kernel_shape": (1 << 20, 1), "pads": (1 << 20, 0, 1 << 20, 0), "strides": (1 << 19, 1)}
    from tests.lite_runtime.ops.one_node import run_shape

    assert run_shape("MaxPool", x, attrs, (1, 1, 3, 3)).shape == (1, 1, 3, 3)
