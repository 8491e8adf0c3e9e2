"""Quantisation, with gradients that pass straight through the rounding.

Rounding has derivative zero almost everywhere; training uses the derivative of the identity instead, and zero where the
result saturates (Bengio, Leonard & Courville, 2013, arXiv:1308.3432). The rest is differentiated by the chain rule:

    y = (clip(round(x / s) + z, low, high) - z) * s
    dy/dx = 1 inside, 0 outside
    dy/ds = round(x / s) - x / s inside, low - z or high - z outside

The second is the gradient of learned step sizes (Esser et al., 2020, LSQ, arXiv:1902.08153), without its gradient
scale. A NaN stays NaN: integers cannot represent it, but the floats used in their place can.

Integers have no gradients. So `straight_through` implements a DequantizeLinear together with the QuantizeLinear or
DynamicQuantizeLinear that it reads, and keeps the integers between them as floats; `cloud.engine.compiling` finds the
pairs. Results are bit-equal to ONNX's on CPU; GPU division is exact within two units in the last place, so a number
halfway between two integers may be rounded to the other one.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnx_ir as ir

from cloud._jax import canonical_dtype
from cloud.engine.lowering.registry import Tensor, is_static, lowering, normalise_axes
from cloud.errors import EngineError
from lite_runtime.reference.quantize import dequantize as reference_dequantize
from lite_runtime.reference.quantize import integer_range
from lite_runtime.reference.quantize import quantize as reference_quantize

__all__ = ["straight_through"]


@lowering("QuantizeLinear")
def quantize_linear(
    x: Tensor, scale: Tensor, zero: Tensor | None = None,
    *, axis: int = 1, block_size: int = 0, output_dtype: int = 0, precision: int = 0, saturate: int = 1,
) -> Tensor:  # fmt: skip
    """Quantise to integers; 8-bit floats are not supported."""
    dtype = _stored(zero, output_dtype)
    if is_static(x, scale, zero):
        return reference_quantize(x, scale, zero, axis, block_size, output_dtype, precision, saturate)
    whole = _whole(x, scale, zero, dtype, axis, block_size, precision)
    return jnp.nan_to_num(whole, nan=integer_range(dtype)[0]).astype(dtype)


@lowering("DequantizeLinear")
def dequantize_linear(
    q: Tensor, scale: Tensor, zero: Tensor | None = None, *, axis: int = 1, block_size: int = 0, output_dtype: int = 0
) -> Tensor:
    if is_static(q, scale, zero):
        return reference_dequantize(q, scale, zero, axis, block_size, output_dtype)
    return _real(q, scale, zero, axis, block_size, output_dtype)


@lowering("DynamicQuantizeLinear")
def dynamic_quantize_linear(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """uint8 over the range of x itself; scale and zero point have no gradient."""
    numbers = jax.lax.stop_gradient(x)
    low, high = jnp.min(numbers, initial=0), jnp.max(numbers, initial=0)
    scale = _divided(high - low, jnp.float32(255))
    scale = jnp.where(scale == 0, jnp.float32(1), scale)
    zero = jnp.clip(jnp.round(_divided(-low, scale)), 0, 255)
    y = _rounded(_divided(numbers, scale), zero, 0, 255)
    return y.astype(jnp.uint8), scale, zero.astype(jnp.uint8)


def straight_through(
    x: Tensor, scale: Tensor, zero: Tensor | None, back_scale: Tensor, back_zero: Tensor | None,
    *, quantize: Mapping[str, Any], dequantize: Mapping[str, Any],
) -> Tensor:  # fmt: skip
    """x quantised and dequantised again, with the operands and attributes of both operators."""
    attributes = {"axis": 1, "block_size": 0, "output_dtype": 0} | dict(dequantize)
    if is_static(x, scale, zero):
        between = quantize_linear(x, scale, zero, **quantize)
    else:
        dtype = _stored(zero, quantize.get("output_dtype", 0))
        settings = {name: quantize.get(name, default) for name, default in _DEFAULTS.items()}
        between = _whole(x, scale, zero, dtype, **settings)
    return dequantize_linear(between, back_scale, back_zero, **attributes)


_DEFAULTS = {"axis": 1, "block_size": 0, "precision": 0}


def _stored(zero: Tensor | None, output_dtype: int) -> np.dtype[Any]:
    dtype = np.dtype(zero.dtype) if zero is not None else np.dtype(np.uint8)
    if zero is None and output_dtype:
        dtype = ir.DataType(output_dtype).numpy()
    if not _is_integer(dtype):
        raise EngineError(f"expected quantisation to integers of at most 16 bits, got {dtype}")
    return dtype


def _is_integer(dtype: Any) -> bool:
    return bool(jnp.issubdtype(dtype, jnp.integer))


def _whole(
    x: Tensor, scale: Tensor, zero: Tensor | None, dtype: np.dtype[Any], axis: int, block_size: int, precision: int
) -> Tensor:
    """x quantised to integers of `dtype`, kept as floats. Computed in float32 (float64 if the scale is)."""
    exact = canonical_dtype(ir.DataType(precision).numpy() if precision else scale.dtype)
    wide = canonical_dtype(np.float64 if exact == np.float64 else np.float32)
    low, high = integer_range(dtype)
    step = _spread(scale, x.shape, axis, block_size, "scales").astype(wide)
    shift = wide.type(0) if zero is None else _spread(zero, x.shape, axis, block_size, "zero points").astype(wide)
    quotient = _divided(jnp.asarray(x).astype(exact).astype(wide), step)
    return _rounded(quotient.astype(exact).astype(wide), shift, low, high)


def _real(q: Tensor, scale: Tensor, zero: Tensor | None, axis: int, block_size: int, output_dtype: int) -> Tensor:
    dtype = canonical_dtype(ir.DataType(output_dtype).numpy() if output_dtype else scale.dtype)
    wide = canonical_dtype(np.float64 if dtype == np.float64 else np.float32)
    large = _is_integer(q.dtype) and np.dtype(q.dtype).itemsize > 2
    values = q.astype(canonical_dtype(np.int64)) if large else q.astype(wide)
    if zero is not None:
        values = values - _spread(zero, q.shape, axis, block_size, "zero points").astype(values.dtype)
    values = values.astype(wide) * _spread(scale, q.shape, axis, block_size, "scales").astype(wide)
    return values.astype(dtype)


def _spread(by: Tensor, shape: tuple[int, ...], axis: int, block_size: int, what: str) -> Tensor:
    """One number for all, one for each index of `axis`, or one for each block along it, broadcastable to `shape`"""
    if by.size == 1 and by.ndim <= 1:
        return by.reshape(())
    (axis,) = normalise_axes((axis,), len(shape))
    wanted = tuple(-(-n // max(block_size, 1)) if i == axis else n for i, n in enumerate(shape))
    wanted = wanted if block_size else (shape[axis],)
    if by.shape != wanted:
        raise EngineError(f"expected {what} of shape {list(wanted)}, got {list(by.shape)}")
    if not block_size:
        return by.reshape([-1 if i == axis else 1 for i in range(len(shape))])
    return jnp.take(jnp.repeat(by, block_size, axis), np.arange(shape[axis]), axis)


def _divided(x: Tensor, step: Tensor) -> Tensor:
    """x / step, rounded once. XLA replaces division by a broadcast value with multiplication by its reciprocal, which
    rounds twice; so the divisor is made to depend on x."""
    return x / jnp.where(x == x, step, 0)


@partial(jax.custom_jvp, nondiff_argnums=(2, 3))
def _rounded(x: Tensor, zero: Tensor, low: int, high: int) -> Tensor:
    """The nearest integer (halves to even) plus `zero`, clipped to `low` and `high`; NaN stays."""
    return jnp.clip(jnp.round(x) + zero, low, high)


@_rounded.defjvp
def _rounded_jvp(low: int, high: int, primals: Any, tangents: Any) -> tuple[Tensor, Tensor]:
    whole = jnp.round(primals[0]) + primals[1]
    tangent = jnp.where((whole >= low) & (whole <= high), tangents[0], 0)
    return jnp.clip(whole, low, high), tangent
