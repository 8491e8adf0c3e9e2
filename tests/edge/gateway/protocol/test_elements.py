"""Numbers of JSON as elements, and text."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from edge.gateway.errors import GatewayError
from edge.gateway.protocol.elements import from_numbers, texts
from lite_runtime.graph import Array
from tests.edge.gateway.protocol.support import NUMERIC, port

SOURCES = st.sampled_from(["int64", "uint64", "float64"])
NUMBERS = st.floats(-300, 300).map(round) | st.floats(allow_nan=False, allow_infinity=False)


@given(st.data(), SOURCES, st.sampled_from(NUMERIC))
def test_every_number_is_held_exactly_or_refused(data: st.DataObject, source: str, datatype: str) -> None:
    """Integers exactly; reals to the nearest that is finite."""
    some = {"elements": NUMBERS.map(float)} if source == "float64" else {}
    array: Array = data.draw(arrays.arrays(source, (2, 2), **some))
    target = port("x", datatype, None)
    values = array.ravel().tolist()
    if target.dtype.kind == "f":
        with np.errstate(over="ignore"):
            held = bool(np.isfinite(np.array(values).astype(target.dtype)).all())
    else:
        info, exact = np.iinfo(target.dtype), 2**53 if source == "float64" else 2**64
        held = all(int(v) == v and info.min <= v <= info.max and abs(v) <= exact for v in values)
    if not held:
        with pytest.raises(GatewayError, match=datatype):
            from_numbers(array, target)
        return
    got = from_numbers(array, target)
    assert got.dtype == target.dtype and got.shape == (2, 2)
    assert got.ravel().tolist() == np.array(values, target.dtype).tolist()


def test_the_first_that_does_not_fit_is_named() -> None:
    with pytest.raises(GatewayError, match="UINT8 does not hold 300, element 2"):
        from_numbers(np.array([0, 255, 300, 400]), port("x", "UINT8", None))
    with pytest.raises(GatewayError, match=r"INT64 does not hold 0\.5, element 1"):
        from_numbers(np.array([1.0, 0.5]), port("x", "INT64", None))
    assert from_numbers(np.empty((0, 3)), port("x", "INT8", None)).dtype == np.int8


@pytest.mark.parametrize("datatype", ["BOOL", "BYTES", "BF16"])
def test_some_types_accept_no_numbers(datatype: str) -> None:
    with pytest.raises(GatewayError, match=datatype):
        from_numbers(np.array([1]), port("x", datatype, None))


def test_text() -> None:
    array = np.array([[b"a", "b"], ["ü".encode(), b""]], object)
    assert texts(array, "x").tolist() == [["a", "b"], ["ü", ""]]
    with pytest.raises(GatewayError, match="UTF-8") as caught:
        texts(np.array([b"\xff"], object), "x")
    assert caught.value.status == 400
