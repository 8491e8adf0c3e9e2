"""Reductions against onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from lite_runtime.errors import ShapeError
from tests.lite_runtime.reference.oracle import agree, floats, i64, ints, ours

REDUCTIONS = ["L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare"]


@pytest.mark.parametrize("kind", REDUCTIONS)
@pytest.mark.parametrize(("axes", "keepdims"), [((1,), 1), ((0, -1), 0), (None, 1), ((), 0)])
def test_reduction(kind: str, axes: tuple[int, ...] | None, keepdims: int) -> None:
    inputs = [floats(3, 4, 5, low=0.5), *([] if axes is None else [i64(*axes)])]
    agree(f"Reduce{kind}", inputs, {"keepdims": keepdims}, rtol=2e-5)


@pytest.mark.parametrize("kind", ["Sum", "Max", "Prod", "Mean"])
def test_integers(kind: str) -> None:
    agree(f"Reduce{kind}", [ints(3, 4, dtype=np.int32, low=1), i64(1)])


@pytest.mark.parametrize("kind", ["LogSum", "SumSquare", "L1"])
def test_over_no_axes_the_rest_of_the_operator_stays(kind: str) -> None:
    x = floats(3, 4, low=0.5)
    rest = {"LogSum": np.log, "SumSquare": np.square, "L1": np.abs}[kind]
    np.testing.assert_allclose(ours(f"Reduce{kind}", [x, i64()], {"noop_with_empty_axes": 1})[0], rest(x))


@pytest.mark.parametrize(
    ("kind", "value"), [("Sum", 0), ("Prod", 1), ("Max", -np.inf), ("Min", np.inf), ("LogSumExp", -np.inf)]
)
def test_over_nothing(kind: str, value: float) -> None:
    assert ours(f"Reduce{kind}", [np.zeros((2, 0), np.float32), i64(1)], {"keepdims": 0})[0].tolist() == [value] * 2


@given(hnp.arrays(np.float32, 6, elements=st.floats(-1e4, 1e4, width=32)))
def test_log_sum_exp_does_not_overflow(x: np.ndarray) -> None:
    got = ours("ReduceLogSumExp", [x])[0]
    assert x.max() - 1e-2 <= got[0] <= x.max() + np.log(6) + 1e-2


@pytest.mark.parametrize("op", ["ArgMax", "ArgMin"])
@pytest.mark.parametrize("last", [0, 1])
def test_places_of_extremes(op: str, last: int) -> None:
    agree(op, [ints(5, 9, dtype=np.int32, low=0, high=3)], {"axis": 1, "select_last_index": last, "keepdims": 0})


@pytest.mark.parametrize("exclusive", [0, 1])
@pytest.mark.parametrize("reverse", [0, 1])
def test_running_sum(exclusive: int, reverse: int) -> None:
    agree("CumSum", [floats(3, 5), np.array(-1)], {"exclusive": exclusive, "reverse": reverse})


def test_running_product() -> None:
    x = np.array([1, 2, 3], np.int32)
    assert ours("CumProd", [x, np.array(0)], {"exclusive": 1, "reverse": 1})[0].tolist() == [6, 3, 1]


def test_axis_out_of_range_is_refused() -> None:
    with pytest.raises(ShapeError, match=r"ReduceSum 'it'.*\[-2, 1\]"):
        ours("ReduceSum", [floats(2, 2), i64(2)])


def test_axes_as_an_attribute_are_refused() -> None:
    from lite_runtime.errors import UnsupportedOpError

    with pytest.raises(UnsupportedOpError, match="upgraded by the converter"):
        ours("ReduceSum", [floats(2, 2)], {"axes": (1,)})
