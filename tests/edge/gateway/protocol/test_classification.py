"""The largest elements of rows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from edge.gateway.errors import GatewayError
from edge.gateway.protocol.classification import MOST, classified, classify
from lite_runtime.graph import Array, numpy_dtype
from tests.edge.gateway.protocol.support import port

INTEGERS = ["uint8", "uint64", "int8", "int64"]


@given(st.sampled_from(INTEGERS).flatmap(lambda d: arrays.arrays(d, (2, 3, 2))), st.integers(1, 9), st.booleans())
def test_the_largest_come_first_and_equal_ones_in_order(array: Array, count: int, batched: bool) -> None:
    got = classify(array, count, batched, None, "y")
    rows = array.reshape(2, 6).tolist() if batched else [array.ravel().tolist()]
    expected = [
        [f"{row[i]}:{i}".encode() for i in sorted(range(len(row)), key=lambda i: (-row[i], i))[:count]] for row in rows
    ]
    assert got.tolist() == (expected if batched else expected[0])


def test_narrow_reals_are_written_as_triton_writes_reals() -> None:
    for dtype in (np.float16, np.float64, numpy_dtype("bfloat16")):
        assert classify(np.array([1.5, 2], dtype), 1, False, None, "y").tolist() == [b"2.000000:1"]


def test_nothing_to_choose_from() -> None:
    assert classify(np.zeros((2, 0)), 3, True, None, "y").shape == (2, 0)
    assert classify(np.zeros((0,)), 3, False, None, "y").shape == (0,)
    assert classify(np.array(3), 5, True, ["a"], "y").tolist() == [b"3:0:a"]


def test_too_many_are_refused() -> None:
    with pytest.raises(GatewayError, match="at most") as caught:
        classify(np.zeros((2, MOST)), MOST, True, None, "y")
    assert caught.value.status == 400
    assert classify(np.zeros((2, MOST)), 1, True, None, "y").shape == (2, 1)


@pytest.mark.parametrize("datatype", ["BOOL", "BYTES"])
def test_what_has_no_order_is_refused(datatype: str) -> None:
    with pytest.raises(GatewayError, match=datatype):
        classified(port("y", datatype, ("n",)))
