"""Quantisation, and the integer products built on it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from lite_runtime.graph import Array
from lite_runtime.reference.casting import cast
from lite_runtime.reference.convolution import convolve
from lite_runtime.reference.linear import matmul
from lite_runtime.reference.registry import define
from lite_runtime.reference.support import NARROW_INTS, axis_of, dtype_of, is_integer, require, scalar, widen
from lite_runtime.reference.windows import resolve

__all__ = ["integer_range"]


def integer_range(dtype: np.dtype) -> tuple[int, int]:
    """(lowest, highest) of an integer type, those narrower than a byte included."""
    if dtype.name in NARROW_INTS:
        return NARROW_INTS[dtype.name]
    return int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)


def _spread(x: Array, shape: tuple[int, ...], axis: int, block_size: int, what: str) -> Array:
    """Scales or zero points against `shape`: one for all, one per index of `axis`, or one per block along it."""
    if x.size == 1 and x.ndim <= 1:
        return x.reshape(())
    axis = axis_of(axis, len(shape))
    if not block_size:
        require(
            x.shape == (shape[axis],), f"expected {what} of shape ({shape[axis]},) along axis {axis}, got {x.shape}"
        )
        return x.reshape([-1 if i == axis else 1 for i in range(len(shape))])
    expected = tuple(-(-n // block_size) if i == axis else n for i, n in enumerate(shape))
    require(x.shape == expected, f"expected {what} of shape {expected} for blocks of {block_size}, got {x.shape}")
    return np.take(np.repeat(x, block_size, axis), np.arange(shape[axis]), axis)


@define("QuantizeLinear")
def _quantize_linear(
    x: Array,
    scale: Array,
    zero_point: Array | None = None,
    /,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: int | str = 0,
    precision: int | str = 0,
    saturate: int = 1,
) -> Array:
    """x / scale rounded half to even, plus the zero point, saturated; to float types the rounding is the cast's."""
    if zero_point is not None:
        dtype = zero_point.dtype
    else:
        dtype = dtype_of(output_dtype) if output_dtype else np.dtype(np.uint8)
    exact = dtype_of(precision) if precision else scale.dtype
    wide = np.dtype(np.float64 if exact == np.float64 else np.float32)
    divisor = _spread(scale, x.shape, axis, block_size, "y_scale").astype(wide)
    quotient = x.astype(exact).astype(wide) / divisor
    if exact not in (np.float32, np.float64):
        quotient = quotient.astype(exact).astype(wide)
    zero = None if zero_point is None else _spread(zero_point, x.shape, axis, block_size, "y_zero_point")
    if not is_integer(dtype):
        shifted = quotient if zero is None else quotient + zero.astype(wide)
        return cast(shifted, dtype, saturate=bool(saturate))
    low, high = integer_range(dtype)
    whole = np.rint(quotient).astype(np.float64) + (0 if zero is None else zero.astype(np.float64))
    return np.clip(np.nan_to_num(whole, nan=low), low, high).astype(np.int64).astype(dtype)


@define("DequantizeLinear")
def _dequantize_linear(
    x: Array,
    scale: Array,
    zero_point: Array | None = None,
    /,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: int | str = 0,
) -> Array:
    """(x - zero point) * scale; the type of the scale, or `output_dtype`."""
    dtype = dtype_of(output_dtype) if output_dtype else scale.dtype
    wide = np.dtype(np.float64 if dtype == np.float64 else np.float32)
    between = np.dtype(np.int64) if is_integer(x.dtype) else wide
    values = x.astype(between)
    if zero_point is not None:
        values = values - _spread(zero_point, x.shape, axis, block_size, "x_zero_point").astype(between)
    return (values.astype(wide) * _spread(scale, x.shape, axis, block_size, "x_scale").astype(wide)).astype(dtype)


@define("DynamicQuantizeLinear")
def _dynamic_quantize_linear(x: Array, /) -> tuple[Array, Array, Array]:
    """uint8 over the range of `x` widened to hold 0: (y, scale, zero point). Zeros alone have scale 1."""
    low, high = (np.float32(min(0, x.min(initial=0))), np.float32(max(0, x.max(initial=0))))
    scale = np.float32((high - low) / np.float32(255)) or np.float32(1)
    zero = np.clip(np.rint(-low / scale), 0, 255)
    y = np.clip(np.rint(x / scale) + zero, 0, 255).astype(np.uint8)
    return y, np.asarray(scale, np.float32), np.asarray(zero).astype(np.uint8)


def _centred(x: Array, zero_point: Array | None, axis: int) -> Array:
    """x minus its zero points (one, or one per index of `axis`), in float64: exact sums below 2**53."""
    if zero_point is None:
        return x.astype(np.float64)
    zero = zero_point.astype(np.float64)
    if zero.ndim == 1 and zero.size > 1:
        zero = zero.reshape([-1 if i == axis_of(axis, x.ndim) else 1 for i in range(x.ndim)])
    elif zero.ndim <= 1:
        zero = zero.reshape(())
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
    """Padding counts as the zero point, so as 0 once centred."""
    space = resolve(x.shape[2:], w.shape[2:], strides=strides, dilations=dilations, pads=pads, auto_pad=auto_pad)
    return convolve(_centred(x, x_zero, 0), _centred(w, w_zero, 0), space, group)


def _requantize(total: Array, scale: Array, y_scale: Array, y_zero: Array) -> Array:
    """`total * scale / y_scale` rounded half to even onto the type of `y_zero`; one float32 multiply."""
    low, high = integer_range(y_zero.dtype)
    factor = (scale / np.float32(scalar(y_scale, "y_scale"))).astype(np.float32)
    moved = np.rint(total.astype(np.float32) * factor).astype(np.float64) + float(scalar(y_zero, "y_zero_point"))
    return np.asarray(np.clip(moved, low, high).astype(np.int64).astype(y_zero.dtype))


@define("QLinearMatMul")
def _qlinear_matmul(
    a: Array,
    a_scale: Array,
    a_zero: Array,
    b: Array,
    b_scale: Array,
    b_zero: Array,
    y_scale: Array,
    y_zero: Array,
    /,
) -> Array:
    """Scales and zero points per row of A, per column of B, or one for all."""
    if not is_integer(y_zero.dtype):
        return _qlinear_matmul_float8(a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero)
    total = matmul(_centred(a, a_zero, -2), _centred(b, b_zero, -1))
    rows = widen(a_scale).reshape(-1, 1) if a_scale.ndim == 1 and a_scale.size > 1 else widen(a_scale)
    return _requantize(total, rows * widen(b_scale), widen(y_scale), y_zero)


def _qlinear_matmul_float8(
    a: Array,
    a_scale: Array,
    a_zero: Array,
    b: Array,
    b_scale: Array,
    b_zero: Array,
    y_scale: Array,
    y_zero: Array,
) -> Array:
    left = _dequantize_linear(a, widen(a_scale), a_zero)
    right = _dequantize_linear(b, widen(b_scale), b_zero)
    return _quantize_linear(matmul(left, right), widen(y_scale), y_zero)


@define("QLinearConv")
def _qlinear_conv(
    x: Array,
    x_scale: Array,
    x_zero: Array,
    w: Array,
    w_scale: Array,
    w_zero: Array,
    y_scale: Array,
    y_zero: Array,
    b: Array | None = None,
    /,
    **window: Any,
) -> Array:
    """B is int32 in units of x_scale * w_scale; W may have scales and zero points per output channel."""
    total = _integer_conv(x, w, x_zero, w_zero, **window)
    rest = (1,) * (x.ndim - 2)
    if b is not None:
        total = total + b.astype(np.float64).reshape(1, -1, *rest)
    scale = np.float32(scalar(x_scale, "x_scale")) * w_scale.reshape(-1, *rest)
    return _requantize(total, scale, y_scale, y_zero)
