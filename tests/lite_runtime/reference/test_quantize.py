"""Quantisation against onnxruntime and against its own algebra."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from lite_runtime.errors import ShapeError
from tests.lite_runtime.reference.oracle import agree, floats, ints, ours

SCALE = np.array(0.02, np.float32)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint16])
def test_per_tensor(dtype: type) -> None:
    zero = np.array(3, dtype)
    agree("QuantizeLinear", [floats(50, low=-4, high=4), SCALE, zero])
    agree("DequantizeLinear", [ints(50, dtype=dtype, low=0, high=99), SCALE, zero])


def test_per_axis_and_in_blocks() -> None:
    x, scales, zeros = floats(3, 4, 5), floats(4, low=0.01, high=0.1), ints(4, dtype=np.int8)
    agree("QuantizeLinear", [x, scales, zeros], {"axis": 1})
    agree("DequantizeLinear", [ints(3, 4, 5, dtype=np.int8), scales, zeros], {"axis": -2})
    blocks, zeros = floats(3, 2, 5, low=0.01, high=0.1), ints(3, 2, 5, dtype=np.int8)
    agree("QuantizeLinear", [x, blocks, zeros], {"axis": 1, "block_size": 2})
    agree("DequantizeLinear", [ints(3, 4, 5, dtype=np.int8), blocks, zeros], {"axis": 1, "block_size": 2})


@given(hnp.arrays(np.int8, 20), st.floats(2**-12, 2**8, width=32), st.integers(-128, 127))
def test_quantising_what_was_dequantised_gives_it_back(q: np.ndarray, scale: float, zero: int) -> None:
    s, z = np.array(scale, np.float32), np.array(zero, np.int8)
    np.testing.assert_array_equal(ours("QuantizeLinear", [ours("DequantizeLinear", [q, s, z])[0], s, z])[0], q)


@given(hnp.arrays(np.float32, 20, elements=st.floats(-2.5, 2.5, width=32)))
def test_error_is_half_a_step_at_most(x: np.ndarray) -> None:
    zero = np.array(0, np.int8)
    back = ours("DequantizeLinear", [ours("QuantizeLinear", [x, SCALE, zero])[0], SCALE, zero])[0]
    assert np.max(np.abs(back - np.clip(x, -2.56, 2.54))) <= 0.0101


@pytest.mark.parametrize(("name", "low", "high"), [("int4", -8, 7), ("uint4", 0, 15), ("int2", -2, 1), ("uint2", 0, 3)])
def test_narrow_types_saturate(name: str, low: int, high: int) -> None:
    x = np.array([-1e9, 1e9, 0], np.float32)
    y = ours("QuantizeLinear", [x, SCALE], {"output_dtype": name})[0]
    assert y.dtype == getattr(ml_dtypes, name)
    assert y.astype(np.int32).tolist() == [low, high, 0]


def test_dynamic() -> None:
    for x in (floats(3, 4), floats(6, low=1, high=2), floats(6, low=-3, high=-1), np.zeros(3, np.float32)):
        agree("DynamicQuantizeLinear", [x], outputs=3)


def test_misfits_are_refused() -> None:
    with pytest.raises(ShapeError, match=r"y_scale of shape \(4,\) along axis 1"):
        ours("QuantizeLinear", [floats(3, 4), floats(3, low=0.1)])
    with pytest.raises(ShapeError, match="blocks of 3"):
        ours("DequantizeLinear", [ints(2, 8, dtype=np.int8), floats(2, 2)], {"axis": 1, "block_size": 3})
