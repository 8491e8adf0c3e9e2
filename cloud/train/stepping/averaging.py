"""Averages of weights: a moving one, and stochastic weight averaging (SWA), the mean of weights along the last part of
a run (Izmailov et al., "Averaging Weights Leads to Wider Optima and Better Generalization", UAI 2018)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from cloud.errors import TrainError

__all__ = ["Average", "Swa", "averaged", "check_average"]


@dataclass(frozen=True)
class Swa:
    """The plain mean of the weights after step `start` and after every `every` steps from there on; before that it is
    the weights themselves. BatchNormalization's statistics are those of the weights along the way, which the mean does
    not have: they are estimated again with it, over `batches` batches of the training data (0: an epoch), before it is
    evaluated and at the end of `fit`."""

    start: int
    every: int = 1
    batches: int = 0

    def __post_init__(self) -> None:
        for name, least in (("start", 1), ("every", 1), ("batches", 0)):
            if getattr(self, name) < least:
                raise TrainError(
                    f"expected {name} of at least {least} for averages of weights, got {getattr(self, name)}"
                )


Average = float | Swa
"""The share that a moving average keeps per step, or SWA."""


def check_average(average: Average | None) -> None:
    """Raise TrainError for a decay out of range."""
    if isinstance(average, float | int) and not 0 < average < 1:
        raise TrainError(f"expected a decay between 0 and 1 for the moving average of weights, got {average}")


def averaged(step: Any, before: Any, new: Any, average: Average) -> Any:
    """The average after step number `step` ([] integers, counted from 0). A moving one keeps its share, but less in the
    first steps, (1 + n) / (10 + n), so that the initial weights are soon forgotten."""
    if isinstance(average, Swa):
        past = step + 1 - average.start
        taken = (past // average.every).astype(jnp.float32)
        share = jnp.where(past <= 0, 0.0, jnp.where(past % average.every == 0, taken / (taken + 1), 1.0))
    else:
        n = step.astype(jnp.float32)
        share = jnp.minimum(average, (1 + n) / (10 + n))
    return jax.tree.map(lambda mean, now: (share * mean + (1 - share) * now).astype(mean.dtype), before, new)
