"""Random affine transformations of the example's digits in training."""

from __future__ import annotations

import jax

from cloud.train import BACKGROUND, random_affine

_MOVE = random_affine(shift=0.5, zoom=0.1, shear=0.2, fill=BACKGROUND)


def slightly(key: jax.Array, inputs: dict[str, jax.Array]) -> dict[str, jax.Array]:
    """A random transformation per image: shifts up to half a pixel, scales up to a tenth, shears up to a fifth."""
    return _MOVE(key, inputs)
