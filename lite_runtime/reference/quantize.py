"""Quantisation: real numbers to integers and back."""

from __future__ import annotations

import numpy as np

from lite_runtime.graph import Array
from lite_runtime.reference.casting import cast
from lite_runtime.reference.registry import define
from lite_runtime.reference.support import NARROW_INTS, axis_of, dtype_of, is_integer, require

__all__ = ["LEAST_SPAN", "dequantize", "integer_range", "quantize"]

LEAST_SPAN = np.float32(2.0**-100)
"""Ranges below this are treated as all zeros where x is multiplied by 1 / scale, which must not overflow."""


def integer_range(dtype: np.dtype) -> tuple[int, int]:
    """(least, greatest) value of an integer type, including those narrower than a byte."""
    if dtype.name in NARROW_INTS:
        return NARROW_INTS[dtype.name]
    return int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)


def _spread(x: Array, shape: tuple[int, ...], axis: int, block_size: int, what: str) -> Array:
    """Scales or zero points broadcast to `shape`: one in total, one per index of `axis`, or one per block along it."""
    if x.size == 1 and x.ndim <= 1:
        return x.reshape(())
    axis = axis_of(axis, len(shape))
    if not block_size:
        require(
            x.shape == (shape[axis],), f"expected {what} of shape ({shape[axis]},) along axis {axis}, got {x.shape}"
        )
        return x.reshape([-1 if i == axis else 1 for i in range(len(shape))])
    _check_blocks(x, shape, axis, block_size, what)
    return np.take(np.repeat(x, block_size, axis), np.arange(shape[axis]), axis)


def _check_blocks(x: Array, shape: tuple[int, ...], axis: int, block_size: int, what: str) -> None:
    expected = tuple(-(-n // block_size) if i == axis else n for i, n in enumerate(shape))
    require(x.shape == expected, f"expected {what} of shape {expected} for blocks of {block_size}, got {x.shape}")


@define("QuantizeLinear")
def quantize(
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
    """x / scale rounded half to even, plus the zero point, saturated; for float types the cast rounds."""
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
def dequantize(
    x: Array,
    scale: Array,
    zero_point: Array | None = None,
    /,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: int | str = 0,
) -> Array:
    """(x - zero point) * scale, in the type of the scale or `output_dtype`. Large constants are converted here when
    loaded, so everything is done in place: besides the result no memory of the size of x is needed, unless x is wider
    than 16 bits."""
    dtype = dtype_of(output_dtype) if output_dtype else scale.dtype
    wide = np.dtype(np.float64 if dtype == np.float64 else np.float32)
    narrow = x.dtype.name in NARROW_INTS or x.dtype.itemsize <= 2
    between = np.dtype(np.int64) if is_integer(x.dtype) and not narrow else wide
    values = x.astype(between)
    if zero_point is not None:
        _in_place(np.subtract, values, zero_point.astype(between), axis, block_size, "x_zero_point")
    values = values.astype(wide, copy=False)
    _in_place(np.multiply, values, scale.astype(wide), axis, block_size, "x_scale")
    return values.astype(dtype, copy=False)


def _in_place(fn: np.ufunc, values: Array, by: Array, axis: int, block_size: int, what: str) -> None:
    """values = fn(values, by), with `by` as in `_spread`: for blocks the axis is split, so that `by` is not copied."""
    if not block_size or (by.size == 1 and by.ndim <= 1):
        fn(values, _spread(by, values.shape, axis, 0, what), out=values)
        return
    _check_blocks(by, values.shape, axis_of(axis, values.ndim), block_size, what)
    values, by = np.moveaxis(values, axis, 0), np.moveaxis(by, axis, 0)
    whole = len(values) // block_size
    blocks = values[: whole * block_size].reshape(whole, block_size, *values.shape[1:])  # a view: one axis is split
    fn(blocks, by[:whole, None], out=blocks)
    rest = values[whole * block_size :]
    fn(rest, by[whole:], out=rest)


@define("DynamicQuantizeLinear")
def _dynamic_quantize_linear(
    x: Array, /, kept: int = 0, dtype: str = "uint8", scheme: str = ""
) -> tuple[Array, Array, Array]:
    """x quantised over its own range, widened to include 0, in 255 steps: (y, scale, zero point). All zeros: scale 1.

    uint8: ONNX's operator. int8: XNNPACK's, which multiplies by 1 / scale and moves the zero point to the nearer end;
    or by `scheme` SYMMETRIC or ASYMMETRIC that of LiteRT's own kernels, which round halves away from zero
    (kernels/internal/optimized/neon_tensor_utils.cc): without a zero point and in 254 steps, or with one.
    With kept=k > 0 each index of the first k axes has its own range, and scale and zero point have the rank of x with
    size 1 in the other axes.
    """
    require(dtype in ("uint8", "int8"), f"expected dtype uint8 or int8, got {dtype!r}")
    require(scheme in SCHEMES, f"expected scheme to be one of {', '.join(map(repr, SCHEMES))}, got {scheme!r}")
    require(not scheme or dtype == "int8", f"expected dtype int8 with a scheme, got {dtype!r}")
    require(0 <= kept < max(x.ndim, 1), f"expected kept in [0, {max(x.ndim, 1) - 1}] for rank {x.ndim}, got {kept}")
    ends = np.iinfo(dtype)
    steps, scale, zero = (_unsigned_steps if dtype == "uint8" else _SCHEMES[scheme])(x, *_range(x, kept))
    whole = halves_away(steps) if scheme else np.rint(steps)
    y = np.nan_to_num(whole.astype(np.float64) + zero, nan=ends.min)
    return np.clip(y, ends.min, ends.max).astype(dtype), scale, np.asarray(zero).astype(dtype)


def _range(x: Array, kept: int) -> tuple[Array, Array]:
    """(smallest, largest) of 0 and the numbers at each index of the first `kept` axes."""
    axes, numbers = tuple(range(kept, x.ndim)), np.where(np.isnan(x), np.float32(0), x)
    low = numbers.min(axis=axes, initial=0, keepdims=kept > 0)
    return np.asarray(low), np.asarray(numbers.max(axis=axes, initial=0, keepdims=kept > 0))


def whole_rows(x: Array, scheme: str) -> tuple[Array, Array]:
    """(rows of integers without their zero points, scales) by a scheme of DynamicQuantizeLinear."""
    q, scale, zero = _dynamic_quantize_linear(x, kept=1, dtype="int8", scheme=scheme)
    return q.astype(np.int64) - zero, scale


def _unsigned_steps(x: Array, low: Array, high: Array) -> tuple[Array, Array, Array]:
    """(x / scale, scale, zero point)."""
    scale = np.asarray((high - low) / np.float32(255), np.float32)
    scale = np.where(scale == 0, np.float32(1), scale)
    zero = np.clip(np.nan_to_num(np.rint(-low / scale), nan=0), 0, 255)
    return np.asarray(x / scale), scale, zero


def _signed_steps(x: Array, low: Array, high: Array) -> tuple[Array, Array, Array]:
    """(x * inverse, scale, zero point), as in xnn_qd8_asymmetric_quantization_params: the zero point is chosen so that
    either -128 or 127 is represented exactly, whichever loses less of the range by rounding."""
    span, least, most = high - low, np.float32(-128), np.float32(127)
    inverse = np.where(span < LEAST_SPAN, np.float32(1), np.float32(255) / span)
    first, last = low * inverse, high * inverse
    zero = np.where((least + first) + (most + last) > 0, least - first, most - last)
    zero = np.where(zero > least, np.minimum(zero, most), least)
    return x * inverse, np.float32(1) / inverse, np.rint(zero)


def _symmetric_steps(x: Array, low: Array, high: Array) -> tuple[Array, Array, Array]:
    """(x * inverse, scale, 0)."""
    reach, most = np.maximum(-low, high), np.float32(127)
    none = reach == 0
    inverse = np.where(none, np.float32(0), most / np.where(none, np.float32(1), reach))
    return x * inverse, np.where(none, np.float32(1), reach / most), np.zeros_like(reach)


def _asymmetric_steps(x: Array, low: Array, high: Array) -> tuple[Array, Array, Array]:
    """(x * inverse, scale, zero point); the zero point is computed in float64."""
    span = (high - low).astype(np.float64)
    none = span == 0
    step = np.where(none, 1, span / 255)
    first, last = low / step, high / step
    zero = np.where(128 + np.abs(first) < 127 + np.abs(last), -128 - first, 127 - last)
    zero = np.where(none, 0, np.clip(np.nan_to_num(halves_away(zero), nan=127), -128, 127))
    scale = step.astype(np.float32)
    inverse = np.where(none | (scale == 0), np.float32(0), np.float32(1) / np.where(scale == 0, np.float32(1), scale))
    return x * inverse, scale, zero


def halves_away(x: Array) -> Array:
    """Whole numbers, halves away from zero, by adding a half."""
    return np.asarray(np.trunc(x + np.copysign(x.dtype.type(0.5), x)))


_SCHEMES = {"": _signed_steps, "SYMMETRIC": _symmetric_steps, "ASYMMETRIC": _asymmetric_steps}
SCHEMES = tuple(_SCHEMES)
"""How DynamicQuantizeLinear finds the integers of int8: XNNPACK's, and those of LiteRT's own kernels."""


@define("LookupTable")
def _lookup_table(x: Array, table: Array, /) -> Array:
    """table[x - the least value of x's type]: any function of one byte."""
    require(x.dtype.name in ("uint8", "int8"), f"expected x of uint8 or int8, got {x.dtype}")
    require(table.shape == (256,), f"expected a table of shape (256,), got {table.shape}")
    return np.asarray(table[x.astype(np.int64) - int(np.iinfo(x.dtype).min)])
