"""The matrices of a language model as its file has them: dense, or integers in blocks with scales.

Nothing is read before it is asked for, and large matrices are decoded some rows at a time: a conversion holds what it
writes, and little besides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod

import numpy as np

from converter.errors import ConvertError
from lite_runtime.graph import Array

__all__ = ["AT_ONCE", "Blocked", "Dense", "Matrix", "finite", "packed", "spans"]

AT_ONCE = 1 << 22
"""Elements that are decoded at once."""


@dataclass(frozen=True)
class Dense:
    """A tensor of floats. `rows(begin, end)`: these rows as float32."""

    name: str
    shape: tuple[int, ...]
    rows: Callable[[int, int], Array]
    stored: str = "float32"
    """The type in the file, for the report."""

    def array(self) -> Array:
        """All of it, float32."""
        made = np.empty(self.shape, np.float32)
        for begin, end in spans(self.shape):
            made[begin:end] = self.rows(begin, end)
        return made


@dataclass(frozen=True)
class Blocked:
    """A matrix (n, k) of `(q - zero_point) * scale + offset`, with a scale for `block` neighbours in k.

    `q(begin, end)`: unsigned integers of these rows, (rows, k), one in a byte. `scales` and `offsets` give all rows,
    (n, k / block), float16 (`half`) or float32.
    """

    name: str
    shape: tuple[int, int]
    bits: int
    block: int
    zero_point: int
    q: Callable[[int, int], Array]
    scales: Callable[[], Array]
    offsets: Callable[[], Array] | None
    half: bool
    stored: str

    def integers(self) -> Array:
        """q as MatMulNBits takes it: uint8 (n, k / block, block * bits / 8)."""
        n, k = self.shape
        made = np.empty((n, k * self.bits // 8), np.uint8)
        for begin, end in spans(self.shape):
            made[begin:end] = packed(self.q(begin, end), self.bits)
        return made.reshape(n, k // self.block, -1)


Matrix = Dense | Blocked


def packed(q: Array, bits: int) -> Array:
    """Unsigned integers, one in a byte, as bytes: of two with 4 bits, the first is in the low half."""
    return q if bits == 8 else q[..., ::2] | q[..., 1::2] << 4


def spans(shape: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    """Rows that are decoded together."""
    step = max(1, AT_ONCE // max(1, prod(shape[1:])))
    return ((begin, min(begin + step, shape[0])) for begin in range(0, shape[0], step))


def finite(name: str, array: Array) -> Array:
    """The array itself. Raises ConvertError if it has values that are not finite."""
    if not np.isfinite(array).all():
        raise ConvertError(f"tensor {name!r}: expected finite numbers, got infinity or NaN; the file is damaged")
    return array
