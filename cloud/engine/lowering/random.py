"""Random numbers, each from the caller's key folded with the node's position; they differ from other runtimes'."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnx_ir as ir

from cloud._jax import canonical_dtype
from cloud.engine.lowering.registry import Context, Tensor, lowering, static_float

__all__: list[str] = []


@lowering("Dropout")
def dropout(
    x: Tensor, ratio: Tensor | None = None, training_mode: Tensor | None = None,
    *, context: Context, seed: int | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Drops and rescales in training (the caller's `train`), the identity otherwise."""
    del training_mode, seed
    rate = 0.5 if ratio is None else static_float(ratio, "the ratio")
    if not context.train or rate == 0.0:
        return x, jnp.ones(x.shape, bool)
    keep = jax.random.bernoulli(context.key(), 1 - rate, x.shape)
    return jnp.where(keep, x / (1 - rate), 0).astype(x.dtype), keep


def _dtype(code: int | None, default: Any = np.float32) -> np.dtype[Any]:
    return canonical_dtype(default if code is None else ir.DataType(code).numpy())


def _normal(context: Context, shape: Sequence[int], dtype: np.dtype[Any], mean: float, scale: float) -> Tensor:
    return mean + scale * jax.random.normal(context.key(), tuple(shape), dtype)


def _uniform(context: Context, shape: Sequence[int], dtype: np.dtype[Any], low: float, high: float) -> Tensor:
    return jax.random.uniform(context.key(), tuple(shape), dtype, low, high)


@lowering("RandomNormal")
def random_normal(
    *, context: Context, shape: Sequence[int], dtype: int | None = None, mean: float = 0.0, scale: float = 1.0,
    seed: float | None = None,
) -> Tensor:  # fmt: skip
    return _normal(context, shape, _dtype(dtype), mean, scale)


@lowering("RandomNormalLike")
def random_normal_like(
    x: Tensor, *, context: Context, dtype: int | None = None, mean: float = 0.0, scale: float = 1.0,
    seed: float | None = None,
) -> Tensor:  # fmt: skip
    return _normal(context, x.shape, _dtype(dtype, x.dtype), mean, scale)


@lowering("RandomUniform")
def random_uniform(
    *, context: Context, shape: Sequence[int], dtype: int | None = None, low: float = 0.0, high: float = 1.0,
    seed: float | None = None,
) -> Tensor:  # fmt: skip
    return _uniform(context, shape, _dtype(dtype), low, high)


@lowering("RandomUniformLike")
def random_uniform_like(
    x: Tensor, *, context: Context, dtype: int | None = None, low: float = 0.0, high: float = 1.0,
    seed: float | None = None,
) -> Tensor:  # fmt: skip
    return _uniform(context, x.shape, _dtype(dtype, x.dtype), low, high)


@lowering("Bernoulli")
def bernoulli(x: Tensor, *, context: Context, dtype: int | None = None, seed: float | None = None) -> Tensor:
    return jax.random.bernoulli(context.key(), x).astype(_dtype(dtype, x.dtype))


@lowering("Multinomial")
def multinomial(
    x: Tensor, *, context: Context, dtype: int = 6, sample_size: int = 1, seed: float | None = None
) -> Tensor:
    """x [batch, classes]: unnormalised log-probabilities."""
    drawn = jax.random.categorical(context.key(), x, axis=-1, shape=(sample_size, x.shape[0]))
    return drawn.T.astype(_dtype(dtype))
