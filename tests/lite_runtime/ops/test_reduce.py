"""Reductions over every pattern of axes, against their references and onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest

from lite_runtime.errors import ShapeError
from lite_runtime.graph import Node
from lite_runtime.ops.reduce import REDUCTIONS
from lite_runtime.ops.registry import INFERS, Inference, Spec
from tests.lite_runtime.ops.one_node import check

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
"""NumPy warns of what the cases are about: means of nothing, logarithms of 0."""

PATTERNS = [
    ((7,), (0,)),
    ((3, 5), (1,)),
    ((3, 5), (0,)),
    ((2, 3, 37), (0, 2)),
    ((2, 33, 4, 5), (0, 2, 3)),
    ((2, 3, 4, 5, 6), (0, 2, 4)),
    ((2, 1, 9), (1,)),
    ((4, 129), (-1,)),
    ((1, 1031, 3), (1,)),
    ((300, 17), (0,)),
    ((5, 0, 3), (1,)),
    ((0, 3), (0,)),
    ((0, 3), (1,)),
    ((2, 3), ()),
    ((), ()),
]


def sample(op: str, shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    x = np.random.default_rng(seed).normal(size=shape).astype(np.float32)
    return np.abs(x) + np.float32(0.5) if op in ("ReduceProd", "ReduceLogSum") else x


@pytest.mark.parametrize("op", REDUCTIONS)
@pytest.mark.parametrize(("shape", "axes"), PATTERNS)
@pytest.mark.parametrize("keepdims", [0, 1])
def test_axes(op: str, shape: tuple[int, ...], axes: tuple[int, ...], keepdims: int) -> None:
    x = sample(op, shape) if op != "ReduceProd" else sample(op, shape) ** np.float32(0.1)
    with np.errstate(all="ignore"):
        check(op, [x, np.array(axes, np.int64)], {"keepdims": keepdims}, constants=[1], rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("op", REDUCTIONS)
def test_no_axes_at_all(op: str) -> None:
    x = sample(op, (3, 19))
    with np.errstate(all="ignore"):
        check(op, [x], {"noop_with_empty_axes": 1})
        check(op, [x])


@pytest.mark.parametrize("op", [op for op in REDUCTIONS if op != "ReduceProd"])
@pytest.mark.parametrize("axis", [0, 1])
def test_million(op: str, axis: int) -> None:
    """Within 3e-6 of the exact result for a million terms."""
    shape = (1, 1_000_000) if axis else (1_000_000, 1)
    x = np.random.default_rng(1).uniform(0.1, 1, (*shape, 2)[: 2 + (not axis)]).astype(np.float32)
    (got,) = check(op, [x, np.array([axis])], {}, constants=[1], rtol=1e-3)
    d = x.astype(np.float64)
    exact = {
        "ReduceL1": lambda: d.sum(axis),
        "ReduceL2": lambda: np.sqrt((d * d).sum(axis)),
        "ReduceLogSum": lambda: np.log(d.sum(axis)),
        "ReduceLogSumExp": lambda: np.log(np.exp(d).sum(axis)),
        "ReduceMax": lambda: d.max(axis),
        "ReduceMean": lambda: d.mean(axis),
        "ReduceMin": lambda: d.min(axis),
        "ReduceSum": lambda: d.sum(axis),
        "ReduceSumSquare": lambda: (d * d).sum(axis),
    }[op]()
    np.testing.assert_allclose(got.ravel(), exact.ravel(), rtol=3e-6)


@pytest.mark.parametrize("op", ["ReduceMax", "ReduceMin", "ReduceSum", "ReduceLogSumExp", "ReduceL2"])
@pytest.mark.parametrize("axis", [0, 1])
def test_specials(op: str, axis: int) -> None:
    x = np.random.default_rng(2).normal(size=(23, 23)).astype(np.float32)
    x[1, 1], x[2, 2], x[3, 3], x[20, 20] = np.nan, np.inf, -np.inf, -0.0
    x[4], x[:, 5] = -np.inf, 1000
    with np.errstate(all="ignore"):
        check(op, [x, np.array([axis])], {}, constants=[1])


@pytest.mark.parametrize("dtype", ["int64", "float64", "float16", "int32"])
def test_other_types_take_the_reference(dtype: str) -> None:
    x = np.arange(12).reshape(3, 4).astype(dtype)
    check("ReduceProd", [x, np.array([1])], {}, constants=[1], native=False)


def infer(op: str, spec: Spec, axes: np.ndarray | None = None, **attrs: object) -> tuple[Spec, ...]:
    node = Node(op, ("x", "axes"), ("y",), attrs)
    specs = [spec, None if axes is None else Spec(str(axes.dtype), axes.shape)]
    return tuple(INFERS[op](Inference(node, specs, [None, axes])))


@pytest.mark.parametrize(
    ("axes", "attrs"),
    [
        (np.array([3]), {}),
        (np.array([-4]), {}),
        (np.array([0, -3]), {}),
        (np.array([0.5]), {}),
        (np.array([[0]]), {}),
        (None, {"keepdims": "yes"}),
        (None, {"noop_with_empty_axes": (1,)}),
    ],
)
def test_hostile_operands_are_refused(axes: np.ndarray | None, attrs: dict[str, object]) -> None:
    with pytest.raises(ShapeError):
        infer("ReduceSum", Spec("float32", (2, 3, 4)), axes, **attrs)


def test_types_that_are_no_numbers_are_refused() -> None:
    with pytest.raises(ShapeError):
        infer("ReduceSum", Spec("bool", (2,)))
    assert infer("ReduceMax", Spec("bool", (2,))) == (Spec("bool", (1,)),)
