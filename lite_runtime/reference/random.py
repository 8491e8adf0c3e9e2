"""Random numbers. A node with a `seed` always gives the same numbers; without one, new numbers every time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lite_runtime.graph import Array
from lite_runtime.reference.registry import define
from lite_runtime.reference.support import dtype_of, optional_scalar, require, widen

__all__: list[str] = []


def _generator(seed: float | None) -> np.random.Generator:
    """ONNX's seed is a float; its float32 bits seed the generator."""
    return np.random.default_rng(None if seed is None else int(np.float32(seed).view(np.uint32)))


@define("RandomNormal")
def _random_normal(
    shape: Sequence[int],
    dtype: int | str = 1,
    mean: float = 0.0,
    scale: float = 1.0,
    seed: float | None = None,
) -> Array:
    return _generator(seed).normal(mean, scale, tuple(shape)).astype(dtype_of(dtype))


@define("RandomNormalLike")
def _random_normal_like(
    x: Array,
    /,
    dtype: int | str | None = None,
    mean: float = 0.0,
    scale: float = 1.0,
    seed: float | None = None,
) -> Array:
    return _generator(seed).normal(mean, scale, x.shape).astype(x.dtype if dtype is None else dtype_of(dtype))


@define("RandomUniform")
def _random_uniform(
    shape: Sequence[int],
    dtype: int | str = 1,
    high: float = 1.0,
    low: float = 0.0,
    seed: float | None = None,
) -> Array:
    return _generator(seed).uniform(low, high, tuple(shape)).astype(dtype_of(dtype))


@define("RandomUniformLike")
def _random_uniform_like(
    x: Array,
    /,
    dtype: int | str | None = None,
    high: float = 1.0,
    low: float = 0.0,
    seed: float | None = None,
) -> Array:
    return _generator(seed).uniform(low, high, x.shape).astype(x.dtype if dtype is None else dtype_of(dtype))


@define("Bernoulli")
def _bernoulli(x: Array, /, dtype: int | str | None = None, seed: float | None = None) -> Array:
    """1 with the probability given by each element."""
    drawn = _generator(seed).random(x.shape) < widen(x)
    return drawn.astype(x.dtype if dtype is None else dtype_of(dtype))


@define("Multinomial")
def _multinomial(x: Array, /, dtype: int | str = 6, sample_size: int = 1, seed: float | None = None) -> Array:
    """x (batch, classes) unnormalised log-probabilities -> (batch, sample_size) classes."""
    require(x.ndim == 2, f"expected log-probabilities of rank 2, got shape {x.shape}")
    noise = _generator(seed).gumbel(size=(x.shape[0], sample_size, x.shape[1]))
    return np.asarray(np.argmax(x.astype(np.float64)[:, None] + noise, -1).astype(dtype_of(dtype)))


@define("Dropout")
def _dropout(
    x: Array, ratio: Array | None = None, training_mode: Array | None = None, /, seed: int | None = None
) -> tuple[Array, Array]:
    """(x with elements dropped and the rest scaled up, mask of the kept elements). The identity outside training."""
    share = float(optional_scalar(ratio, 0.5, "ratio"))
    if not optional_scalar(training_mode, False, "training_mode") or share == 0:
        return x, np.ones(x.shape, bool)
    require(0 <= share < 1, f"expected a ratio in [0, 1), got {share}")
    kept = np.random.default_rng(seed).random(x.shape) >= share
    return (widen(x) * kept / (1 - share)).astype(x.dtype), kept
