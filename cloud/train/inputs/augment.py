"""Augmentations: (key, inputs by name) -> changed inputs, run on the device inside the train step."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import jax
import jax.numpy as jnp

__all__ = ["Augment", "random_affine"]

Augment: TypeAlias = Callable[[jax.Array, dict[str, jax.Array]], dict[str, jax.Array]]


def random_affine(*, shift: float = 1.0, zoom: float = 0.1, shear: float = 0.15, fill: float = 0.0) -> Augment:
    """Move, scale and slant every image [batch, channels, height, width] by its own uniform random amounts.

    `shift` is in pixels, `zoom` and `shear` are shares; shearing in both directions gives small rotations. Linear
    interpolation, one axis after the other, as products with small matrices; `fill` is used outside the image.
    """

    def one(key: jax.Array, x: jax.Array) -> jax.Array:
        draws = jax.random.uniform(key, (6, x.shape[0], 1, 1), minval=-1.0, maxval=1.0)
        rows = jnp.moveaxis(_sample(x - fill, *draws[:3]), 2, 3)
        return jnp.moveaxis(_sample(rows, *draws[3:]), 3, 2) + fill

    def _sample(x: jax.Array, move: jax.Array, scale: jax.Array, slant: jax.Array) -> jax.Array:
        """Resample the last axis; `slant` moves each line in proportion to its distance from the middle."""
        lines, size = x.shape[2:]
        place = jnp.arange(size) - (size - 1) / 2
        line = (jnp.arange(lines) - (lines - 1) / 2)[:, None]
        source = place * (1 + zoom * scale) + shear * slant * line + shift * move  # [batch, lines, size]
        weights = jnp.maximum(0, 1 - jnp.abs(source[..., None] - place))
        return jnp.einsum("nhow,nchw->ncho", weights, x)

    return lambda key, inputs: {
        name: one(jax.random.fold_in(key, i), inputs[name]) for i, name in enumerate(sorted(inputs))
    }
