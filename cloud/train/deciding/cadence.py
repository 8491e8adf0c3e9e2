"""When a run evaluates its validation data."""

from __future__ import annotations

import math
from dataclasses import dataclass

from cloud.errors import TrainError
from cloud.train.inputs.feed import ArrayFeed, Feed
from cloud.train.keeping.rewind import Place

__all__ = ["Cadence"]


@dataclass(frozen=True)
class Cadence:
    """`every`: None, at the end of each epoch; a whole number, after that many steps, counted over the whole run; a
    share of an epoch below 1, that often in each epoch and at its end. A run's end is evaluated in any case."""

    every: int | float | None = None
    steps: int = 0
    """Of an epoch; 0 if unknown."""

    def __post_init__(self) -> None:
        if isinstance(self.every, bool) or (self.every is not None and not self.every > 0):
            raise TrainError(
                f"expected to evaluate every 1 or more steps, or every share of an epoch, got {self.every}"
            )
        if isinstance(self.every, float) and self.every > 1:
            raise TrainError(
                f"expected a share of an epoch from above 0 to 1, or a whole number of steps, got {self.every}"
            )

    def over(self, feed: Feed) -> Cadence:
        """The cadence for these batches. Raises TrainError for a share of an epoch whose length is not known."""
        if isinstance(feed, ArrayFeed):
            return Cadence(self.every, feed.steps)
        if isinstance(self.every, float):
            raise TrainError(
                f"evaluating every {self.every} of an epoch needs to know how long one is, which a pipeline does not "
                "say: give a number of steps"
            )
        return self

    def due(self, place: Place) -> bool:
        """Whether a run evaluates here."""
        if place.steps == 0:
            return False
        if isinstance(self.every, float):
            parts = range(1, math.ceil(1 / self.every - 1e-9))
            borders = {max(round(i * self.every * self.steps), 1) for i in parts}
            return place.of_epoch == 0 or place.of_epoch in borders
        return place.of_epoch == 0 if self.every is None else place.steps % self.every == 0
