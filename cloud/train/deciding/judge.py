"""What follows from evaluations: an early end, and a lower rate. Each is counted in evaluations, not in epochs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from cloud.errors import CheckpointError, TrainError
from cloud.train.reports import Evaluation

__all__ = ["EarlyStopping", "Judge", "Plateau", "Verdict"]

Mode = Literal["", "min", "max"]


@dataclass(frozen=True)
class EarlyStopping:
    """Ends a run when `metric` (of validation: "loss" or a metric's name) has not become better by more than
    `min_delta` in `patience` evaluations one after another. `mode`: whether smaller ("min") or larger ("max") values
    are better; "" for what the metric's name says. `restore`: at the end of the run, the weights are those of the best
    evaluation; a checkpoint that is saved at the end still continues the run itself."""

    patience: int = 5
    min_delta: float = 0.0
    metric: str = "loss"
    mode: Mode = ""
    restore: bool = True

    def __post_init__(self) -> None:
        _check("early stopping", self.patience, self.min_delta, self.mode)


@dataclass(frozen=True)
class Plateau:
    """Multiplies the rate by `factor` when `metric` has not become better by more than `min_delta` in `patience`
    evaluations one after another, but not below `least` of the schedule's rate. The first `cooldown` evaluations after
    that are not counted. `mode`: see `EarlyStopping`."""

    factor: float = 0.5
    patience: int = 3
    min_delta: float = 0.0
    metric: str = "loss"
    mode: Mode = ""
    cooldown: int = 0
    least: float = 0.0

    def __post_init__(self) -> None:
        _check("a lower rate", self.patience, self.min_delta, self.mode)
        if not 0 < self.factor < 1:
            raise TrainError(f"expected a factor between 0 and 1 for the rate, got {self.factor}")
        if not 0 <= self.least <= 1 or self.cooldown < 0:
            raise TrainError(
                f"expected a least share from 0 to 1 and a cooldown of at least 0, got {self.least} and {self.cooldown}"
            )


def _check(what: str, patience: int, min_delta: float, mode: str) -> None:
    if patience < 1:
        raise TrainError(f"expected a patience of at least 1 evaluation for {what}, got {patience}")
    if not (min_delta >= 0 and math.isfinite(min_delta)):
        raise TrainError(f"expected min_delta of at least 0 for {what}, got {min_delta}")
    if mode not in ("", "min", "max"):
        raise TrainError(f'expected mode to be "min", "max" or "", got {mode!r}')


class Verdict(NamedTuple):
    """What follows from an evaluation: whether it is the best so far, why the run ends ("": it does not), the new share
    of the schedule's rate (None: as it was)."""

    best: bool = False
    stop: str = ""
    rate: float | None = None


@dataclass
class _Watch:
    """The value that counts as the best, and evaluations since then; `top` is the best of all."""

    lower: bool
    min_delta: float
    best: float | None = None
    waited: int = 0
    top: float | None = None

    def hear(self, value: float) -> bool:
        """Take note; returns whether it is the best of all so far."""
        signed = -value if self.lower else value
        enough = not math.isnan(value) and (self.best is None or signed > self.best + self.min_delta)
        self.best, self.waited = (signed, 0) if enough else (self.best, self.waited + 1)
        first = not math.isnan(value) and (self.top is None or signed > self.top)
        self.top = signed if first else self.top
        return first


@dataclass
class Judge:
    """Decides by evaluations. `lower`: whether less of a metric is better. `at`: the step of the last evaluation that
    counted."""

    stopping: EarlyStopping | None
    plateau: Plateau | None
    lower: Callable[[str], bool]
    at: int = 0
    rate: float = 1.0
    ended: str = ""
    top_at: int = 0
    _rest: int = 0
    _stop: _Watch = field(init=False)
    _slow: _Watch = field(init=False)

    def __post_init__(self) -> None:
        self._stop, self._slow = self._watch(self.stopping), self._watch(self.plateau)

    def _watch(self, said: EarlyStopping | Plateau | None) -> _Watch:
        if said is None:
            return _Watch(True, 0.0)
        return _Watch(self.lower(said.metric) if not said.mode else said.mode == "min", said.min_delta)

    def is_lower(self, name: str) -> bool:
        """Whether less of a metric is better, as early stopping says if it watches this one."""
        said = self.stopping
        return said.mode == "min" if said is not None and said.mode and said.metric == name else self.lower(name)

    @property
    def active(self) -> bool:
        """Whether anything is decided."""
        return self.stopping is not None or self.plateau is not None

    @property
    def restores(self) -> bool:
        """Whether the best weights are kept, and used in the end."""
        return self.stopping is not None and self.stopping.restore

    def hear(self, step: int, found: Evaluation) -> Verdict:
        """What follows from an evaluation after `step`. Raises TrainError for a metric that was not measured."""
        self.at = step
        best = False
        if self.stopping is not None:
            best = self._stop.hear(_value(found, self.stopping.metric))
            self.top_at = step if best else self.top_at
            if self._stop.waited >= self.stopping.patience:
                self.ended = f"no better {self.stopping.metric} of validation in {self._stop.waited} evaluations"
        return Verdict(best, self.ended, self._slower(found))

    def _slower(self, found: Evaluation) -> float | None:
        said = self.plateau
        if said is None:
            return None
        self._slow.hear(_value(found, said.metric))
        if self._rest:
            self._rest -= 1
            self._slow.waited = 0
        if self._slow.waited < said.patience:
            return None
        self._slow.waited, self._rest = 0, said.cooldown
        before, self.rate = self.rate, max(self.rate * said.factor, min(said.least, self.rate))
        return self.rate if self.rate != before else None

    def again(self) -> None:
        """A run that ended early goes on: patience begins anew."""
        if self.ended:
            self.ended, self._stop.waited = "", 0

    def said(self) -> dict[str, Any]:
        """Everything that was decided so far, as JSON data."""
        watches = {name: [w.best, w.waited, w.top] for name, w in (("stop", self._stop), ("slow", self._slow))}
        return {
            "at": self.at, "rate": self.rate, "ended": self.ended, "top_at": self.top_at, "rest": self._rest, **watches
        }  # fmt: skip

    def resumed(self, said: Mapping[str, Any]) -> None:
        """The inverse of `said`. Raises CheckpointError."""
        try:
            self.at, self.rate, self.ended = int(said["at"]), float(said["rate"]), str(said["ended"])
            self.top_at, self._rest = int(said["top_at"]), int(said["rest"])
            for watch, name in ((self._stop, "stop"), (self._slow, "slow")):
                best, waited, top = said[name]
                watch.best, watch.top = (None if v is None else float(v) for v in (best, top))
                watch.waited = int(waited)
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"the checkpoint's decisions are damaged: {error!r}; resume from another") from error


def _value(found: Evaluation, name: str) -> float:
    if name == "loss":
        return found.loss
    if name not in found.metrics:
        raise TrainError(f"expected a metric of validation, one of {', '.join(['loss', *found.metrics])}; got {name!r}")
    return found.metrics[name]
