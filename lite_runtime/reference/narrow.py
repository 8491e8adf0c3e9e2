"""Integers of less than a byte, as a bundle stores them: two a byte, so that NumPy alone can load them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import cache
from math import prod

import numpy as np

from lite_runtime.graph import Array
from lite_runtime.reference.registry import define
from lite_runtime.reference.support import require

__all__ = ["pack4"]


def pack4(values: Array) -> Array:
    """4-bit values (any integer type, signed or not) as uint8[ceil(n / 2)]: row-major, the first in the low half."""
    halves = np.zeros(values.size + values.size % 2, np.uint8)
    halves[: values.size] = values.astype(np.int8).ravel().view(np.uint8) & 15
    return halves[::2] | halves[1::2] << 4


@cache
def _pairs(signed: bool) -> Array:
    """Both values of every byte, as one 16-bit word in memory's order."""
    byte = np.arange(256, dtype=np.uint16)
    first, second = byte & 15, byte >> 4
    if signed:
        first, second = (((half ^ 8) - 8) & 255 for half in (first, second))
    if sys.byteorder == "big":
        first, second = second, first
    return first | second << 8


@define("Unpack4")
def _unpack4(packed: Array, /, shape: Sequence[int], signed: int) -> Array:
    """`pack4` undone: int8 of -8 to 7 where `signed`, else uint8 of 0 to 15, of `shape`."""
    count = prod(shape)
    require(packed.dtype == np.uint8 and packed.ndim == 1, f"expected uint8[n], got {packed.dtype}{list(packed.shape)}")
    require(
        packed.size == -(-count // 2), f"expected {-(-count // 2)} bytes for shape {tuple(shape)}, got {packed.size}"
    )
    pairs = np.take(_pairs(bool(signed)), packed)
    return pairs.view(np.int8 if signed else np.uint8)[:count].reshape(tuple(shape))
