"""Corruptions of series of sensors (n, channels, time). Levels are in each channel's standard deviations over all
examples, shares, degrees, samples or bits."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from cloud.audit.corruptions.rows import Corruption, Scales
from lite_runtime.graph import Array

__all__ = ["SERIES", "held", "moved"]


def _noise(x: Array, level: float, scales: Scales, random: np.random.Generator) -> Array:
    return np.asarray(x + random.standard_normal(x.shape, np.float32) * scales.deviation * np.float32(level))


def _signs(x: Array, random: np.random.Generator) -> Array:
    """One for each example and channel."""
    return random.choice([-1.0, 1.0], (*x.shape[:2], 1))


def _bias(x: Array, level: float, scales: Scales, random: np.random.Generator) -> Array:
    return np.asarray(x + _signs(x, random) * scales.deviation * level)


def _drift(x: Array, level: float, scales: Scales, random: np.random.Generator) -> Array:
    """An error that grows from zero, in a straight line."""
    return np.asarray(x + _signs(x, random) * scales.deviation * level * np.linspace(0, 1, x.shape[2]))


def _scale(x: Array, level: float, scales: Scales, random: np.random.Generator) -> Array:
    """Another gain of each channel, around its mean."""
    return np.asarray(scales.mean + (x - scales.mean) * (1 + level * _signs(x, random)))


def _rotation(x: Array, level: float, _: Scales, random: np.random.Generator) -> Array:
    """Every three channels are a vector; all of an example turn alike, around a random axis (Rodrigues' formula)."""
    axis = random.standard_normal((len(x), 3))
    axis /= np.sqrt((axis**2).sum(1, keepdims=True))
    turn = np.deg2rad(level)
    vectors = x.reshape(len(x), -1, 3, x.shape[2])
    along = (vectors * axis[:, None, :, None]).sum(2, keepdims=True) * axis[:, None, :, None]
    across = np.cross(np.broadcast_to(axis[:, None, :, None], vectors.shape), vectors, axis=2)
    return np.asarray(vectors * np.cos(turn) + across * np.sin(turn) + along * (1 - np.cos(turn))).reshape(x.shape)


def _drop_outs(x: Array, level: float, _: Scales, random: np.random.Generator) -> Array:
    """Bursts in which the last value repeats, each a twentieth of the length."""
    length = max(1, x.shape[2] // 20)
    parts = random.random((len(x), -(-x.shape[2] // length))) < level
    return held(x, np.repeat(parts, length, axis=1)[:, : x.shape[2]])


def held(x: Array, lost: Array) -> Array:
    """x (n, channels, time) where samples `lost` (n, time) repeat the last one before; the first is never lost."""
    places = np.where(lost, 0, np.arange(x.shape[2]))
    places[:, 0] = 0
    return np.take_along_axis(x, np.maximum.accumulate(places, axis=1)[:, None], axis=2)


def _dead_channels(x: Array, level: float, scales: Scales, random: np.random.Generator) -> Array:
    """Random channels at their mean: a share of all, at least one."""
    lost = max(1, round(level * x.shape[1]))
    order = np.argsort(random.random(x.shape[:2]), axis=1)
    return np.where((order < lost)[..., None], scales.mean, x)


def _shift(x: Array, level: float, _: Scales, random: np.random.Generator) -> Array:
    return moved(x, level, random, lambda rows: rows[..., :1])


def moved(x: Array, share: float, random: np.random.Generator, fill: Callable[[Array], Array]) -> Array:
    """Later or earlier in time (n, channels, time) by a share of the length; what comes in is `fill` of the row as it
    begins, and of the reversed row where it ends."""
    by = min(x.shape[2] - 1, max(1, round(share * x.shape[2])))
    later = np.concatenate([np.repeat(fill(x), by, axis=2), x[..., :-by]], axis=2)
    earlier = np.concatenate([x[..., by:], np.repeat(fill(x[..., ::-1]), by, axis=2)], axis=2)
    return np.where(random.random((len(x), 1, 1)) < 0.5, later, earlier)


def _jitter(x: Array, level: float, _: Scales, random: np.random.Generator) -> Array:
    """Samples taken a little too early or too late."""
    return _at(x, np.arange(x.shape[2]) + random.standard_normal((len(x), x.shape[2])) * level)


def _rate(x: Array, level: float, _: Scales, random: np.random.Generator) -> Array:
    """A clock that is too fast or too slow, right in the middle."""
    middle = (x.shape[2] - 1) / 2
    by = 1 + level * random.choice([-1.0, 1.0], (len(x), 1))
    return _at(x, middle + (np.arange(x.shape[2]) - middle) * by)


def _at(x: Array, times: Array) -> Array:
    """x (n, channels, time) at real times (n, time), linear between samples; outside, the first or last."""
    times = np.clip(times, 0, x.shape[2] - 1)
    before = np.minimum(np.floor(times).astype(int), max(x.shape[2] - 2, 0))
    part = (times - before)[:, None]
    after = np.minimum(before + 1, x.shape[2] - 1)
    first, second = (np.take_along_axis(x, place[:, None], axis=2) for place in (before, after))
    return np.asarray(first * (1 - part) + second * part)


def _quantised(x: Array, level: float, scales: Scales, _: np.random.Generator) -> Array:
    """Steps of a converter over each channel's range."""
    step = np.maximum((scales.high - scales.low) / (2**level - 1), 1e-30)
    return np.asarray(np.rint((x - scales.low) / step) * step + scales.low)


SERIES: tuple[Corruption, ...] = (
    Corruption("sensor_noise", _noise, (0.05, 0.1, 0.2, 0.4, 0.8), "standard deviations"),
    Corruption("bias", _bias, (0.1, 0.2, 0.4, 0.7, 1.0), "standard deviations"),
    Corruption("drift", _drift, (0.2, 0.4, 0.8, 1.4, 2.0), "standard deviations at the end"),
    Corruption("scale", _scale, (0.05, 0.1, 0.2, 0.35, 0.5), "share of the gain"),
    Corruption("axis_rotation", _rotation, (5, 10, 20, 45, 90), "degrees",
               fits=lambda shape: shape[1] % 3 == 0),
    Corruption("drop_outs", _drop_outs, (0.05, 0.1, 0.2, 0.35, 0.5), "share of the time"),
    Corruption("dead_channels", _dead_channels, (0.1, 0.2, 0.3, 0.4, 0.5), "share of the channels",
               fits=lambda shape: shape[1] > 1),
    Corruption("time_shift", _shift, (0.05, 0.1, 0.15, 0.2, 0.3), "share of the length"),
    Corruption("jitter", _jitter, (0.25, 0.5, 1.0, 2.0, 4.0), "samples"),
    Corruption("clock", _rate, (0.02, 0.05, 0.1, 0.2, 0.3), "share of the rate"),
    Corruption("quantisation", _quantised, (8, 6, 5, 4, 3), "bits"),
)  # fmt: skip
