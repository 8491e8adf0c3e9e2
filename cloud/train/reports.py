"""The reports of training."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax

from cloud.train.showing import reports_html

__all__ = ["EpochReport", "Evaluation", "means_of", "summed"]


@dataclass(frozen=True)
class Evaluation:
    """Of `examples`: the mean loss, the requested `metrics` by name, and those of them that are arrays (a confusion
    matrix) as `tables`."""

    loss: float
    metrics: Mapping[str, float]
    examples: int
    tables: Mapping[str, Any] = field(default_factory=dict)

    @property
    def accuracy(self) -> float | None:
        """The metric "accuracy", if it was measured."""
        return self.metrics.get("accuracy")


@dataclass(frozen=True)
class EpochReport:
    """Epoch number `epoch` since the trainer was created, of `epochs` (0: the number of steps decides): `training` as
    measured while the weights changed, `validation` after it, seconds of both together; `times` is how much of them was
    spent waiting for "data", on the "step" (submitting it and waiting for it) and on "other"."""

    epoch: int
    epochs: int
    training: Evaluation
    validation: Evaluation | None
    seconds: float
    steps: int = 0
    times: Mapping[str, float] = field(default_factory=dict)

    def _repr_html_(self) -> str:
        return reports_html([self])

    @property
    def loss(self) -> float:
        """Mean training loss."""
        return self.training.loss

    @property
    def accuracy(self) -> float | None:
        """Mean training accuracy, if it was measured."""
        return self.training.accuracy


def summed(parts: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Sums over rows of several batches, added in order."""
    total: dict[str, float] = {}
    for part in jax.device_get(list(parts)):
        for name, value in part.items():
            total[name] = total.get(name, 0.0) + float(value)
    return total


def means_of(sums: Mapping[str, float]) -> Evaluation:
    """The means from sums over rows (`cloud.train.stepping.step.Sums`); without any rows they are 0."""
    examples = sums.get("examples", 0.0)
    means = {name: value / (examples or 1.0) for name, value in sums.items()}
    metrics = {name.removeprefix("metric "): mean for name, mean in means.items() if name.startswith("metric ")}
    return Evaluation(means.get("loss", 0.0), metrics, int(examples))
