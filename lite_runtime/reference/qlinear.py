"""Integer contractions: products and convolutions of quantised tensors, with quantised or real results.

The extended QLinearConv and QLinearMatMul keep ONNX's operands and meaning and add: int16 activations in addition to
int8, `layout`, a fused `activation`, a bias for QLinearMatMul, and the real result: if y_scale and y_zero_point are
left out, y and B are float32, and the left operand's scale and zero point may have one value per image or row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from lite_runtime.graph import Array
from lite_runtime.reference.convolution import convolve
from lite_runtime.reference.fixed_point import multiplier_of, rescaled, short_multiplier_of
from lite_runtime.reference.linear import matmul
from lite_runtime.reference.movement import to_channels_first, to_channels_last
from lite_runtime.reference.quantize import dequantize, integer_range, quantize
from lite_runtime.reference.registry import define
from lite_runtime.reference.support import axis_of, is_integer, require, scalar, widen
from lite_runtime.reference.windows import resolve

__all__ = ["ROUNDINGS", "bounds_of", "clamped", "requantize"]


def _centred(x: Array, zero_point: Array | None, axis: int) -> Array:
    """x minus its zero points (one, one per index of `axis`, or broadcast), in float64: sums are exact below 2**53."""
    if zero_point is None:
        return x.astype(np.float64)
    zero = zero_point.astype(np.float64)
    if zero.size == 1:
        zero = zero.reshape(())
    elif zero.ndim == 1:
        zero = zero.reshape([-1 if i == axis_of(axis, x.ndim) else 1 for i in range(x.ndim)])
    return x.astype(np.float64) - zero


def _int32(x: Array) -> Array:
    return x.astype(np.int64).astype(np.int32)


@define("MatMulInteger")
def _matmul_integer(a: Array, b: Array, a_zero: Array | None = None, b_zero: Array | None = None, /) -> Array:
    """Zero points per row of A, per column of B."""
    return _int32(matmul(_centred(a, a_zero, -2 if a.ndim > 1 else -1), _centred(b, b_zero, -1)))


@define("ConvInteger")
def _conv_integer(
    x: Array, w: Array, x_zero: Array | None = None, w_zero: Array | None = None, /, **window: Any
) -> Array:
    return _int32(_integer_conv(x, w, x_zero, w_zero, **window))


def _integer_conv(
    x: Array,
    w: Array,
    x_zero: Array | None,
    w_zero: Array | None,
    auto_pad: str = "NOTSET",
    dilations: Sequence[int] | None = None,
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Array:
    """Padding counts as the zero point, which is 0 after centring."""
    space = resolve(x.shape[2:], w.shape[2:], strides=strides, dilations=dilations, pads=pads, auto_pad=auto_pad)
    return convolve(_centred(x, x_zero, 0), _centred(w, w_zero, 0), space, group)


def bounds_of(
    dtype: np.dtype,
    y_scale: float,
    y_zero: int,
    activation: str = "",
    activation_min: float = -np.inf,
    activation_max: float = np.inf,
) -> tuple[int, int]:
    """Least and greatest integer of a result: its type's range clamped by the activation's real bounds, quantised."""
    require(activation in ("", "Relu", "Clip"), f"expected activation Relu, Clip or none, got {activation!r}")
    low, high = integer_range(dtype)
    if not activation:
        return low, high
    ends = (0.0, np.inf) if activation == "Relu" else (activation_min, activation_max)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        least, most = (np.rint(np.float32(end) / np.float32(y_scale)) + np.float64(y_zero) for end in ends)
    require(least <= most, f"expected activation bounds in order, got {ends}")
    return int(np.clip(least, low, high)), int(np.clip(most, low, high))


def clamped(y: Array, activation: str = "", activation_min: float = -np.inf, activation_max: float = np.inf) -> Array:
    """A real result clamped by the activation's bounds. By comparisons, as in kernels: NaN and a zero's sign are
    kept."""
    require(activation in ("", "Relu", "Clip"), f"expected activation Relu, Clip or none, got {activation!r}")
    if not activation:
        return y
    with np.errstate(over="ignore"):
        low, high = np.array((0.0, np.inf) if activation == "Relu" else (activation_min, activation_max), np.float32)
    y = np.where(y < low, low, y)
    return np.where(y > high, high, y)


def requantize(total: Array, factor: Array, y_zero: Array, low: int, high: int) -> Array:
    """`total` times `factor`, one float32 product, rounded half to even, plus the zero point, clamped to [low,
    high]."""
    moved = np.rint(total.astype(np.float32) * np.asarray(factor, np.float32)).astype(np.float64)
    moved = np.nan_to_num(moved + float(scalar(y_zero, "y_zero_point")), nan=low, posinf=high, neginf=low)
    return np.asarray(np.clip(moved, low, high).astype(np.int64).astype(y_zero.dtype))


ROUNDINGS = ("", "FIXED", "TWICE", "DOUBLE", "LANES", "REAL")
"""Of a sum to a quantised result: once in float32, or as LiteRT's own kernels round, see `_rescaled`."""


_WITHIN = {"FIXED": "UP", "LANES": "TWICE"}
"""What Rescale calls them."""


def _rescaled(total: Array, reals: Array, y_zero: Array, low: int, high: int, rounding: str) -> Array:
    """The sum times a real factor as LiteRT's own kernels compute it.

    FIXED: an int64 sum times a 15-bit multiplier / 2**shift, halves up. TWICE, DOUBLE: an int32 sum times a 31-bit
    multiplier, rounded twice, as by Rescale. LANES, of axis 1: TWICE before the last multiple of eight, where vector
    code computes, DOUBLE after it. REAL: in float64, halves away from zero.
    """
    if rounding == "REAL":
        moved = total.astype(np.float64) * reals
        moved = np.trunc(moved) + np.sign(moved) * (np.abs(moved - np.trunc(moved)) >= 0.5)
    else:
        multiplier_by = short_multiplier_of if rounding == "FIXED" else multiplier_of
        found = [multiplier_by(float(real)) for real in reals.reshape(-1)]
        multiplier, shift = (np.array(part, np.int64).reshape(reals.shape) for part in zip(*found, strict=True))
        total = total if rounding == "FIXED" else total.astype(np.int32).astype(np.int64)
        moved = rescaled(total, multiplier, shift, _WITHIN.get(rounding, rounding))
        if rounding == "LANES":
            last = np.arange(total.shape[1]).reshape(-1, *(1,) * (total.ndim - 2)) >= total.shape[1] // 8 * 8
            moved = np.where(last, rescaled(total, multiplier, shift, "DOUBLE"), moved)
    return np.asarray(np.clip(moved + int(scalar(y_zero, "y_zero_point")), low, high)).astype(y_zero.dtype)


def _accumulated(total: Array, narrow: bool, bias: Array | None) -> Array:
    """Exact sums plus the bias, in the integer type used on devices: int32 for 8-bit operands, int64 for 16-bit
    ones."""
    whole = total.astype(np.int64)
    if bias is not None:
        require(bias.dtype.kind == "i", f"expected an integer bias with an integer result, got {bias.dtype}")
        whole = whole + bias.astype(np.int64)
    return whole.astype(np.int32) if narrow else whole


def _finish(
    total: Array,
    narrow: bool,
    left: Array,
    right: Array,
    y_scale: Array | None,
    y_zero: Array | None,
    bias: Array | None,
    activation: dict[str, Any],
    rounding: str = "",
) -> Array:
    """Converts sums in units of the operands' scales, left * right, to the result; `bias` broadcasts to them.

    A real result of bytes is act(float32(float32(sum) * left) * right + bias), product and sum rounded once, as XNNPACK
    does for operands quantised at run time; of int16: act(float32(sum) * float32(left * right) + bias).
    """
    if y_scale is not None and y_zero is not None:
        step = np.float32(scalar(widen(y_scale), "y_scale"))
        low, high = bounds_of(y_zero.dtype, float(step), int(scalar(y_zero, "y_zero_point")), **activation)
        if rounding:
            reals = np.asarray(left.astype(np.float64) * right.astype(np.float64) / np.float64(step))
            return _rescaled(_accumulated(total, narrow, bias), reals, y_zero, low, high, rounding)
        return requantize(_accumulated(total, narrow, bias), left * right / step, y_zero, low, high)
    require(y_scale is None and y_zero is None, "expected both y_scale and y_zero_point, or neither")
    whole = _accumulated(total, narrow, None)
    if bias is not None:
        require(bias.dtype == np.float32, f"expected a float32 bias with a float32 result, got {bias.dtype}")
    if narrow:
        y = _fused(whole.astype(np.float32) * left, right, np.float32(-0.0) if bias is None else bias)
    else:
        y = whole.astype(np.float32) * (left * right)
        y = y if bias is None else y + bias
    return clamped(y, **activation)


def _fused(a: Array, b: Array, c: Array | np.float32) -> Array:
    """a * b + c in float32, rounded once: in float64 the product is exact, and a sum rounded to odd, then to float32,
    equals the exact sum rounded to float32 (Boldo and Melquiond 2008)."""
    product, other = a.astype(np.float64) * b, np.asarray(c, np.float64)
    total = np.asarray(product + other)
    rest = total - product
    lost = (product - (total - rest)) + (other - rest)
    bits = total.view(np.int64)
    move = (bits & 1 == 0) & (lost != 0) & ~np.isnan(lost)
    odd = bits + np.where(np.signbit(lost) == np.signbit(total), 1, -1)
    return np.where(move, odd, bits).view(np.float64).astype(np.float32)


@define("QLinearMatMul")
def _qlinear_matmul(
    a: Array,
    a_scale: Array,
    a_zero: Array,
    b: Array,
    b_scale: Array,
    b_zero: Array,
    y_scale: Array | None = None,
    y_zero: Array | None = None,
    bias: Array | None = None,
    /,
    transB: int = 0,
    rounding: str = "",
    **activation: Any,
) -> Array:
    """Scales and zero points per row of A, per column of B, or one in total; bias broadcasts along the columns. Sums of
    a quantised result are rounded once in float32; by `rounding`, as `_rescaled` says."""
    require(not transB or b.ndim >= 2, f"expected at least a matrix to transpose, got shape {b.shape}")
    b = np.swapaxes(b, -1, -2) if transB else b
    if y_zero is not None and not is_integer(y_zero.dtype):
        left = dequantize(a, widen(a_scale), a_zero)
        right = dequantize(b, widen(b_scale), b_zero)
        assert y_scale is not None
        return quantize(matmul(left, right), widen(y_scale), y_zero)
    total = matmul(_centred(a, a_zero, -2), _centred(b, b_zero, -1))
    rows, columns = (one.reshape(()) if one.size == 1 else one for one in (widen(a_scale), widen(b_scale)))
    rows = rows.reshape(-1, 1) if rows.ndim == 1 else rows
    scales = rows.astype(np.float32), columns.astype(np.float32)
    return _finish(total, a.dtype.itemsize == 1, *scales, y_scale, y_zero, bias, activation, rounding)


@define("QLinearConv")
def _qlinear_conv(
    x: Array,
    x_scale: Array,
    x_zero: Array,
    w: Array,
    w_scale: Array,
    w_zero: Array,
    y_scale: Array | None = None,
    y_zero: Array | None = None,
    b: Array | None = None,
    /,
    layout: str = "NCHW",
    activation: str = "",
    activation_min: float = -np.inf,
    activation_max: float = np.inf,
    rounding: str = "",
    **window: Any,
) -> Array:
    """B is in units of x_scale * w_scale, or real; W may have scales and zero points per output channel. `rounding` as
    in QLinearMatMul."""
    x = to_channels_first(x, layout)
    if x_zero is not None and x_zero.size > 1:
        x_zero = x_zero.reshape(-1, *(1,) * (x.ndim - 1))
    total = _integer_conv(x, w, x_zero, w_zero, **window)
    rest = (1,) * (x.ndim - 2)
    bias = None if b is None else b.reshape(1, -1, *rest)
    images = x_scale.reshape(()) if x_scale.size == 1 else x_scale.reshape(-1, *(1,) * (x.ndim - 1))
    scales = images.astype(np.float32), w_scale.astype(np.float32).reshape(1, -1, *rest)
    fused: dict[str, Any] = {"activation": activation}
    if activation == "Clip":
        fused |= {"activation_min": activation_min, "activation_max": activation_max}
    y = _finish(total, x.dtype.itemsize == 1, *scales, y_scale, y_zero, bias, fused, rounding)
    return to_channels_last(y, layout)
