"""Operations on spectra (n, frequencies, time, channels): see `table.Operation`.

Masks and the warp are those of SpecAugment (Park et al., "SpecAugment", Interspeech 2019).
"""

from __future__ import annotations

import numpy as np

from cloud.data.augment.sampling import Array, Values, along, by_row, places
from cloud.data.draws import Draws

__all__ = ["frequency_mask", "frequency_shift", "gain", "noise", "time_mask", "time_shift", "time_warp"]


def frequency_mask(x: Array, amount: Array, draws: Draws, values: Values) -> Array:
    """`amount` of the frequencies, side by side, filled."""
    hidden = places(np.rint(amount * x.shape[1]), x.shape[1], draws.uniform())
    return np.where(hidden[:, :, None, None], np.asarray(values[2], x.dtype), x)


def time_mask(x: Array, amount: Array, draws: Draws, values: Values) -> Array:
    """`amount` of the time filled."""
    hidden = places(np.rint(amount * x.shape[2]), x.shape[2], draws.uniform())
    return np.where(hidden[:, None, :, None], np.asarray(values[2], x.dtype), x)


def time_warp(x: Array, amount: Array, draws: Draws, values: Values) -> Array:
    """A point in time, at least as far from both ends, moved by `amount` of the whole; what is on its sides is
    stretched and squeezed evenly."""
    n, f, t, c = x.shape
    far, end = (np.minimum(np.abs(amount), 0.49) * (t - 1))[:, None], t - 1
    before = far + draws.uniform(1) * (end - 2 * far)
    after = before + np.sign(amount)[:, None] * far
    step = np.arange(t)
    early = step * before / np.maximum(after, 1e-9)
    late = end - (end - step) * (end - before) / np.maximum(end - after, 1e-9)
    lines = x.transpose(0, 2, 1, 3).reshape(n, t, f * c)
    return along(lines, np.where(step <= after, early, late)).reshape(n, t, f, c).transpose(0, 2, 1, 3)


def time_shift(x: Array, amount: Array, draws: Draws, values: Values) -> Array:
    """Later by `amount` of the time, in whole steps; the rest is filled."""
    return _shifted(x, amount, 2, values[2])


def frequency_shift(x: Array, amount: Array, draws: Draws, values: Values) -> Array:
    """Higher by `amount` of the frequencies, in whole ones; the rest is filled."""
    return _shifted(x, amount, 1, values[2])


def gain(x: Array, amount: Array, draws: Draws, values: Values) -> Array:
    """Louder: `amount` added to the logarithms."""
    return np.asarray(x + by_row(amount, x))


def noise(x: Array, amount: Array, draws: Draws, values: Values) -> Array:
    """Normal noise of the standard deviation `amount`, in units of the values."""
    return np.asarray(x + by_row(amount, x) * draws.normal(*x.shape[1:]))


def _shifted(x: Array, amount: Array, axis: int, fill: float) -> Array:
    length = x.shape[axis]
    source = np.arange(length) - np.rint(amount * length).astype(np.intp)[:, None]
    shape = (len(x), *(length if k == axis else 1 for k in (1, 2)), 1)
    found = np.take_along_axis(x, np.clip(source, 0, length - 1).reshape(shape), axis)
    return np.where(((source >= 0) & (source < length)).reshape(shape), found, np.asarray(fill, x.dtype))
