"""Corruptions of tables (n, features). Levels are shares of the values, or in each feature's standard deviations."""

from __future__ import annotations

import numpy as np

from cloud.audit.corruptions.rows import Corruption, Scales
from lite_runtime.graph import Array

__all__ = ["TABLES"]


def _missing(x: Array, level: float, scales: Scales, random: np.random.Generator) -> Array:
    """Values replaced by their feature's mean."""
    return np.where(random.random(x.shape) < level, scales.mean, x)


def _noise(x: Array, level: float, scales: Scales, random: np.random.Generator) -> Array:
    return np.asarray(x + random.standard_normal(x.shape, np.float32) * scales.deviation * np.float32(level))


def _scale(x: Array, level: float, scales: Scales, random: np.random.Generator) -> Array:
    """Another gain of each value, around its feature's mean."""
    return np.asarray(scales.mean + (x - scales.mean) * (1 + level * random.choice([-1.0, 1.0], x.shape)))


def _swapped(x: Array, level: float, _: Scales, random: np.random.Generator) -> Array:
    """Values of other rows: right of themselves, wrong together."""
    order = np.argsort(random.random(x.shape), axis=0)
    return np.where(random.random(x.shape) < level, np.take_along_axis(x, order, axis=0), x)


def _outliers(x: Array, level: float, scales: Scales, random: np.random.Generator) -> Array:
    """Values at one end of their feature's range."""
    ends = np.where(random.random(x.shape) < 0.5, scales.low, scales.high)
    return np.where(random.random(x.shape) < level, ends, x)


SHARES = (0.02, 0.05, 0.1, 0.2, 0.35)

TABLES: tuple[Corruption, ...] = (
    Corruption("missing", _missing, (0.05, 0.1, 0.2, 0.35, 0.5), "share of the values"),
    Corruption("noise", _noise, (0.05, 0.1, 0.2, 0.4, 0.8), "standard deviations"),
    Corruption("scale", _scale, (0.05, 0.1, 0.2, 0.35, 0.5), "share of the gain"),
    Corruption("swapped", _swapped, SHARES, "share of the values"),
    Corruption("outliers", _outliers, SHARES, "share of the values"),
)  # fmt: skip
