"""Softmax and the normalisations against their references and onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lite_runtime.errors import ShapeError
from lite_runtime.graph import Node
from lite_runtime.ops.registry import INFERS, Inference, Spec
from tests.lite_runtime.ops.one_node import check, onnxruntime_results

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

SHAPES = [((7,), 0), ((3, 5), 1), ((3, 5), 0), ((9, 2), 1), ((33, 4), -1), ((5, 8), 1), ((35, 16), 1), ((4, 17), 1)]
SHAPES += [((4, 129), -1), ((2, 3, 37), 1), ((2, 300, 17), 1), ((2, 4420, 2), 2), ((1, 1), 0), ((3, 1), 1), ((0, 3), 1)]
SHAPES += [((2, 2000), 1)]


def normal(*shape: int, scale: float = 1.0) -> np.ndarray:
    return np.random.default_rng(len(shape)).normal(0, scale, shape).astype(np.float32)


@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax"])
@pytest.mark.parametrize(("shape", "axis"), SHAPES)
def test_softmax(op: str, shape: tuple[int, ...], axis: int) -> None:
    # A logarithm near 0 is what is left of a maximum and its sum: only its absolute error means something.
    (got,) = check(op, [normal(*shape, scale=4)], {"axis": axis}, rtol=3e-6, atol=2e-6 if op == "LogSoftmax" else 1e-7)
    if got.size:
        theirs = onnxruntime_results(op, [normal(*shape, scale=4)], {"axis": axis}, 1)[0]
        np.testing.assert_allclose(got, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax"])
@pytest.mark.parametrize("n", [2, 3, 4, 8, 16, 21, 64])
@pytest.mark.parametrize("axis", [0, 1])
def test_softmax_of_extremes(op: str, n: int, axis: int) -> None:
    """Large values do not overflow; -inf gets 0; NaN and +inf affect only their own slice."""
    x = normal(40, n, scale=300)
    x[1], x[2, 0], x[3, 1], x[4, n - 1], x[5] = 3e38, -np.inf, np.nan, np.inf, -np.inf
    check(op, [x if axis else x.T.copy()], {"axis": axis}, rtol=1e-5)


def test_softmax_with_subnormal_results() -> None:
    x = np.array([[0.0, -87.0, -90.0, -100.0, -103.0, -104.5, -200.0] + [-300.0] * 20], np.float32)
    check("Softmax", [x], {}, rtol=1e-5, atol=0)


@pytest.mark.parametrize("axis", [-1, 1, 0])
@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("shape", [(3, 5, 7), (2, 4, 64), (2, 3, 100), (1, 1, 1)])
def test_layer_normalization(shape: tuple[int, ...], axis: int, outputs: int) -> None:
    tail = shape[axis:]
    x, scale, bias = normal(*shape, scale=3) + 5, normal(*tail), normal(*tail)
    check(
        "LayerNormalization", [x, scale, bias], {"axis": axis, "epsilon": 1e-4}, outputs=outputs, rtol=1e-4, atol=1e-5
    )
    check("LayerNormalization", [x, scale], {"axis": axis}, outputs=outputs, rtol=1e-4, atol=1e-5)
    theirs = onnxruntime_results("LayerNormalization", [x, scale, bias], {"axis": axis}, 1)[0]
    (got, *_) = check("LayerNormalization", [x, scale, bias], {"axis": axis}, constants=[1, 2], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(got, theirs, rtol=1e-4, atol=1e-4)


def test_scales_that_broadcast() -> None:
    x = normal(3, 4, 5)
    check("LayerNormalization", [x, normal(5)], {"axis": 1}, constants=[1], rtol=1e-4)
    check("LayerNormalization", [x, normal(1)], {"axis": 1}, constants=[1], rtol=1e-4)
    check("LayerNormalization", [x, normal(5)], {"axis": 1}, native=False)
    check("LayerNormalization", [x, normal(4, 1)], {}, constants=[1], native=False)


@pytest.mark.parametrize("shape", [(3, 5), (2, 3, 64), (4, 1000)])
@pytest.mark.parametrize("axis", [-1, 1])
def test_rms_normalization(shape: tuple[int, ...], axis: int) -> None:
    check("RMSNormalization", [normal(*shape), normal(*shape[axis:])], {"axis": axis, "epsilon": 1e-3})


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (1, 33, 7), (2, 1, 9), (2, 17, 2, 3, 4), (1, 2, 1)])
def test_instance_normalization(shape: tuple[int, ...], layout: str) -> None:
    x, c = normal(*shape) + 2, shape[1]
    given = np.ascontiguousarray(np.moveaxis(x, 1, -1)) if layout == "NHWC" else x
    (got,) = check("InstanceNormalization", [given, normal(c), normal(c)], {"layout": layout}, rtol=1e-4, atol=1e-5)
    theirs = onnxruntime_results("InstanceNormalization", [x, normal(c), normal(c)], {}, 1)[0]
    got = np.moveaxis(got, -1, 1) if layout == "NHWC" else got
    np.testing.assert_allclose(got, theirs, rtol=1e-3, atol=1e-4)


def product_of(pairs: list[tuple[int, int]], areas: list[tuple[int, ...]]) -> list[tuple[int, int, tuple[int, ...]]]:
    """Every pair of channels and groups with every area."""
    return [(channels, groups, area) for channels, groups in pairs for area in areas]


@pytest.mark.parametrize(
    ("channels", "groups", "area"),
    [
        *product_of([(6, 1), (6, 2), (32, 8)], [(), (5,), (4, 5), (19, 1)]),
        *product_of([(6, 6)], [(5,), (4, 5), (19, 1)]),  # a group of one element has no spread
    ],
)
def test_group_normalization(channels: int, groups: int, area: tuple[int, ...]) -> None:
    x = normal(2, channels, *area) - 1
    given = [x, normal(channels), normal(channels)]
    check("GroupNormalization", given, {"num_groups": groups}, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("shape", "axes", "native"),
    [
        ((1, 3, 4, 5), (0, 2, 3), True),
        ((2, 3, 4, 5), (0, 2, 3), False),
        ((2, 3, 4), (1,), True),
        ((2, 3, 4), (-1,), True),
        ((20, 35), (0,), True),
        ((20, 35), (0, 1), True),
    ],
)
def test_mean_variance_normalization(shape: tuple[int, ...], axes: tuple[int, ...], native: bool) -> None:
    check("MeanVarianceNormalization", [normal(*shape)], {"axes": axes}, rtol=1e-4, atol=1e-5, native=native)


@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize(("shape", "axis"), SHAPES)
def test_lp_normalization(p: int, shape: tuple[int, ...], axis: int) -> None:
    x = normal(*shape)
    if x.ndim > 1:
        x[:1] = 0
    check("LpNormalization", [x], {"axis": axis, "p": p})


@pytest.mark.parametrize("size", [1, 2, 3, 5, 50])
@pytest.mark.parametrize("shape", [(2, 7, 5, 5), (1, 9, 17), (3, 4)])
def test_lrn(size: int, shape: tuple[int, ...]) -> None:
    attrs = {"size": size, "alpha": 0.5, "beta": 0.6, "bias": 1.5}
    check("LRN", [normal(*shape, scale=3)], attrs, rtol=1e-5)


def test_a_million_elements() -> None:
    """Mean and spread of a long row far from 0 stay within 1e-5 of what double precision says."""
    x = np.random.default_rng(5).normal(10, 1, (1, 1_000_000)).astype(np.float32)
    got, mean, inverse = check(
        "LayerNormalization", [x, np.ones(1, np.float32)], {}, outputs=3, constants=[1], rtol=1e-3, atol=1e-3
    )
    exact = x.astype(np.float64)
    np.testing.assert_allclose(mean.ravel(), exact.mean(), rtol=1e-6)
    np.testing.assert_allclose(inverse.ravel(), 1 / np.sqrt(exact.var() + 1e-5), rtol=1e-5)
    np.testing.assert_allclose(got, (exact - exact.mean()) / np.sqrt(exact.var() + 1e-5), rtol=1e-4, atol=1e-5)


def infer(op: str, *shapes: tuple[int, ...], **attrs: Any) -> tuple[Spec, ...]:
    specs = [Spec("float32", shape) for shape in shapes]
    node = Node(op, tuple("abc"[: len(shapes)]), ("y",), attrs)
    return tuple(INFERS[op](Inference(node, specs, [None] * len(specs))))


@pytest.mark.parametrize(
    ("op", "shapes", "attrs"),
    [
        ("Softmax", [(2, 3)], {"axis": 2}),
        ("Softmax", [(2, 3)], {"axis": "last"}),
        ("LpNormalization", [(2, 3)], {"p": 3}),
        ("LpNormalization", [()], {}),
        ("LayerNormalization", [(2, 3), (4,)], {}),
        ("LayerNormalization", [(2, 3), (3,), (1, 2, 3)], {}),
        ("LayerNormalization", [(2, 3), (3,)], {"stash_type": 7}),
        ("LayerNormalization", [(2, 3), (3,)], {"epsilon": "small"}),
        ("RMSNormalization", [(2, 3), (2,)], {}),
        ("InstanceNormalization", [(1, 3, 4), (4,), (3,)], {}),
        ("InstanceNormalization", [(1, 3, 4), (3,), (3,)], {"layout": "NHWC"}),
        ("InstanceNormalization", [(3, 4), (4,), (4,)], {}),
        ("GroupNormalization", [(1, 6, 4), (6,), (6,)], {}),
        ("GroupNormalization", [(1, 6, 4), (6,), (6,)], {"num_groups": 4}),
        ("MeanVarianceNormalization", [(2, 3)], {}),
        ("MeanVarianceNormalization", [(2, 3)], {"axes": (0, -2)}),
        ("LRN", [(1, 2, 3)], {}),
        ("LRN", [(1, 2, 3)], {"size": 0}),
        ("LRN", [(1,)], {"size": 1}),
    ],
)
def test_hostile_operands_are_refused(op: str, shapes: list[tuple[int, ...]], attrs: dict[str, Any]) -> None:
    with pytest.raises(ShapeError):
        infer(op, *shapes, **attrs)
