"""Random numbers for the rows of columns: each row's follow from (seed, epoch, salt, key), whatever rows are together.

SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014) as a function of a
counter, so that all rows are computed at once: number k of a row is mix(state + (k + 1) * golden).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Draws", "States", "folded", "state_of"]

States = npt.NDArray[np.uint64]
"""The state of each row's stream, [rows]."""

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_MASK = (1 << 64) - 1


class Draws:
    """Random numbers for rows; every call gives new ones."""

    def __init__(self, states: States) -> None:
        self._states, self._taken = states, 0

    def __len__(self) -> int:
        return len(self._states)

    def part(self, number: int) -> Draws:
        """Other streams of the same rows, which do not depend on how much was drawn from these."""
        return Draws(folded(self._states, number))

    def rows(self, chosen: npt.NDArray[Any]) -> Draws:
        """The streams of some rows, from their beginning."""
        return Draws(self._states[chosen])

    def uniform(self, *shape: int) -> npt.NDArray[np.float64]:
        """Numbers from 0 to below 1, [rows, *shape]."""
        return (self._bits(shape) >> np.uint64(11)).astype(np.float64) * 2.0**-53

    def integers(self, below: int, *shape: int) -> npt.NDArray[np.intp]:
        """Whole numbers from 0 to below `below`, [rows, *shape]."""
        return (self.uniform(*shape) * below).astype(np.intp)

    def normal(self, *shape: int) -> npt.NDArray[np.float32]:
        """Normally distributed numbers, [rows, *shape]; two of each 64 bits by the method of Box and Muller."""
        count = math.prod(shape)
        bits = self._bits((-(-count // 2),))
        radius = ((bits >> np.uint64(32)) + np.uint64(1)).astype(np.float32)
        radius *= np.float32(2.0**-32)
        np.log(radius, out=radius)
        radius *= np.float32(-2)
        np.sqrt(radius, out=radius)
        angle = (bits & np.uint64(0xFFFFFFFF)).astype(np.float32)
        angle *= np.float32(2 * np.pi * 2.0**-32)
        both = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)], axis=1)
        return both[:, :count].reshape(len(self), *shape)

    def _bits(self, shape: tuple[int, ...]) -> npt.NDArray[np.uint64]:
        count = math.prod(shape)
        steps = np.arange(self._taken + 1, self._taken + count + 1, dtype=np.uint64) * _GOLDEN
        self._taken += count
        return _mixed(self._states[:, None] + steps).reshape(len(self), *shape)


def state_of(parts: Iterable[int]) -> States:
    """The state [1] of whole numbers of at least 0, in this order; one of 2^64 or more counts as several."""
    state = np.zeros(1, np.uint64)
    for part in parts:
        while True:
            state, part = folded(state, part & _MASK), part >> 64
            if not part:
                break
    return state


def folded(states: States, values: npt.NDArray[Any] | int) -> States:
    """States that depend on a further whole number too, one for each row or one for all."""
    added = _mixed(np.atleast_1d(np.asarray(values)).astype(np.uint64) + _GOLDEN)
    return _mixed((states + _GOLDEN) ^ added)


def _mixed(bits: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    bits = bits ^ (bits >> np.uint64(30))
    bits *= _FIRST
    bits ^= bits >> np.uint64(27)
    bits *= _SECOND
    bits ^= bits >> np.uint64(31)
    return bits
