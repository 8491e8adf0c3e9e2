"""Steps and projections in the norms Linf and L2, for rows (rows, ...) float32 of any shape."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["along", "drawn", "length", "project", "random_point", "uphill"]

Array: TypeAlias = npt.NDArray[Any]


def along(values: Array, like: Array) -> Array:
    """(rows,) as (rows, 1, ...), to multiply `like` (rows, ...)."""
    return values.reshape(-1, *[1] * (like.ndim - 1))


def length(x: Array) -> Array:
    """L2 norms (rows, 1, ...), at least 1e-12."""
    flat = x.reshape(len(x), -1)
    return along(np.maximum(np.sqrt(np.einsum("ij,ij->i", flat, flat)), np.float32(1e-12)), x)


def uphill(slope: Array, norm: str) -> Array:
    """The direction of length 1 in which a linear function with this gradient grows most. Zero where it is zero."""
    if norm == "Linf":
        return np.asarray(np.sign(slope))
    far = length(slope)
    if far.min() > 1e-12:
        return np.asarray(slope / far)
    largest = np.abs(slope).reshape(len(slope), -1).max(1)  # its square may be less than float32 has
    scaled = slope / along(np.maximum(largest, np.float32(1e-38)), slope)
    return np.asarray(scaled / length(scaled))


def project(x: Array, moved: Array, epsilon: float, norm: str, low: float, high: float) -> Array:
    """`moved` within epsilon of `x` and within the range."""
    delta, radius = moved - x, np.float32(epsilon)
    if norm == "Linf":
        np.clip(delta, -radius, radius, out=delta)
    else:
        delta *= np.minimum(np.float32(1), radius / length(delta))
    delta += x
    return np.clip(delta, np.float32(low), np.float32(high), out=delta)


def drawn(seed: int, restart: int, rows: Array) -> list[np.random.Generator]:
    """A generator for each row, which depends on seed, restart and the row's index alone, not on its batch."""
    return [np.random.default_rng([seed, restart, int(row)]) for row in rows]


def random_point(
    seed: int, restart: int, rows: Array, x: Array, epsilon: float, norm: str, low: float, high: float
) -> Array:
    """Uniform in the ball around each row, and then within the range."""
    each = drawn(seed, restart, rows)
    if norm == "Linf":
        noise = np.stack([one.random(x.shape[1:], np.float32) for one in each]) * np.float32(2) - np.float32(1)
    else:
        noise = np.stack([one.standard_normal(x.shape[1:], np.float32) for one in each])
        radius = np.array([one.random() for one in each]) ** (1 / x[0].size)
        noise *= along(radius.astype(np.float32), x) / length(noise)
    return np.asarray(np.clip(x + np.float32(epsilon) * noise, np.float32(low), np.float32(high)))
