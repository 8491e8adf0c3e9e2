"""Window arithmetic."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lite_runtime.errors import ShapeError, UnsupportedOpError
from lite_runtime.reference.windows import MOST_TAPS, resolve

small = st.integers(1, 4)


@given(st.integers(1, 12), small, small, small, st.sampled_from(["SAME_UPPER", "SAME_LOWER"]))
def test_same_gives_one_position_per_stride(size: int, kernel: int, stride: int, dilation: int, auto_pad: str) -> None:
    window = resolve([size], [kernel], strides=[stride], dilations=[dilation], auto_pad=auto_pad)
    assert window.out == (-(-size // stride),)
    (begin,), (end,) = window.begin, window.end
    assert 0 <= (end - begin if auto_pad == "SAME_UPPER" else begin - end) <= 1


@given(st.integers(1, 12), small, small, small, st.integers(0, 2), st.integers(0, 2), st.booleans())
def test_taps_stay_inside_what_was_padded(
    size: int, kernel: int, stride: int, dilation: int, begin: int, end: int, up: bool
) -> None:
    if (kernel - 1) * dilation + 1 > size + begin + end:
        return
    window = resolve([size], [kernel], strides=[stride], dilations=[dilation], pads=[begin, end], ceil_mode=int(up))
    padded = window.pad(np.ones((1, size)), 0)
    assert all(padded[cut].shape == (1, *window.out) for _, cut in window.taps())
    down = (size + begin + end - (kernel - 1) * dilation - 1) // stride + 1
    if window.out[0] > down:  # rounding up adds a position only where it still meets the input or what comes before
        assert up
        assert (window.out[0] - 1) * stride < size + begin


def test_errors() -> None:
    with pytest.raises(ShapeError, match="within the padded input"):
        resolve([3], [5])
    with pytest.raises(ShapeError, match="strides of 2"):
        resolve([3, 3], [2, 2], strides=[1])
    with pytest.raises(ShapeError, match="at most"):
        next(resolve([3], [MOST_TAPS + 1], pads=[MOST_TAPS, 0]).taps())
    with pytest.raises(ShapeError, match="above 0"):
        resolve([3], [2], strides=[0])
    with pytest.raises(UnsupportedOpError, match="SAME_UP"):
        resolve([3], [2], auto_pad="SAME_UP")
