"""Callbacks: what may observe a run (a tracker, a live view, any object with these methods)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from cloud.train.reports import EpochReport, Evaluation

if TYPE_CHECKING:
    from cloud.train.keeping.checkpoint import Checkpoints
    from cloud.train.stepping.step import TrainState
    from cloud.train.tasks.task import Task

__all__ = ["Callback", "Callbacks", "Fitting"]


class Fitting(Protocol):
    """The part of `Trainer` that a callback may use."""

    epochs_done: int
    """Epochs done since the trainer was created."""
    steps_done: int
    """Steps done since the trainer was created."""

    task: Task
    """What it trains."""
    input_shapes: Mapping[str, Any] | None
    """The inputs of a batch as `jax.ShapeDtypeStruct`s; None before the first step."""

    @property
    def checkpoints(self) -> Checkpoints | None:
        """Where it saves checkpoints, or None."""

    @property
    def stopped(self) -> bool:
        """Whether the last `fit` ended early because `stop` was called."""
        raise NotImplementedError

    @property
    def pace(self) -> float:
        """The factor of the learning rate, below 1 after a plateau."""
        raise NotImplementedError

    def whole_state(self) -> TrainState:
        """Parameters, optimiser and state, every array gathered."""
        raise NotImplementedError

    def stop(self) -> None:
        """End `fit` after the current step."""


class Callback:
    """Observes a run; override the methods that are needed. An error that a callback raises ends training."""

    def started(self, trainer: Fitting) -> None:
        """`fit` begins."""

    def placed(self, plan: Mapping[str, Any]) -> None:
        """Before the first step that is sharded by a plan: the plan as JSON data, including its digest."""

    def stepped(self, step: int, metrics: Mapping[str, float]) -> None:
        """Step number `step` (counted from 1 since the trainer was created) is done: means over its rows, "loss" and
        metrics by name, and "examples", their number (float16: "skipped" is 1 for a skipped step). Called in order but
        late, for several steps at once, because training does not wait for the device to report."""

    def evaluated(self, step: int, found: Evaluation) -> None:
        """Validation data were evaluated after step number `step`, also between the steps of an epoch."""

    def noted(self, step: int, text: str) -> None:
        """Something was decided after step number `step`: a lower rate, an early end, other frozen layers."""

    def epoch_done(self, report: EpochReport) -> None:
        """An epoch and its validation are done."""

    def saved(self, path: Path) -> None:
        """A checkpoint is complete."""

    def finished(self, trainer: Fitting) -> None:
        """`fit` ends without an error."""

    def failed(self, error: BaseException) -> None:
        """`fit` ends with this error (a KeyboardInterrupt too), which is raised again afterwards."""


class Callbacks(Callback):
    """Several callbacks as one, called in order."""

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

    def evaluated(self, step: int, found: Evaluation) -> None:
        """See `Callback`."""
        for member in self.members:
            member.evaluated(step, found)

    def noted(self, step: int, text: str) -> None:
        """See `Callback`."""
        for member in self.members:
            member.noted(step, text)

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
