"""Connects a trainer to its checkpoints: when one is due, what it contains, whether it fits the present training."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from cloud.errors import CheckpointError
from cloud.train.inputs.feed import ArrayFeed, Feed, PipelineFeed
from cloud.train.keeping.about import About
from cloud.train.keeping.agreement import Agreement
from cloud.train.keeping.checkpoint import Checkpoints, Restored
from cloud.train.keeping.rewind import Place
from cloud.train.many.processes import Heartbeat
from cloud.train.reports import Evaluation
from cloud.train.stepping.step import TrainState

__all__ = ["Keeper"]


class Keeper:
    """Decides after every step, the same in all processes, whether to save and whether to stop. Without `checkpoints`
    it never saves."""

    def __init__(
        self, checkpoints: Checkpoints | None, seed: int, lower: Callable[[str], bool] = lambda name: name == "loss"
    ) -> None:
        """`lower`: whether less of validation's "loss" or a metric is better."""
        self.checkpoints = checkpoints
        self._seed, self._lower = seed, lower
        self._data: Mapping[str, Any] = {}
        self._resumed: About | None = None
        self._agreement, self._heart = Agreement(), Heartbeat()
        self._at, self._time = Place(0, 0, 0), time.monotonic()

    def begin(self, feed: Feed, place: Place) -> None:
        """Training begins at `place` with these batches. Raises CheckpointError if a checkpoint from the middle of an
        epoch used other batches."""
        self._data = _facts(feed)
        was, self._resumed = self._resumed, None
        if was is not None and was.place == place and place.of_epoch and dict(was.data) != self._data:
            raise CheckpointError(
                f"the checkpoint is from the middle of an epoch over {dict(was.data)}; this data is {self._data}. Go "
                "on with the same data and batches, or set trainer.steps_of_epoch = 0 to restart the epoch"
            )

    def after_step(self, steps: int, stop: bool) -> tuple[bool, bool]:
        """(save, stop): what to do after `steps` steps; `stop`: this process wants to stop."""
        self._heart.beat()
        kept = self.checkpoints
        if kept is None:
            return False, self._agreement.ask(stop)[0]
        late = kept.seconds is not None and time.monotonic() - self._time >= kept.seconds
        save, stop = self._agreement.ask(late, stop)
        return save or (kept.steps is not None and steps - self._at.steps >= kept.steps), stop

    def after_epoch(self, stop: bool, validation: Evaluation | None) -> tuple[bool, bool]:
        """The same at the end of an epoch."""
        kept = self.checkpoints
        _, stop = self._agreement.ask(False, stop, now=True)
        if kept is None:
            return False, stop
        return (kept.steps is None and kept.seconds is None) or self._score(validation) is not None, stop

    def after_evaluation(self, validation: Evaluation) -> bool:
        """Whether to save after an evaluation between two steps of an epoch."""
        return self._score(validation) is not None

    def save(self, state: TrainState, place: Place, validation: Evaluation | None = None) -> list[Path]:
        """Begin to save; returns checkpoints that were completed since the last call."""
        if self.checkpoints is None:
            return []
        about = About(place, self._seed, self._data, self._score(validation), self.checkpoints.facts)
        self.checkpoints.save(state, about)
        self._at, self._time = place, time.monotonic()
        return self.checkpoints.finished()

    def end(self, state: TrainState, place: Place) -> list[Path]:
        """Save what is not saved yet, and wait until it is."""
        if self.checkpoints is None:
            return []
        return [*(self.save(state, place) if place != self._at else []), *self.checkpoints.wait()]

    def abandon(self) -> list[Path]:
        """After an error: wait for what is being written."""
        if self.checkpoints is None:
            return []
        self.checkpoints.settle()
        return self.checkpoints.finished()

    def restore(self, like: TrainState | Callable[[Mapping[str, Any]], TrainState], best: bool) -> Restored:
        """See `Trainer.resume`."""
        if self.checkpoints is None:
            raise CheckpointError(
                "expected a trainer with checkpoints to resume from: Trainer(checkpoints=folder), in a TOML file "
                '[checkpoint] folder = "kept"'
            )
        found = self.checkpoints.restore(like, best=best)
        if found.about.seed != self._seed:
            raise CheckpointError(
                f"checkpoint {found.path.name} is from a run with seed {found.about.seed}, this one has {self._seed}: "
                "examples and random numbers would differ; train with that seed"
            )
        self._resumed, self._at = found.about, found.about.place
        return found

    def _score(self, validation: Evaluation | None) -> float | None:
        """A checkpoint's score: larger is better."""
        name = self.checkpoints.best if self.checkpoints is not None else ""
        if not name or validation is None:
            return None
        if name != "loss" and name not in validation.metrics:
            known = ", ".join(["loss", *validation.metrics])
            raise CheckpointError(f"expected the best checkpoint to be chosen by one of {known}; got {name!r}")
        value = validation.loss if name == "loss" else validation.metrics[name]
        return -value if self._lower(name) else value


def _facts(feed: Feed) -> dict[str, Any]:
    """What identifies the batches, as far as it is available at no cost."""
    if isinstance(feed, ArrayFeed):
        return {"examples": feed.data.size, "batch": feed.size, "last": feed.last}
    pipeline = getattr(feed.pipeline, "fingerprint", "") if isinstance(feed, PipelineFeed) else ""
    return {"pipeline": str(pipeline)}
