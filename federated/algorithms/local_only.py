"""Devices that learn alone: the baseline that must be beaten to make taking part worthwhile for a device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from federated.algorithms.base import Algorithm, Update, below_one
from federated.algorithms.steps import descend
from federated.learner import Batch, Learner
from federated.tree import Tree

__all__ = ["LocalOnly"]


@dataclass(frozen=True)
class LocalOnly(Algorithm):
    """`rate`, `momentum`: of SGD from the untrained model.

    Broadcast: `params`, untrained. Payload: empty. Personal: `params`.
    """

    name = "local_only"
    server_rates = ()
    rate: float = 0.05
    momentum: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        below_one(self, "momentum")

    def idle(self) -> Mapping[str, str]:
        """Nothing is averaged."""
        return {**super().idle(), "uniform": "without a mean"}

    def enrol(self, broadcast: Tree) -> Tree:
        """The untrained model."""
        return {"params": broadcast["params"]}

    def local(self, learner: Learner, broadcast: Tree, personal: Tree, batches: Batch) -> tuple[Update, Tree]:
        """Steps of SGD; nothing is sent."""
        there = descend(learner, personal["params"], batches, self.rate, momentum=self.momentum)
        return Update({}, 1.0, there.loss), {"params": there.params}

    def apply(self, state: Tree, mean: Tree, fraction: Any) -> Tree:
        """The state is unchanged."""
        return state

    def start(self, broadcast: Tree, personal: Tree) -> Tree:
        """The device's own model."""
        params: Tree = personal["params"]
        return params

    def personalise(self, learner: Learner, broadcast: Tree, personal: Tree, support: Batch) -> Tree:
        """More steps of SGD."""
        return descend(learner, personal["params"], support, self.rate, momentum=self.momentum).params
