"""Sums of vectors without rounding: the same bits in every order, and however the terms are grouped.

A sum is held in bins of 32 bits, as integers in float64. Bin k holds multiples of 2^(32 k): a term is divided among the
bins by rounding it to multiples of that unit, from the highest bin down, until nothing is left, and every bin is added
up by itself (the binned sums of Demmel and Nguyen, "Parallel Reproducible Summation", IEEE Trans. Computers 2015, with
as many bins as the terms need instead of the highest few). Integers below 2^53 add exactly in any order, so sums of
parts add up to the sum of the whole, bit by bit.
"""

from __future__ import annotations

from math import frexp
from typing import NamedTuple

import numpy as np

from federated.errors import FederatedError
from federated.tree import Array

__all__ = ["Digits", "ExactSum"]

WIDTH = 32
"""Bits of a bin."""
LOWEST, HIGHEST = -34, 15
"""The bins that terms reach: 2^(32 * -34) is less than the least float64."""
LARGEST = 2.0 ** (WIDTH * HIGHEST)
"""The largest magnitude of a term."""
MOST = 1 << 20
"""After so many terms bins are carried over: a term adds up to 2^31 units to a bin, which holds 2^53."""


class Digits(NamedTuple):
    """A sum in base 2^32, of which every value has one form: `digits` uint32 [bins, size], the lowest first, the first
    one that of bin `lowest`; minus 2^(32 (lowest + bins)) where `negative` (bool [size])."""

    lowest: int
    digits: Array
    negative: Array


class ExactSum:
    """The sum of float64 vectors [size]."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._bins: dict[int, Array] = {}
        self._terms = 0
        self._rest, self._part = np.empty(size), np.empty(size)

    def add(self, vector: Array, factor: float = 1.0) -> None:
        """Add factor * vector [size], each product rounded to float64. Raises FederatedError for products that are not
        finite or beyond LARGEST."""
        rest, part = self._rest, self._part
        np.multiply(vector, factor, out=rest, dtype=np.float64)
        # Not by a scalar product: for large vectors BLAS would wake other threads, which cost more than the sum.
        largest = float(np.maximum.reduce(np.abs(rest, out=part), initial=0.0))
        if not largest <= LARGEST:
            raise FederatedError(f"sum: expected finite numbers up to {LARGEST:g}, got {largest:g}")
        self._count(1)
        # The lowest bin whose unit is at least 2^-31 of the largest magnitude.
        at = frexp(largest)[1] // WIDTH
        left = largest > 0
        while left:
            # Adding 1.5 * 2^52 units leaves no bits below a unit: the nearest multiple, ties to even.
            shift = 1.5 * 2.0 ** (52 + WIDTH * at)
            np.add(rest, shift, out=part)
            part -= shift
            rest -= part
            self._into(at, part)
            at -= 1
            left = np.logical_or.reduce(rest)

    def merge(self, other: ExactSum) -> None:
        """Add another sum. Raises FederatedError for one of another size."""
        if other.size != self.size:
            raise FederatedError(f"sum: expected one of {self.size} numbers, got one of {other.size}")
        self._count(other._terms)
        for at, values in other._bins.items():
            self._into(at, values)

    def value(self) -> Array:
        """The sum as float64 [size], within three units of its last place, and a function of the exact sum alone."""
        lowest, digits, negative = self.digits()
        total = np.zeros(self.size)
        carry = np.zeros(self.size, np.int64)
        # In digits from -2^31 to 2^31 the highest one outweighs all others, so that nothing cancels in the sum.
        for at, digit in enumerate(digits, lowest):
            whole = digit + carry
            carry = (whole > 1 << (WIDTH - 1)).astype(np.int64)
            total += np.ldexp(np.float64(whole - (carry << WIDTH)), WIDTH * at)
        return total + np.ldexp(np.float64(carry - negative), WIDTH * (lowest + len(digits)))

    def digits(self) -> Digits:
        """The sum in its one form."""
        used = [at for at, values in self._bins.items() if values.any()]
        lowest, highest = min(used, default=0), max(used, default=0)
        carry, found = np.zeros(self.size, np.int64), []
        at = lowest
        while at <= highest or ((carry != 0) & (carry != -1)).any():
            units = np.ldexp(self._bins[at], -WIDTH * at) if at in self._bins else np.zeros(self.size)
            whole = units.astype(np.int64) + carry
            found.append((whole & (2**WIDTH - 1)).astype(np.uint32))
            carry = whole >> WIDTH
            at += 1
        return _trimmed(lowest, np.array(found), carry < 0)

    @classmethod
    def of(cls, found: Digits) -> ExactSum:
        """The sum with these digits. Raises FederatedError for anything else."""
        lowest, digits, negative = found
        fits = (
            digits.ndim == 2
            and digits.dtype == np.uint32
            and negative.dtype == np.bool_
            and negative.shape == digits.shape[1:]
            and LOWEST <= lowest <= lowest + len(digits) <= HIGHEST + 3
        )
        if not fits:
            raise FederatedError(
                f"sum: expected digits uint32 [bins, size], bool [size] and bins from {LOWEST}, got "
                f"{digits.dtype} {list(digits.shape)}, {negative.dtype} {list(negative.shape)} and {lowest}"
            )
        made = cls(digits.shape[1])
        made._terms = 2  # digits are twice as large as what a term adds to a bin
        for at, digit in enumerate(digits, lowest):
            made._bins[at] = np.ldexp(digit.astype(np.float64), WIDTH * at)
        above = lowest + len(digits)
        made._bins[above] = np.ldexp(-negative.astype(np.float64), WIDTH * above)
        return made

    def _into(self, at: int, values: Array) -> None:
        if at in self._bins:
            self._bins[at] += values
        else:
            self._bins[at] = values.copy()

    def _count(self, terms: int) -> None:
        if self._terms + terms > MOST:
            carried = ExactSum.of(self.digits())
            self._bins, self._terms = carried._bins, carried._terms
        self._terms += terms


def _trimmed(lowest: int, digits: Array, negative: Array) -> Digits:
    """Without low digits that are 0, and high ones that only repeat the sign."""
    sign = np.where(negative, np.uint32(2**WIDTH - 1), np.uint32(0))
    digits = np.vstack([digits, sign])
    first, end = 0, len(digits)
    while first < end - 1 and not digits[first].any():
        first += 1
    while end > first + 1 and (digits[end - 1] == sign).all():
        end -= 1
    digits = digits[first:end]
    return Digits(lowest + first if digits.any() else 0, digits, negative)
