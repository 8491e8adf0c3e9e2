"""How good the model is for each device, before it adapts and after: participating and held-out devices.

A mean over devices hides devices for which the common model fails, so the mean of the worst tenth is given too. A
device whose loss is not finite has the worst score: no correct examples and an infinite loss. Leaving it out would make
a model that fails on many devices look better than one that works on all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from federated.algorithms.base import Algorithm
from federated.algorithms.steps import descend
from federated.data import draw, join
from federated.learner import Batch, Evaluation, Learner
from federated.tree import Array, Tree

__all__ = [
    "LARGEST", "WIDEST", "Score", "Spread", "Summary", "before_after", "centralised", "noisy_summary", "perplexity",
    "plain", "score", "shares", "summarise", "told",
]  # fmt: skip

CENTRALISED_STEPS = 64
"""Batches that `centralised` draws at once, which bounds its memory."""
LARGEST = 1e30
"""The largest loss, in a message and in a sum: sums over a fleet stay finite, as JSON requires. A device whose loss is
larger or not a number has diverged, and reports None."""


@dataclass(frozen=True)
class Score:
    """A device's accuracy (0 to 1; 0 for regression) and mean loss over its query examples; accuracy 0 and an infinite
    loss where it diverged."""

    device: str
    examples: int
    accuracy_before: float
    accuracy_after: float
    loss_before: float
    loss_after: float

    @property
    def diverged(self) -> bool:
        """Whether its loss was not finite, before adapting or after."""
        return not np.isfinite((self.loss_before, self.loss_after)).all()


@dataclass(frozen=True)
class Spread:
    """A figure over devices with equal weights: the mean, and the mean of the worst tenth (at least one device)."""

    mean: float
    worst_decile: float


@dataclass(frozen=True)
class Summary:
    """Figures over `devices` that had examples to test on, of which `diverged` had a loss that was not finite; `silent`
    devices had no examples. Medians of losses stay finite while fewer than half of the devices diverge."""

    devices: int
    silent: int
    diverged: int
    accuracy_before: Spread
    accuracy_after: Spread
    loss_before: Spread
    loss_after: Spread
    median_loss_before: float
    median_loss_after: float


def before_after(
    algorithm: Algorithm, learner: Learner, broadcast: Tree, personal: Tree, support: Batch, query: Batch
) -> tuple[Evaluation, Evaluation]:
    """A device on its query examples [n, ...], with the parameters it has and after it adapted to batches [steps, n,
    ...] of its support. A pure function: the simulator maps it over devices."""
    here = learner.evaluate(algorithm.start(broadcast, personal), query)
    return here, learner.evaluate(algorithm.personalise(learner, broadcast, personal, support), query)


def told(loss: Any) -> float | None:
    """A loss as a device reports it: None if it diverged."""
    return float(loss) if abs(loss) <= LARGEST else None


def score(device: str, before: Evaluation, after: Evaluation) -> Score:
    """Sums as means; zeros for a device without test examples."""
    count = max(int(before.examples), 1)
    (accuracy_before, loss_before), (accuracy_after, loss_after) = (_means(each, count) for each in (before, after))
    return Score(device, int(before.examples), accuracy_before, accuracy_after, loss_before, loss_after)


def _means(sums: Evaluation, count: int) -> tuple[float, float]:
    """Accuracy and loss; the worst ones if the loss is not finite, whatever was counted as correct: the largest of
    outputs that are not numbers is the first class."""
    if told(sums.loss) is None:
        return 0.0, float("inf")
    return float(sums.correct) / count, float(sums.loss) / count


def shares(before: Evaluation, after: Evaluation, lowest: float, most: float) -> Array:
    """A device's accuracies and losses, before and after, each on a scale from 0 to 1 (float64 [4]), so that no device
    matters more than WIDEST. lowest, most: the losses that are 0 and 1; others count as the nearer one. Zeros for
    accuracies of a device without test examples."""
    found = score("", before, after)
    losses = np.array([found.loss_before, found.loss_after])
    scaled = (np.clip(np.nan_to_num(losses, nan=most), lowest, most) - lowest) / (most - lowest)
    return np.concatenate([[found.accuracy_before, found.accuracy_after], scaled])


WIDEST = 2.0
"""The greatest distance between two devices' `shares`, and of one from nothing."""


def noisy_summary(devices: int, mean: Array, lowest: float, most: float) -> dict[str, Any]:
    """What is published of `shares` with noise: their means over devices, in the form of `plain`; None: not told."""
    losses = lowest + mean[2:] * (most - lowest)
    means = {"accuracy_before": mean[0], "accuracy_after": mean[1], "loss_before": losses[0], "loss_after": losses[1]}
    hidden = dict.fromkeys(("silent", "diverged", "median_loss_before", "median_loss_after"))
    told = {name: {"mean": float(value), "worst_decile": None} for name, value in means.items()}
    return {"devices": devices, "noisy": True, **hidden, **told}


def summarise(scores: Iterable[Score]) -> Summary:
    """Figures over the devices with test examples; NaN without any."""
    everyone = list(scores)
    asked = [entry for entry in everyone if entry.examples]
    return Summary(
        len(asked),
        len(everyone) - len(asked),
        sum(entry.diverged for entry in asked),
        _spread([-entry.accuracy_before for entry in asked], -1),
        _spread([-entry.accuracy_after for entry in asked], -1),
        _spread([entry.loss_before for entry in asked], 1),
        _spread([entry.loss_after for entry in asked], 1),
        _median([entry.loss_before for entry in asked]),
        _median([entry.loss_after for entry in asked]),
    )


def perplexity(scores: Sequence[Score], summary: Mapping[str, Any]) -> dict[str, float | None]:
    """Of a language model before and after adapting: e to the mean loss of a token, over the tokens of all devices.
    Without scores, with noise: e to the mean over devices in the summary. None where it is beyond LARGEST."""
    found = {}
    for when in ("before", "after"):
        if scores:
            losses = [getattr(each, f"loss_{when}") for each in scores]
            loss = float(np.average(losses, weights=[each.examples for each in scores]))
        else:
            loss = summary[f"loss_{when}"]["mean"]
        found[when] = float(np.exp(loss)) if loss < np.log(LARGEST) else None
    return found


def _spread(badness: Sequence[float], sign: int) -> Spread:
    """The spread of figures for which larger means worse; `sign` converts them to the original figure."""
    if not badness:
        return Spread(float("nan"), float("nan"))
    worst = np.sort(badness)[::-1][: max(1, len(badness) // 10)]
    return Spread(sign * float(np.mean(badness)), sign * float(worst.mean()))


def _median(values: Sequence[float]) -> float:
    return float(np.median(values)) if values else float("nan")


def plain(summary: Summary) -> dict[str, Any]:
    """For JSON: figures that are not finite are None."""
    return {key: _finite(value) for key, value in asdict(summary).items()}


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    return value if np.isfinite(value) else None


def centralised(
    learner: Learner, params: Tree, devices: Sequence[Batch], steps: int, n: int, rate: float, rng: np.random.Generator
) -> Tree:
    """SGD on all devices' examples in one place: the baseline without privacy."""
    everything = join(devices)
    for first in range(0, steps, CENTRALISED_STEPS):
        drawn = draw(everything, rng, min(CENTRALISED_STEPS, steps - first), n)
        params = descend(learner, params, drawn, rate).params
    return params
