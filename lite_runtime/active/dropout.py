"""Answers of one model under random dropout, on the device: what BALD compares.

`converter.dropout_inputs` makes every Dropout of a network a product with an input, the mask; a mask of ones is the
network without dropout, so that one bundle serves both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from lite_runtime.errors import InputError
from lite_runtime.graph import Array, Value

__all__ = ["MASK", "dropout_draws", "without_dropout"]

MASK = "dropout_mask:"
"""How the names of masks begin; what follows is the rate and the node's name: `dropout_mask:0.5:head`."""


def without_dropout(inputs: Sequence[Value]) -> dict[str, Array]:
    """Masks of ones by name, for the inputs of a signature that are masks: the plain prediction."""
    return {value.name: np.ones(_shape(value), np.float32) for value in inputs if value.name.startswith(MASK)}


def dropout_draws(
    predict: Callable[[Mapping[str, Array]], Array], inputs: Sequence[Value], draws: int = 20, seed: int = 0
) -> Array:
    """What `predict` answers for `draws` random choices of what is dropped: (draws, n, classes).

    predict: masks by name to probabilities (n, classes) of the same rows. inputs: the signature's, as `Model.inputs`
    has them. A choice is the same for all rows of a draw, as one sample of the weights is. Raises InputError for a
    model without masks and for fewer than 2 draws.
    """
    masks = without_dropout(inputs)
    if not masks:
        raise InputError("expected a bundle with dropout masks as inputs; convert dropout_inputs(model) instead")
    if draws < 2:
        raise InputError(f"expected at least 2 draws, got {draws}")
    rng = np.random.default_rng(seed)
    return np.stack([predict({name: _drawn(name, mask, rng) for name, mask in masks.items()}) for _ in range(draws)])


def _drawn(name: str, ones: Array, rng: np.random.Generator) -> Array:
    """Zeros with the mask's rate, and elsewhere what keeps the mean."""
    rate = _rate(name)
    return np.where(rng.random(ones.shape) < rate, 0.0, 1.0 / (1.0 - rate)).astype(np.float32)


def _rate(name: str) -> float:
    words = name[len(MASK) :].partition(":")[0]
    try:
        rate = float(words)
    except ValueError:
        rate = -1.0
    if not 0 <= rate < 1:
        raise InputError(f"input {name!r}: expected a rate from 0 to below 1 after {MASK!r}, got {words!r}")
    return rate


def _shape(value: Value) -> tuple[int, ...]:
    """One row: masks are the same for all."""
    shape = tuple(value.shape or ())
    if any(not isinstance(size, int) for size in shape):
        raise InputError(f"input {value.name!r}: expected a mask of fixed shape, got {list(shape)}")
    return tuple(int(size) for size in shape if size is not None)
