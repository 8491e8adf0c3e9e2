"""Integer contractions against onnxruntime, against their definition written out, and against real arithmetic."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from lite_runtime.errors import ShapeError
from lite_runtime.reference.qlinear import bounds_of, requantize
from tests.lite_runtime.reference.oracle import agree, floats, ints, ours


def test_integer_products() -> None:
    a, b = ints(3, 4, dtype=np.uint8, low=0, high=255), ints(4, 5, dtype=np.int8, low=-128, high=127)
    agree("MatMulInteger", [a, b, np.array(7, np.uint8), np.array(3, np.int8)])
    agree("MatMulInteger", [a, b, np.array(7, np.uint8), ints(5, dtype=np.int8)])
    x, w = ints(1, 3, 6, 6, dtype=np.uint8, low=0, high=255), ints(4, 3, 3, 3, dtype=np.uint8, low=0, high=255)
    agree("ConvInteger", [x, w, np.array(9, np.uint8), np.array(5, np.uint8)], {"pads": (1, 1, 1, 1)})


@pytest.mark.parametrize("per_channel", [False, True])
def test_qlinear(per_channel: bool) -> None:
    step, y_step, zero = np.array(0.01, np.float32), np.array(1.7, np.float32), np.array(101, np.uint8)
    x, w = ints(1, 3, 6, 6, dtype=np.uint8, low=0, high=255), ints(4, 3, 3, 3, dtype=np.int8, low=-99, high=99)
    steps = floats(4, low=0.01, high=0.05) if per_channel else step
    zeros = np.zeros(4, np.int8) if per_channel else np.array(0, np.int8)
    bias = ints(4, dtype=np.int32, low=-900, high=900)
    agree(
        "QLinearConv",
        [x, np.array(1.3, np.float32), zero, w, steps, zeros, y_step, zero, bias],
        {"pads": (1,) * 4},
        atol=1,
    )
    a, b = ints(3, 4, dtype=np.uint8, low=0, high=255), ints(4, 5, dtype=np.uint8, low=0, high=255)
    agree("QLinearMatMul", [a, step, zero, b, step, zero, y_step, zero], atol=1)


def nearest(number: Fraction) -> np.float32:
    """The float32 closest to a number, the even one of two."""
    about = np.float32(float(number))
    three = [np.nextafter(about, np.float32(end), dtype=np.float32) for end in (-np.inf, np.inf)] + [about]
    return min(three, key=lambda one: (abs(Fraction(float(one)) - number), int(one.view(np.int32)) & 1))


def written_out(given: list[Any], low: int, high: int) -> np.ndarray:
    """A QLinearMatMul of matrices, an element at a time: Python integers, and float32 rounded at each step; the last
    product and sum of a real result of bytes as one."""
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero, bias = given
    wide = a.dtype == np.int16
    y = np.empty((a.shape[0], b.shape[1]), np.float32 if y_scale is None else y_zero.dtype)
    for m, n in np.ndindex(*y.shape):
        total = sum((int(v) - int(a_zero)) * (int(w) - int(b_zero[n])) for v, w in zip(a[m], b[:, n], strict=True))
        if y_scale is not None:
            total += int(bias[n])
        half = 1 << (63 if wide else 31)
        total = (total + half) % (2 * half) - half
        unit = np.float32(a_scale * b_scale[n])
        if y_scale is None and wide:
            y[m, n] = np.float32(np.float32(total) * unit) + bias[n]
        elif y_scale is None:
            real = np.float32(total) * np.float32(a_scale)
            y[m, n] = nearest(Fraction(float(real)) * Fraction(float(b_scale[n])) + Fraction(float(bias[n])))
        else:
            moved = np.rint(np.float32(total) * np.float32(unit / y_scale))
            y[m, n] = int(min(max(float(moved) + int(y_zero), low), high))
    return y


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16])
@pytest.mark.parametrize("real", [False, True])
def test_the_definition(dtype: Any, real: bool) -> None:
    ends = np.iinfo(dtype)
    a, b = ints(5, 30, dtype=dtype, low=ends.min, high=ends.max + 1), ints(30, 7, dtype=np.int8, low=-128, high=128)
    zeros = ints(7, dtype=np.int8, low=-9, high=9)
    whole = np.int64 if dtype == np.int16 else np.int32
    bias: Any = floats(7) if real else ints(7, dtype=whole, low=-(1 << 31), high=1 << 31)
    y_scale = np.float32(2e6 if dtype != np.int16 else 3e5)
    fixed = [None, None] if real else [np.array(y_scale), np.array(3, dtype)]
    given = [a, np.array(0.3, np.float32), np.array(5, dtype), b, floats(7, low=0.1), zeros, *fixed, bias]
    (y,) = ours("QLinearMatMul", given)
    np.testing.assert_array_equal(y, written_out(given, ends.min, ends.max))


def test_product_and_sum_are_rounded_as_one() -> None:
    """Operands whose exact sum is very close to the midpoint of two float32, where rounding through float64 is
    wrong."""
    rng = np.random.default_rng(1)
    x = rng.integers(-128, 128, (200, 1)).astype(np.int8)
    scale = rng.normal(size=(200, 1)).astype(np.float32)
    w_scale = (1 + rng.integers(0, 1 << 23, 300) * 2.0**-23).astype(np.float32)
    bias = (rng.normal(size=300) * np.exp2(rng.integers(-30, 60, 300))).astype(np.float32)
    one, zeros = np.ones((1, 300), np.int8), np.zeros(300, np.int8)
    (y,) = ours("QLinearMatMul", [x, scale, np.zeros((200, 1), np.int8), one, w_scale, zeros, None, None, bias])
    for m, n in zip(rng.integers(0, 200, 3000), rng.integers(0, 300, 3000), strict=True):
        real = Fraction(float(np.float32(x[m, 0]) * scale[m, 0])) * Fraction(float(w_scale[n]))
        assert y[m, n] == nearest(real + Fraction(float(bias[n])))


@pytest.mark.parametrize("activation", ["", "Relu", "Clip"])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_a_convolution_is_the_real_one_on_the_grid(activation: str, layout: str) -> None:
    """Q(act(conv(DQ(x), DQ(w)) + DQ(B))) except for its float32 sums: at most one step of difference."""
    x, w = ints(2, 3, 6, 7, dtype=np.int8, low=-128, high=128), ints(4, 3, 3, 3, dtype=np.int8, low=-127, high=128)
    zero, y_zero = np.array(-7, np.int8), np.array(11, np.int8)
    scale, y_scale, w_scale = np.array(0.05, np.float32), np.array(3.0, np.float32), floats(4, low=0.01, high=0.05)
    bias = ints(4, dtype=np.int32, low=-9999, high=9999)
    attrs: dict[str, Any] = {"activation": activation, "pads": (1, 1, 1, 1)}
    if activation == "Clip":
        attrs |= {"activation_min": -100.0, "activation_max": 333.0}
    real = [
        (x.astype(np.float32) - zero) * scale,
        (w.astype(np.float32).T * w_scale).T.astype(np.float32),
        (bias * (scale * w_scale)).astype(np.float32),
    ]
    (wanted,) = ours("QuantizeLinear", [ours("Conv", real, attrs)[0], y_scale, y_zero])
    given = [x, scale, zero, w, w_scale, np.zeros(4, np.int8), y_scale, y_zero, bias]
    if layout == "NHWC":
        given[0], wanted = np.moveaxis(x, 1, -1), np.moveaxis(wanted, 1, -1)
    (y,) = ours("QLinearConv", given, {**attrs, "layout": layout})
    assert np.abs(y.astype(int) - wanted).max() <= 1 and (y == wanted).mean() > 0.95
    assert len(np.unique(y)) > 30


def test_bounds_are_the_activations_on_the_grid() -> None:
    int8, uint8 = np.dtype(np.int8), np.dtype(np.uint8)
    assert bounds_of(int8, 0.5, 3) == (-128, 127)
    assert bounds_of(int8, 0.5, 3, "Relu") == (3, 127)
    assert bounds_of(uint8, 0.5, 3, "Clip", -1.0, 6.0) == (1, 15)
    assert bounds_of(uint8, 0.5, 3, "Clip", -100.0) == (0, 255)
    with pytest.raises(ShapeError, match="bounds in order"):
        bounds_of(int8, 0.5, 3, "Clip", 2.0, 1.0)


def test_requantising_rounds_half_to_even_and_saturates() -> None:
    total, zero = np.array([1, 3, 5, -1, -3, 1 << 30, -(1 << 30)], np.int32), np.array(1, np.int8)
    assert requantize(total, np.float32(0.5), zero, -100, 100).tolist() == [1, 3, 3, 1, -1, 100, -100]


def test_half_a_requantisation_is_refused() -> None:
    one, zero, x = np.array(1, np.float32), np.array(0, np.int8), ints(2, 2, dtype=np.int8)
    with pytest.raises(ShapeError, match="both y_scale and y_zero_point"):
        ours("QLinearMatMul", [x, one, zero, x, one, zero, one])
