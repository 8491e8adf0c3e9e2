"""Steps and projections in the norms Linf and L2, for rows of any shape; traceable by JAX."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

__all__ = ["along", "keys_of", "length", "project", "random_point", "uphill"]


def along(values: Any, like: Any) -> Any:
    """(rows,) as (rows, 1, ...), to multiply `like` (rows, ...)."""
    return values.reshape(-1, *[1] * (like.ndim - 1))


def length(x: Any) -> Any:
    """L2 norms (rows, 1, ...), at least 1e-12."""
    return along(jnp.maximum(jnp.sqrt((x.reshape(x.shape[0], -1) ** 2).sum(1)), 1e-12), x)


def uphill(slope: Any, norm: str) -> Any:
    """The direction of length 1 in which a linear function with this gradient grows most. Zero where it is zero."""
    if norm == "Linf":
        return jnp.sign(slope)
    scaled = slope / along(jnp.maximum(jnp.abs(slope).reshape(slope.shape[0], -1).max(1), 1e-38), slope)
    return scaled / length(scaled)


def project(x: Any, moved: Any, epsilon: Any, norm: str, low: Any, high: Any) -> Any:
    """`moved` within epsilon of `x` and within the range."""
    delta = moved - x
    inside = jnp.clip(delta, -epsilon, epsilon) if norm == "Linf" else delta * jnp.minimum(1, epsilon / length(delta))
    return jnp.clip(x + inside, low, high)


def keys_of(seed: Any, restart: Any, rows: Any) -> Any:
    """A key for each row, which depends on seed, restart and the row's index alone, not on its batch."""
    key = jax.random.fold_in(jax.random.key(seed), restart)
    return jax.vmap(lambda row: jax.random.fold_in(key, row))(rows)


def random_point(keys: Any, x: Any, epsilon: Any, norm: str, low: Any, high: Any) -> Any:
    """Uniform in the ball around each row, and then within the range."""
    if norm == "Linf":
        noise = jax.vmap(lambda key: jax.random.uniform(key, x.shape[1:], minval=-1.0, maxval=1.0))(keys)
        return jnp.clip(x + epsilon * noise, low, high)
    size = x[0].size
    pairs = jax.vmap(jax.random.split)(keys)
    noise = jax.vmap(lambda key: jax.random.normal(key, x.shape[1:]))(pairs[:, 0])
    radius = jax.vmap(jax.random.uniform)(pairs[:, 1]) ** (1 / size)
    return jnp.clip(x + epsilon * along(radius, x) * noise / length(noise), low, high)
