"""Conversions between element types."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from lite_runtime.errors import InputError, ShapeError
from tests.lite_runtime.reference.oracle import agree, floats, ints, ours, texts

FLOAT, INT8, INT32, STRING, BOOL, HALF, DOUBLE = 1, 3, 6, 8, 9, 10, 11


@pytest.mark.parametrize("to", [INT8, INT32, BOOL, HALF, DOUBLE])
def test_from_float(to: int) -> None:
    agree("Cast", [floats(50, low=-100, high=100)], {"to": to})


def test_strings_both_ways() -> None:
    agree("Cast", [texts("1.5", "-INF", "nan", "1e-3")], {"to": FLOAT})
    agree("Cast", [texts("12", "-7")], {"to": INT32})
    agree("Cast", [ints(5)], {"to": STRING})


def test_a_name_does_as_well_as_a_number() -> None:
    x = floats(5)
    np.testing.assert_array_equal(ours("Cast", [x], {"to": "float16"})[0], ours("Cast", [x], {"to": HALF})[0])


def test_words_are_refused() -> None:
    with pytest.raises(InputError, match="numbers"):
        ours("Cast", [texts("hello")], {"to": FLOAT})


@given(hnp.arrays(np.float32, 8, elements=st.floats(-1e6, 1e6, width=32)))
def test_saturating_float8_stays_finite(x: np.ndarray) -> None:
    for name in ("float8e4m3fn", "float8e4m3fnuz", "float8e5m2", "float8e5m2fnuz"):
        assert np.all(np.isfinite(ours("Cast", [x], {"to": name})[0].astype(np.float32)))


def test_float8_beyond_the_largest() -> None:
    x = np.array([1e9, -1e9, np.inf, np.nan], np.float32)
    kept = ours("Cast", [x], {"to": "float8e4m3fn"})[0].astype(np.float32)
    np.testing.assert_array_equal(kept, [448, -448, 448, np.nan])
    lost = ours("Cast", [x], {"to": "float8e5m2", "saturate": 0})[0].astype(np.float32)
    np.testing.assert_array_equal(lost, [np.inf, -np.inf, np.inf, np.nan])


@pytest.mark.parametrize(
    ("mode", "expected"), [("up", [2, 2, 4, 4]), ("down", [1, 2, 2, 2]), ("nearest", [1, 2, 4, 4])]
)
def test_powers_of_two(mode: str, expected: list[float]) -> None:
    x = np.array([1.2, 2.0, 3.0, 3.9], np.float32)
    assert ours("Cast", [x], {"to": "float8e8m0", "round_mode": mode})[0].astype(np.float32).tolist() == expected


@given(hnp.arrays(np.int32, 8))
def test_narrow_integers_keep_the_low_bits(x: np.ndarray) -> None:
    four = ours("Cast", [x], {"to": "uint4"})[0]
    assert four.dtype == ml_dtypes.uint4
    np.testing.assert_array_equal(four.astype(np.int32), x & 15)
    signed = ours("Cast", [x], {"to": "int4"})[0].astype(np.int32)
    np.testing.assert_array_equal(signed & 15, x & 15)
    assert np.all((signed >= -8) & (signed < 8))


@given(hnp.arrays(np.float32, 8))
def test_bits_survive_a_round_trip(x: np.ndarray) -> None:
    bits = ours("BitCast", [x], {"to": INT32})[0]
    assert ours("BitCast", [bits], {"to": FLOAT})[0].tobytes() == x.tobytes()


def test_bits_of_another_width_are_refused() -> None:
    with pytest.raises(ShapeError, match="width"):
        ours("BitCast", [floats(4)], {"to": HALF})


def test_cast_like() -> None:
    assert ours("CastLike", [floats(3), ints(1, dtype=np.int8)])[0].dtype == np.int8
