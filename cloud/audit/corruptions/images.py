"""Corruptions of images (n, height, width, channels), 0 to 1. Levels are those of CIFAR-10-C for small images and of
ImageNet-C for large ones, where these have the corruption; lengths are shares of a side otherwise."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy import ndimage

from cloud.audit.corruptions.jpeg import jpeg
from cloud.audit.corruptions.rows import Corruption, Scales
from lite_runtime.graph import Array

__all__ = ["IMAGES"]

_MOST_STEPS = 12
"""Positions along the line of a motion blur, between which images are interpolated."""


def _gaussian_noise(x: Array, level: float, _: Scales, random: np.random.Generator) -> Array:
    return np.asarray(x + random.standard_normal(x.shape, np.float32) * level)


def _shot_noise(x: Array, level: float, _: Scales, random: np.random.Generator) -> Array:
    return np.asarray(random.poisson(np.clip(x, 0, 1) * level) / level)


def _impulse_noise(x: Array, level: float, _: Scales, random: np.random.Generator) -> Array:
    """Black and white values, each at half of the level's share."""
    drawn = random.random(x.shape, np.float32)
    return np.where(drawn < level / 2, 0.0, np.where(drawn < level, 1.0, x))


def _gaussian_blur(x: Array, level: float, _: Scales, __: np.random.Generator) -> Array:
    return np.asarray(ndimage.gaussian_filter(x, (0, level, level, 0), mode="nearest"))


def _defocus_blur(x: Array, level: float, _: Scales, __: np.random.Generator) -> Array:
    """A disk: each pixel of the kernel by the share of it that the disk covers."""
    reach, parts = int(np.ceil(level + 0.5)), 8
    fine = (np.arange((2 * reach + 1) * parts) + 0.5) / parts - reach - 0.5
    disk = (fine[:, None] ** 2 + fine[None] ** 2 <= level**2).astype(np.float64)
    kernel = disk.reshape(2 * reach + 1, parts, 2 * reach + 1, parts).sum((1, 3))
    return np.asarray(ndimage.convolve(x, (kernel / kernel.sum())[None, :, :, None].astype(np.float32), mode="nearest"))


def _motion_blur(x: Array, level: float, _: Scales, random: np.random.Generator) -> Array:
    """The mean along a line of random direction."""
    length = level * min(x.shape[1:3])
    angle = random.uniform(0, np.pi, len(x))
    steps = np.linspace(-length / 2, length / 2, min(_MOST_STEPS, max(2, int(np.ceil(length)) + 1)))
    rows, columns = np.mgrid[: x.shape[1], : x.shape[2]]
    total = np.zeros_like(x)
    for t in steps:
        down, right = ((t * f(angle))[:, None, None] for f in (np.sin, np.cos))
        total += _sampled(x, rows + down, columns + right)
    return np.asarray(total / len(steps))


def _brightness(x: Array, level: float, _: Scales, __: np.random.Generator) -> Array:
    """More of the greatest channel (the V of HSV), hue and saturation unchanged."""
    value = x.max(axis=3, keepdims=True)
    brighter = np.clip(value + level, 0, 1)
    return np.asarray(np.where(value > 1e-6, x * (brighter / np.maximum(value, 1e-6)), brighter))


def _darkness(x: Array, level: float, _: Scales, __: np.random.Generator) -> Array:
    return np.asarray(x * np.float32(1 - level))


def _contrast(x: Array, level: float, _: Scales, __: np.random.Generator) -> Array:
    mean = x.mean(axis=(1, 2), keepdims=True)
    return np.asarray((x - mean) * np.float32(level) + mean)


def _pixelate(x: Array, level: float, _: Scales, __: np.random.Generator) -> Array:
    """Fewer pixels, each the mean of its area, shown as squares."""
    for axis in (1, 2):
        size = x.shape[axis]
        fewer = max(1, int(size * level))
        edges = np.linspace(0, size, fewer + 1)
        places = np.arange(size)
        shares = np.clip(np.minimum(edges[1:, None], places + 1) - np.maximum(edges[:-1, None], places), 0, None)
        small = np.moveaxis(np.tensordot(shares / shares.sum(1, keepdims=True), x, (1, axis)), 0, axis)
        x = np.take(small, np.minimum((places + 0.5) * fewer / size, fewer - 1).astype(int), axis=axis)
    return x


def _rotation(x: Array, level: float, _: Scales, random: np.random.Generator) -> Array:
    """Around the middle, to either side."""
    angle = np.deg2rad(level) * random.choice([-1.0, 1.0], len(x))
    rows, columns = np.mgrid[: x.shape[1], : x.shape[2]] - (np.array(x.shape[1:3]) - 1)[:, None, None] / 2
    sine, cosine = (f(angle)[:, None, None] for f in (np.sin, np.cos))
    middle = (np.array(x.shape[1:3]) - 1) / 2
    return _sampled(x, rows * cosine - columns * sine + middle[0], rows * sine + columns * cosine + middle[1])


def _translation(x: Array, level: float, _: Scales, random: np.random.Generator) -> Array:
    """In a random direction."""
    angle = random.uniform(0, 2 * np.pi, len(x))
    far = level * min(x.shape[1:3])
    rows, columns = np.mgrid[: x.shape[1], : x.shape[2]]
    return _sampled(x, rows + far * np.sin(angle)[:, None, None], columns + far * np.cos(angle)[:, None, None])


def _sampled(x: Array, rows: Array, columns: Array) -> Array:
    """Values at real places (n, height, width) between pixels, bilinear; outside, those of the border."""
    high, wide = x.shape[1:3]
    rows, columns = np.clip(rows, 0, high - 1), np.clip(columns, 0, wide - 1)
    r, c = np.floor(rows).astype(int), np.floor(columns).astype(int)
    below, beside = (part[..., None].astype(np.float32) for part in (rows - r, columns - c))
    s, q, i = np.minimum(r + 1, high - 1), np.minimum(c + 1, wide - 1), np.arange(len(x))[:, None, None]
    upper = x[i, r, c] * (1 - beside) + x[i, r, q] * beside
    return np.asarray(upper * (1 - below) + (x[i, s, c] * (1 - beside) + x[i, s, q] * beside) * below)


def _jpeg(x: Array, level: float, _: Scales, __: np.random.Generator) -> Array:
    return jpeg(x, int(level))


_colours: Callable[[tuple[int, ...]], bool] = lambda shape: shape[3] in (1, 3)  # noqa: E731

IMAGES: tuple[Corruption, ...] = (
    Corruption("gaussian_noise", _gaussian_noise, (0.04, 0.06, 0.08, 0.09, 0.10), "standard deviation",
               (0.08, 0.12, 0.18, 0.26, 0.38)),
    Corruption("shot_noise", _shot_noise, (500, 250, 100, 75, 50), "photons of white", (60, 25, 12, 5, 3)),
    Corruption("impulse_noise", _impulse_noise, (0.01, 0.02, 0.03, 0.05, 0.07), "share of values",
               (0.03, 0.06, 0.09, 0.17, 0.27)),
    Corruption("gaussian_blur", _gaussian_blur, (0.4, 0.6, 0.7, 0.8, 1.0), "standard deviation in pixels",
               (1, 2, 3, 4, 6)),
    Corruption("defocus_blur", _defocus_blur, (0.7, 0.9, 1.1, 1.4, 1.8), "radius in pixels", (3, 4, 6, 8, 10)),
    Corruption("motion_blur", _motion_blur, (0.05, 0.08, 0.11, 0.14, 0.18), "length, share of a side"),
    Corruption("brightness", _brightness, (0.05, 0.10, 0.15, 0.20, 0.30), "added", (0.1, 0.2, 0.3, 0.4, 0.5)),
    Corruption("darkness", _darkness, (0.2, 0.35, 0.5, 0.65, 0.8), "share of light lost"),
    Corruption("contrast", _contrast, (0.75, 0.5, 0.4, 0.3, 0.15), "share that is left", (0.4, 0.3, 0.2, 0.1, 0.05)),
    Corruption("jpeg", _jpeg, (80, 65, 58, 50, 40), "quality", (25, 18, 15, 10, 7), _colours),
    Corruption("pixelate", _pixelate, (0.95, 0.9, 0.85, 0.75, 0.65), "share of a side's pixels",
               (0.6, 0.5, 0.4, 0.3, 0.25)),
    Corruption("rotation", _rotation, (5, 10, 15, 20, 30), "degrees"),
    Corruption("translation", _translation, (0.03, 0.06, 0.09, 0.12, 0.16), "share of a side"),
)  # fmt: skip
