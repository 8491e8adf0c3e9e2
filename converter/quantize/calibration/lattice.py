"""Inputs that come in steps already: pixels, samples of a converter, bytes made real by a scale.

Where all values of an input lie on multiples of one step, and no more of them than eight bits hold, that step is its
scale, and quantising it loses nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from converter.quantize.calibration.calibrate import LIMITS, Params
from lite_runtime.graph import Array

__all__ = ["lattice"]

_FEWEST = 16
"""Different values from which an input is a scale of something and no flag or class."""
_OFF = 1e-3
"""How far from a multiple, in steps, float32 arithmetic may have put a value."""


def lattice(arrays: Iterable[Array], dtype: str = "int8") -> Params | None:
    """The parameters that store every value of `arrays` (float, any shapes) exactly, or None where none do.

    Values that were not seen but lie within the type's range of steps fit too; room that is left over is shared between
    both ends, unless all values have one sign.
    """
    first, last = LIMITS[dtype]
    found = np.zeros(0)
    for array in arrays:
        found = np.union1d(found, np.asarray(array, np.float64))
        if found.size > last - first + 1:
            return None
    if found.size < _FEWEST:
        return None
    least = np.diff(found).min()
    count = np.rint((found[-1] - found[0]) / least)
    if not 0 < count <= last - first:
        return None
    step = (found[-1] - found[0]) / count
    places = found / step
    if np.abs(places - np.rint(places)).max() > _OFF:
        return None
    low, high = int(np.rint(places[0])), int(np.rint(places[-1]))
    if high - min(low, 0) > last - first or max(high, 0) - low > last - first:
        return None
    low, high = min(low, 0), max(high, 0)
    room = last - first - (high - low)
    below = 0 if low == 0 else room if high == 0 else room // 2
    return Params(float(np.float32(step)), first - low + below, dtype)
