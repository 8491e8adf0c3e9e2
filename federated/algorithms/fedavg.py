"""FedAvg: devices run SGD from the global model, the server averages their differences.

McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS 2017, algorithm 1.
Adapting to a device is plain fine-tuning: the baseline for personalised methods.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from federated import tree
from federated.algorithms.base import Algorithm, Update, below_one
from federated.algorithms.steps import descend
from federated.learner import Batch, Learner
from federated.tree import Tree

__all__ = ["FedAvg"]


@dataclass(frozen=True)
class FedAvg(Algorithm):
    """`rate`: of local SGD; `momentum`: of SGD on a device, which begins anew in each round; `server_rate`: of the
    server's step; `tuning_rate`: of SGD when a device adapts.

    Broadcast: `params`. Payload: `params`, the device's difference, statistics included. No personal state.
    """

    name = "fedavg"
    rate: float = 0.05
    server_rate: float = 1.0
    tuning_rate: float = 0.05
    momentum: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        below_one(self, "momentum")

    def local(self, learner: Learner, broadcast: Tree, personal: Tree, batches: Batch) -> tuple[Update, Tree]:
        """Steps of SGD; the payload is the difference."""
        there = descend(learner, broadcast["params"], batches, self.rate, momentum=self.momentum)
        return Update({"params": tree.sub(there.params, broadcast["params"])}, 1.0, there.loss), personal

    def apply(self, state: Tree, mean: Tree, fraction: Any) -> Tree:
        """Add the mean difference times `server_rate`."""
        return {**state, "params": tree.add(state["params"], mean["params"], self.server_rate)}

    def personalise(self, learner: Learner, broadcast: Tree, personal: Tree, support: Batch) -> Tree:
        """Fine-tune all parameters."""
        return descend(learner, broadcast["params"], support, self.tuning_rate, momentum=self.momentum).params
