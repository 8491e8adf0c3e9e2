"""What may watch a run: a tracker, a live view, anything with these methods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from cloud.train.reports import EpochReport

if TYPE_CHECKING:
    from cloud.train.keeping.checkpoint import Checkpoints
    from cloud.train.stepping.step import TrainState

__all__ = ["Callback", "Callbacks", "Fitting"]


class Fitting(Protocol):
    """What a callback may ask of the `Trainer` it watches."""

    epochs_done: int
    """Epochs over the trainer's whole life."""
    steps_done: int
    """Steps over the trainer's whole life."""

    @property
    def checkpoints(self) -> Checkpoints | None:
        """Where it saves, if it does."""

    @property
    def stopped(self) -> bool:
        """Whether the last `fit` ended early because `stop` was called."""
        raise NotImplementedError

    def whole_state(self) -> TrainState:
        """Parameters, optimiser and state, every array whole."""
        raise NotImplementedError

    def stop(self) -> None:
        """End `fit` after the present step."""


class Callback:
    """Watches a run; what it does not care for stays as it is here. An error it raises ends training."""

    def started(self, trainer: Fitting) -> None:
        """`fit` begins."""

    def placed(self, plan: Mapping[str, Any]) -> None:
        """Before the first step on devices that a plan shares work out to: what JSON can say of it, its digest too."""

    def stepped(self, step: int, metrics: Mapping[str, float]) -> None:
        """Step number `step` (counted from 1 over the trainer's whole life) is done: means over its rows, "loss" and
        metrics by name, and "examples", their number (float16: "skipped" is 1 for a step left out). Told in order but
        late, several steps at once: nobody waits for the device to tell it."""

    def epoch_done(self, report: EpochReport) -> None:
        """An epoch and its validation are done."""

    def saved(self, path: Path) -> None:
        """A checkpoint is complete."""

    def finished(self, trainer: Fitting) -> None:
        """`fit` ends as it should."""

    def failed(self, error: BaseException) -> None:
        """`fit` ends by this error (a KeyboardInterrupt too), which is raised again afterwards."""


class Callbacks(Callback):
    """Several as one, told in order."""

    def __init__(self, members: Sequence[Callback]) -> None:
        self.members = tuple(members)

    def started(self, trainer: Fitting) -> None:
        """See `Callback`."""
        for member in self.members:
            member.started(trainer)

    def placed(self, plan: Mapping[str, Any]) -> None:
        """See `Callback`."""
        for member in self.members:
            member.placed(plan)

    def stepped(self, step: int, metrics: Mapping[str, float]) -> None:
        """See `Callback`."""
        for member in self.members:
            member.stepped(step, metrics)

    def epoch_done(self, report: EpochReport) -> None:
        """See `Callback`."""
        for member in self.members:
            member.epoch_done(report)

    def saved(self, path: Path) -> None:
        """See `Callback`."""
        for member in self.members:
            member.saved(path)

    def finished(self, trainer: Fitting) -> None:
        """See `Callback`."""
        for member in self.members:
            member.finished(trainer)

    def failed(self, error: BaseException) -> None:
        """See `Callback`."""
        for member in self.members:
            member.failed(error)
