"""Inputs that are already discrete: pixels, samples of an A/D converter, bytes multiplied by a scale.

If all values of an input are multiples of one step, and eight bits can hold them, that step becomes its scale, and
quantising it is lossless.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from converter.quantize.calibration.calibrate import LIMITS, Params
from lite_runtime.graph import Array

__all__ = ["lattice"]

_FEWEST = 16
"""The fewest distinct values of an input that counts as a scaled quantity, not as a flag or class."""
_OFF = 1e-3
"""The largest distance from a multiple, in steps, that float32 arithmetic may cause."""


def lattice(arrays: Iterable[Array], dtype: str = "int8") -> Params | None:
    """The parameters that store every value of `arrays` (float, any shapes) exactly, or None where none do.

    Values that were not seen but are within the type's range fit too; unused integers are shared between both ends,
    unless all values have one sign.
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
