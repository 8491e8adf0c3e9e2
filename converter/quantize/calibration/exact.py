"""Sums that are the same in any order: the results do not depend on how BLAS splits its work, or on threads.

A product of integer matrices is exact in float64 while every partial sum stays below 2**53, and an exact sum does not
depend on the order. So factors are rounded to integers of few enough bits, times a power of two for each row or column;
`product` splits each factor into two such parts and adds three exact products, which leaves a relative error of about
2**-40 instead of BLAS's 2**-53.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

__all__ = ["Gram", "Mean", "product"]

Array = np.ndarray[Any, np.dtype[Any]]
_MANTISSA = 53
_GRID_BITS = 13
"""Bits of an activation in a Gram matrix: sums of 2**27 rows stay exact; the rounding, 2**-14 of a channel's largest
value, is negligible beside the damping of one percent that is added to the matrix."""
_WIDE = 32
"""Columns from which a triangle takes less time than the whole matrix."""


def product(a: Array, b: Array) -> Array:
    """a @ b in float64 for finite `a` [..., m, k] and `b` [..., k, n], the same on any number of threads."""
    bits = max((_MANTISSA - max(a.shape[-1], 1).bit_length()) // 2, 1)
    (a_high, a_low, left), (b_high, b_low, right) = _split(a, -1, bits), _split(b, -2, bits)
    low = a_low @ b_high + a_high @ b_low
    total: Array = np.ldexp(a_high @ b_high + np.ldexp(low, -bits), left + right)
    return total


def _split(x: Array, axis: int, bits: int) -> tuple[Array, Array, Array]:
    """(high, low, e): x = (high + low * 2**-bits) * 2**e, high and low integers of at most `bits` bits."""
    exponent = _exponent(np.abs(x).max(axis=axis, keepdims=True, initial=0)) - bits
    scaled = np.ldexp(x.astype(np.float64), -exponent)
    high = np.rint(scaled)
    return high, np.rint(np.ldexp(scaled - high, bits)), exponent


def _exponent(magnitude: Array) -> Array:
    """The smallest e with magnitude <= 2**e, for each element."""
    return np.asarray(np.frexp(magnitude)[1], np.int64)


class Gram:
    """x' x and the sum of x over rows that arrive in any order and batching; the sums are exactly the same each time.

    `magnitude`: [..., k], the largest absolute value each column will ever have; values beyond it are clamped. Leading
    axes stack independent matrices.
    """

    def __init__(self, magnitude: Array) -> None:
        self._exponent = _exponent(np.asarray(magnitude, np.float64)) - _GRID_BITS
        self._sum = np.zeros((*magnitude.shape, magnitude.shape[-1]))
        self._total = np.zeros(magnitude.shape)
        self.rows = 0

    def add(self, x: Array) -> None:
        """Add the rows of `x` [..., rows, k]."""
        limit = 2.0**_GRID_BITS
        # Multiplying by a power of two is as exact as ldexp and five times faster.
        grid = np.rint(x.astype(np.float64) * np.ldexp(1.0, -self._exponent)[..., None, :])
        grid.clip(-limit, limit, out=grid)
        if grid.shape[-1] < _WIDE:
            self._sum += grid.swapaxes(-1, -2) @ grid
        else:  # matrix by matrix: NumPy then computes one triangle of each and copies the other
            stacked = grid.reshape(-1, *grid.shape[-2:])
            for total, rows in zip(self._sum.reshape(-1, *self._sum.shape[-2:]), stacked, strict=True):
                total += rows.T @ rows
        self._total += grid.sum(axis=-2)
        self.rows += x.shape[-2]
        if self.rows >= 1 << (_MANTISSA - 2 * _GRID_BITS):
            raise OverflowError(f"a Gram matrix of {self.rows} rows is no longer exact; give fewer samples")

    @property
    def matrix(self) -> Array:
        """float64 [..., k, k], the mean of x x' over rows; zeros before the first."""
        exponent = self._exponent[..., :, None] + self._exponent[..., None, :]
        return np.asarray(np.ldexp(self._sum / max(self.rows, 1), exponent))

    @property
    def mean(self) -> Array:
        """float64 [..., k], the mean of x over rows."""
        return np.asarray(np.ldexp(self._total / max(self.rows, 1), self._exponent))

    @property
    def covariance(self) -> Array:
        """float64 [..., k, k]: `matrix` after subtracting the mean from the rows."""
        mean = self.mean
        return np.asarray(self.matrix - mean[..., :, None] * mean[..., None, :])


class Mean:
    """Mean of each channel over parts that arrive in any order: correctly rounded sums of the parts' own sums."""

    def __init__(self) -> None:
        self._parts: list[Array] = []
        self._count = 0

    def add(self, x: Array) -> None:
        """Add one part: `x` [rows, channels], the rows of one sample."""
        self._parts.append(x.astype(np.float64).sum(axis=0))
        self._count += len(x)

    def value(self) -> Array:
        """float64 [channels]."""
        return np.array([math.fsum(column) / max(self._count, 1) for column in np.array(self._parts).T])
