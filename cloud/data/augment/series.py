"""Operations on series of sensors (n, time, channels): see `table.Operation`.

After Um et al., "Data augmentation of wearable sensor data for Parkinson's disease monitoring using convolutional
neural networks", ICMI 2017; slices after Le Guennec et al., AALTD 2016.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from cloud.data.augment.sampling import Array, Values, along, by_row, places
from cloud.data.draws import Draws

__all__ = [
    "drop", "jitter", "magnitude_warp", "permute", "rotate", "scale", "time_mask", "time_shift", "time_slice",
    "time_warp",
]  # fmt: skip

_KNOTS = 6
"""Of a smooth random curve: one at each end, and Um et al.'s four between."""


def jitter(x: Array, amount: Array, draws: Draws, values: Values) -> Array:
    """Normal noise with `amount` of each channel's standard deviation within the window."""
    width = by_row(amount, x) * x.std(1, keepdims=True)
    return np.asarray(x + width * draws.normal(*x.shape[1:]))


def scale(x: Array, amount: Array, draws: Draws, values: Values) -> Array:
    """Each channel times its own factor, normal about 1 with the standard deviation `amount`."""
    return np.asarray(x * (1 + by_row(amount, x) * draws.normal(1, x.shape[2])))


def magnitude_warp(x: Array, amount: Array, draws: Draws, values: Values) -> Array:
    """Each channel times a smooth curve about 1 with the standard deviation `amount` at its knots."""
    curve = _curves(draws.normal(x.shape[2], _KNOTS), x.shape[1]).transpose(0, 2, 1)
    return np.asarray((x * (1 + amount[:, None, None] * curve)).astype(x.dtype))


def time_warp(x: Array, amount: Array, draws: Draws, values: Values) -> Array:
    """Time passes at a speed that varies smoothly about 1, with the standard deviation `amount` at its knots; beginning
    and end stay."""
    steps = x.shape[1]
    speed = np.maximum(1 + amount[:, None] * _curves(draws.normal(_KNOTS), steps), 0.1)
    at = np.cumsum(speed, 1) - speed[:, :1]
    return along(x, at * ((steps - 1) / np.maximum(at[:, -1:], 1e-9)))


def time_shift(x: Array, amount: Array, draws: Draws, values: Values) -> Array:
    """Later by `amount` of the window, in whole steps; what leaves at the end comes back at the beginning."""
    steps = x.shape[1]
    source = (np.arange(steps) - np.rint(amount * steps).astype(np.intp)[:, None]) % steps
    return np.take_along_axis(x, source[:, :, None], 1)


def time_slice(x: Array, amount: Array, draws: Draws, values: Values) -> Array:
    """A part of the window, shorter by `amount` of it, stretched to its length."""
    steps = x.shape[1]
    start = draws.uniform(1) * amount[:, None] * (steps - 1)
    return along(x, start + np.arange(steps) * (1 - amount[:, None]))


def time_mask(x: Array, amount: Array, draws: Draws, values: Values) -> Array:
    """`amount` of the window filled."""
    hidden = places(np.rint(amount * x.shape[1]), x.shape[1], draws.uniform())
    return np.where(hidden[:, :, None], np.asarray(values[2], x.dtype), x)


def drop(x: Array, amount: Array, draws: Draws, values: Values) -> Array:
    """Each channel filled with the probability `amount`, as if its sensor had failed."""
    return np.where(draws.uniform(1, x.shape[2]) < amount[:, None, None], np.asarray(values[2], x.dtype), x)


def permute(x: Array, amount: Array, draws: Draws, values: Values) -> Array:
    """1 + amount (rounded) parts of equal length in another order."""
    steps, parts = x.shape[1], np.minimum(1 + np.rint(amount), x.shape[1]).astype(np.intp)
    rank = draws.uniform(int(parts.max()))
    part = np.arange(steps) * parts[:, None] // steps
    order = np.argsort(np.take_along_axis(rank, part, 1), axis=1, kind="stable")
    return np.take_along_axis(x, order[:, :, None], 1)


def rotate(x: Array, amount: Array, draws: Draws, values: Values) -> Array:
    """The device turned by `amount` degrees about a random axis: every three channels are x, y and z of one sensor, and
    all of them turn together. Raises ValueError unless the channels are three, six, …"""
    if x.shape[2] % 3:
        raise ValueError(
            f"expected three channels (x, y, z) for each sensor to rotate, got {x.shape[2]} channels: choose other "
            "operations, or name the axes of the data with axes="
        )
    axis = draws.normal(3).astype(np.float64)
    axis /= np.maximum(np.linalg.norm(axis, axis=1, keepdims=True), 1e-9)
    turn, cross = np.deg2rad(amount)[:, None, None], np.zeros((len(x), 3, 3))
    for first, second, third in ((0, 1, 2), (1, 2, 0), (2, 0, 1)):
        cross[:, second, first], cross[:, first, second] = axis[:, third], -axis[:, third]
    matrix = np.eye(3) + np.sin(turn) * cross + (1 - np.cos(turn)) * (cross @ cross)  # Rodrigues
    three = x.reshape(len(x), -1, 3)  # (n, steps * sensors, 3)
    return np.asarray((three @ matrix.transpose(0, 2, 1).astype(x.dtype)).reshape(x.shape))


def _curves(knots: Array, steps: int) -> Array:
    """Natural cubic splines (…, steps) through knots (…, _KNOTS) at equal distances."""
    return knots @ _basis(steps)


@lru_cache(maxsize=16)
def _basis(steps: int) -> Array:
    from scipy.interpolate import CubicSpline

    spline = CubicSpline(np.linspace(0, 1, _KNOTS), np.eye(_KNOTS), bc_type="natural")
    return np.asarray(spline(np.linspace(0, 1, steps))).T
