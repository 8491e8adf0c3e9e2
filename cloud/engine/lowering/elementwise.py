"""Arithmetic, comparison, logic, selection and casts, with NumPy's broadcasting."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy.special
import numpy as np
import onnx_ir as ir

from cloud._jax import canonical_dtype
from cloud.engine.lowering.registry import Tensor, is_static, lowering, namespace
from cloud.errors import EngineError
from lite_runtime.operators import OPERATORS

__all__: list[str] = []

def _unary(name: str) -> Callable[..., Tensor]:
    return lambda x: getattr(namespace(x), name)(x)


def _binary(name: str) -> Callable[..., Tensor]:
    return lambda a, b: getattr(namespace(a, b), name)(a, b)


for _record in OPERATORS.values():
    if _record.numpy:
        lowering(_record.name)((_unary if _record.unary else _binary)(_record.numpy))


@lowering("Identity")
def identity(x: Tensor) -> Tensor:
    return x


@lowering("Reciprocal")
def reciprocal(x: Tensor) -> Tensor:
    return 1 / x


@lowering("Erf")
def erf(x: Tensor) -> Tensor:
    return jax.scipy.special.erf(x)


@lowering("IsInf")
def is_inf(x: Tensor, *, detect_negative: int = 1, detect_positive: int = 1) -> Tensor:
    xp = namespace(x)
    infinite = xp.isinf(x)
    if not detect_negative:
        infinite = infinite & (x > 0)
    return infinite if detect_positive else infinite & (x < 0)


@lowering("Div")
def div(a: Tensor, b: Tensor) -> Tensor:
    """Integers divide towards zero."""
    xp = namespace(a, b)
    if not jnp.issubdtype(a.dtype, jnp.integer):
        return xp.divide(a, b)
    quotient = xp.floor_divide(a, b)
    inexact = quotient * b != a
    return quotient + (inexact & ((a < 0) != (b < 0))).astype(quotient.dtype)


@lowering("Mod")
def mod(a: Tensor, b: Tensor, *, fmod: int = 0) -> Tensor:
    xp = namespace(a, b)
    return xp.fmod(a, b) if fmod else xp.mod(a, b)


@lowering("Pow")
def power(base: Tensor, exponent: Tensor) -> Tensor:
    """Power in the base's dtype. Small static integer exponents are multiplications, so the gradient is finite at
    zero."""
    xp = namespace(base, exponent)
    if is_static(exponent) and exponent.size == 1 and exponent.ndim <= base.ndim and exponent.item() in (2, 3):
        squared = base * base
        return squared if exponent.item() == 2 else squared * base
    if not jnp.issubdtype(base.dtype, jnp.integer) or jnp.issubdtype(exponent.dtype, jnp.integer):
        return xp.power(base, exponent.astype(base.dtype))
    return xp.power(base.astype(exponent.dtype), exponent).astype(base.dtype)


@lowering("BitShift")
def bit_shift(x: Tensor, by: Tensor, *, direction: str) -> Tensor:
    xp = namespace(x, by)
    return xp.left_shift(x, by) if direction == "LEFT" else xp.right_shift(x, by)


@lowering("Max")
def maximum(*xs: Tensor) -> Tensor:
    return functools.reduce(namespace(*xs).maximum, xs)


@lowering("Min")
def minimum(*xs: Tensor) -> Tensor:
    return functools.reduce(namespace(*xs).minimum, xs)


@lowering("Sum")
def add_all(*xs: Tensor) -> Tensor:
    return functools.reduce(namespace(*xs).add, xs)


@lowering("Mean")
def mean_of_all(*xs: Tensor) -> Tensor:
    return add_all(*xs) / len(xs)


@lowering("Where")
def where(condition: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return namespace(condition, a, b).where(condition, a, b)


@lowering("Clip")
def clip(x: Tensor, low: Tensor | None = None, high: Tensor | None = None) -> Tensor:
    xp = namespace(x, low, high)
    if low is not None:
        x = xp.maximum(x, low)
    return x if high is None else xp.minimum(x, high)


def _as(x: Tensor, dtype: np.dtype[Any]) -> Tensor:
    if not is_static(x):
        dtype = canonical_dtype(dtype)
    return x.astype(dtype)


@lowering("Cast")
def cast(x: Tensor, *, to: int, saturate: int = 1, round_mode: str = "up") -> Tensor:
    return _as(x, ir.DataType(to).numpy())


@lowering("CastLike")
def cast_like(x: Tensor, like: Tensor, *, saturate: int = 1, round_mode: str = "up") -> Tensor:
    return _as(x, np.dtype(like.dtype))


@lowering("BitCast")
def bit_cast(x: Tensor, *, to: int) -> Tensor:
    """The same bits as another type of the same width; 64-bit types only for constants."""
    dtype = ir.DataType(to).numpy()
    if x.dtype.itemsize != dtype.itemsize:
        raise EngineError(f"expected a type as wide as {x.dtype}, got {dtype}; JAX computes with at most 32 bits")
    return np.ascontiguousarray(x).view(dtype) if is_static(x) else jax.lax.bitcast_convert_type(x, dtype)
