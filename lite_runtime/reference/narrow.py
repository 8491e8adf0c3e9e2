"""Weights stored in narrow types: integers of less than a byte, two per byte, so that NumPy alone can load them; and
products with them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import cache
from math import prod
from typing import Any

import numpy as np

from lite_runtime.graph import Array
from lite_runtime.reference.activation import activate
from lite_runtime.reference.linear import matmul
from lite_runtime.reference.quantize import dequantize
from lite_runtime.reference.registry import define
from lite_runtime.reference.support import require

__all__ = ["pack4", "unpack4"]


def pack4(values: Array) -> Array:
    """4-bit values (of any integer type) as uint8[ceil(n / 2)]: row-major, the first value in the low half."""
    halves = np.zeros(values.size + values.size % 2, np.uint8)
    halves[: values.size] = values.astype(np.int8).ravel().view(np.uint8) & 15
    return halves[::2] | halves[1::2] << 4


@cache
def _pairs(signed: bool) -> Array:
    """Both values of every byte, as one 16-bit word in memory order."""
    byte = np.arange(256, dtype=np.uint16)
    first, second = byte & 15, byte >> 4
    if signed:
        first, second = (((half ^ 8) - 8) & 255 for half in (first, second))
    if sys.byteorder == "big":
        first, second = second, first
    return first | second << 8


@define("Unpack4")
def unpack4(packed: Array, /, shape: Sequence[int], signed: int) -> Array:
    """The inverse of `pack4`: int8 of -8 to 7 if `signed`, otherwise uint8 of 0 to 15, of `shape`."""
    count = prod(shape)
    require(packed.dtype == np.uint8 and packed.ndim == 1, f"expected uint8[n], got {packed.dtype}{list(packed.shape)}")
    require(
        packed.size == -(-count // 2), f"expected {-(-count // 2)} bytes for shape {tuple(shape)}, got {packed.size}"
    )
    pairs = np.take(_pairs(bool(signed)), packed)
    return pairs.view(np.int8 if signed else np.uint8)[:count].reshape(tuple(shape))


@define("NarrowMatMul")
def _narrow_matmul(
    a: Array,
    b: Array,
    scale: Array | None = None,
    zero_point: Array | None = None,
    bias: Array | None = None,
    residual: Array | None = None,
    /,
    shape: Sequence[int] = (),
    signed: int = 0,
    block_size: int = 0,
    transB: int = 0,
    activation: str = "",
    **parameters: Any,
) -> Array:
    """act(A @ W + bias + R), where W is the float32 matrix that B represents: float16 unchanged; integers minus their
    zero point, times their scale. There is one scale in total, one per column, or one per `block_size` adjacent
    elements along the reduction, as in DequantizeLinear. With `shape`, B is `pack4` of a matrix of that shape, int8 if
    `signed`, otherwise uint8. transB: W is stored with its columns as rows."""
    values = unpack4(b, shape, signed) if shape else b
    require(values.ndim == 2, f"expected a matrix of weights, got shape {values.shape}")
    if scale is None:
        require(values.dtype == np.float16, f"expected float16 without a scale, got {values.dtype}")
        require(zero_point is None and not block_size, "expected no zero point and no blocks with float16")
        wide = values.astype(np.float32)
    else:
        axis = int(not transB) if not block_size else int(bool(transB))
        wide = dequantize(values, scale, zero_point, axis=axis, block_size=block_size)
    y = matmul(a, wide.T if transB else wide)
    for term in (bias, residual):
        if term is not None:
            fits = np.broadcast_shapes(term.shape, y.shape) == y.shape
            require(fits, f"expected terms that broadcast to {y.shape}, got shape {term.shape}")
            y = y + term
    return activate(y, activation, **parameters)
