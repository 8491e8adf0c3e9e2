"""How good the model is for each device, before it adapts and after: participating and held-out devices.

A mean over devices hides devices for which the common model fails, so the mean of the worst tenth is given too.
Everything is plain data for reports (`dataclasses.asdict`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from federated.algorithms.base import Algorithm
from federated.algorithms.steps import descend
from federated.data import draw, join
from federated.learner import Batch, Evaluation, Learner
from federated.tree import Tree

__all__ = ["Score", "Spread", "Summary", "before_after", "centralised", "score", "summarise"]

CENTRALISED_STEPS = 64
"""Batches that `centralised` draws at once, which bounds its memory."""


@dataclass(frozen=True)
class Score:
    """A device's accuracy (0 to 1; 0 for regression) and mean loss over its query examples."""

    device: str
    examples: int
    accuracy_before: float
    accuracy_after: float
    loss_before: float
    loss_after: float


@dataclass(frozen=True)
class Spread:
    """A figure over devices with equal weights: the mean, and the mean of the worst tenth (at least one device)."""

    mean: float
    worst_decile: float


@dataclass(frozen=True)
class Summary:
    """Figures over `devices` that had examples to test on; `silent` devices had none."""

    devices: int
    silent: int
    accuracy_before: Spread
    accuracy_after: Spread
    loss_before: Spread
    loss_after: Spread


def before_after(
    algorithm: Algorithm, learner: Learner, broadcast: Tree, personal: Tree, support: Batch, query: Batch
) -> tuple[Evaluation, Evaluation]:
    """A device on its query examples [n, ...], with the parameters it has and after it adapted to batches [steps, n,
    ...] of its support. A pure function: the simulator maps it over devices."""
    here = learner.evaluate(algorithm.start(broadcast, personal), query)
    return here, learner.evaluate(algorithm.personalise(learner, broadcast, personal, support), query)


def score(device: str, before: Evaluation, after: Evaluation) -> Score:
    """Sums as means; zeros for a device without test examples."""
    count = max(int(before.examples), 1)
    return Score(
        device,
        int(before.examples),
        float(before.correct) / count,
        float(after.correct) / count,
        float(before.loss) / count,
        float(after.loss) / count,
    )


def summarise(scores: Iterable[Score]) -> Summary:
    """Figures over the devices with test examples; NaN without any."""
    everyone = list(scores)
    asked = [entry for entry in everyone if entry.examples]
    return Summary(
        len(asked),
        len(everyone) - len(asked),
        _spread([-entry.accuracy_before for entry in asked], -1),
        _spread([-entry.accuracy_after for entry in asked], -1),
        _spread([entry.loss_before for entry in asked], 1),
        _spread([entry.loss_after for entry in asked], 1),
    )


def _spread(badness: Sequence[float], sign: int) -> Spread:
    """The spread of figures for which larger means worse; `sign` converts them to the original figure."""
    if not badness:
        return Spread(float("nan"), float("nan"))
    worst = np.sort(badness)[::-1][: max(1, len(badness) // 10)]
    return Spread(sign * float(np.mean(badness)), sign * float(worst.mean()))


def centralised(
    learner: Learner, params: Tree, devices: Sequence[Batch], steps: int, n: int, rate: float, rng: np.random.Generator
) -> Tree:
    """SGD on all devices' examples in one place: the baseline without privacy."""
    everything = join(devices)
    for first in range(0, steps, CENTRALISED_STEPS):
        drawn = draw(everything, rng, min(CENTRALISED_STEPS, steps - first), n)
        params = descend(learner, params, drawn, rate).params
    return params
