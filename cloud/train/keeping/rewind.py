"""A recent copy of the state, so that a run can return to just before a step that failed.

A step could instead keep its old weights if its loss is not finite: that choice, an elementwise select or a
conditional, costs 16 to 17 % of an Adam step of a perceptron (784-512-512-10, 64 rows, one core). One copy per minute,
and repeating the steps since then, has no measurable cost.
"""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import jax
import numpy as np

from cloud.train.stepping.step import TrainState

__all__ = ["Goal", "Place", "Rewind"]

_EVERY = 60.0
"""Seconds between copies."""


class Place(NamedTuple):
    """A run's position: completed epochs, steps of the current one, steps in total."""

    epochs: int
    of_epoch: int
    steps: int


class Goal(NamedTuple):
    """Where training ends: after this many epochs or steps in total, whichever comes first; None: no limit."""

    epochs: int | None
    steps: int | None

    def reached(self, place: Place) -> bool:
        """Whether training ends here."""
        return place.steps == self.steps or place.epochs == self.epochs

    def epochs_left(self, place: Place, steps: int) -> int:
        """Epochs of this many `steps` until the goal, including incomplete ones."""
        whole = [] if self.epochs is None else [self.epochs - place.epochs]
        return min(whole + ([] if self.steps is None else [-(-(self.steps - place.steps) // max(steps, 1))]))


class Rewind:
    """Holds one copy of a state in host memory; no copy if other processes hold parts of the state."""

    def __init__(self) -> None:
        self._kept: tuple[TrainState, Place] | None = None
        self._taken = 0.0

    @property
    def due(self) -> bool:
        """Is it time for another copy?"""
        return time.monotonic() - self._taken > _EVERY

    def take(self, state: TrainState, place: Place) -> None:
        """Keep a copy of `state`, whose steps are known to be finite."""
        self._taken = time.monotonic()
        if all(leaf.is_fully_addressable for leaf in jax.tree.leaves(state)):
            self._kept = jax.tree.map(lambda leaf: np.array(leaf), state), place

    def back(self, like: TrainState) -> tuple[TrainState, Place] | None:
        """The kept state, placed on devices like `like` (whose values are not used), and its position."""
        if self._kept is None:
            return None
        state, place = self._kept
        return jax.tree.map(lambda kept, now: _as(kept, now), state, like), place


def _as(kept: Any, now: Any) -> Any:
    return jax.device_put(jax.numpy.array(kept), now.sharding)
