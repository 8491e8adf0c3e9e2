"""FedOpt: FedAvg's mean difference as the gradient of an optimiser on the server.

Reddi et al., "Adaptive Federated Optimization", ICLR 2021, algorithms 1 and 2; momentum is Hsu, Qi, Brown 2019.
"""

from __future__ import annotations

from dataclasses import dataclass

from federated.algorithms.base import Update, below_one
from federated.algorithms.server_step import ServerStep
from federated.algorithms.steps import change, descend
from federated.learner import Batch, Learner
from federated.tree import Tree

__all__ = ["FedAdagrad", "FedAdam", "FedMomentum", "FedYogi"]


@dataclass(frozen=True)
class FedAdam(ServerStep):
    """`rate`: of local SGD; `momentum`: of SGD on a device, which begins anew in each round; `tuning_rate`: of SGD when
    a device adapts; the others belong to the server's optimiser.

    Broadcast: `params`. Payload: `params` and `statistics`, the device's difference. No personal state.
    """

    name = "fedadam"
    rate: float = 0.05
    tuning_rate: float = 0.05
    momentum: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        below_one(self, "momentum")

    def local(self, learner: Learner, broadcast: Tree, personal: Tree, batches: Batch) -> tuple[Update, Tree]:
        """Steps of SGD; the payload is the difference."""
        there = descend(learner, broadcast["params"], batches, self.rate, momentum=self.momentum)
        return Update(change(broadcast["params"], there.params, there.statistics), 1.0, there.loss), personal

    def personalise(self, learner: Learner, broadcast: Tree, personal: Tree, support: Batch) -> Tree:
        """Fine-tune all parameters."""
        return descend(learner, broadcast["params"], support, self.tuning_rate, momentum=self.momentum).params


@dataclass(frozen=True)
class FedYogi(FedAdam):
    """FedAdam whose second moment changes by an amount that depends only on the new value's size, not on the old
    moment."""

    name = "fedyogi"
    server: str = "yogi"


@dataclass(frozen=True)
class FedAdagrad(FedAdam):
    """A second moment that only grows, and no first moment: the paper's choice of beta1 = 0."""

    name = "fedadagrad"
    server: str = "adagrad"
    beta1: float = 0.0


@dataclass(frozen=True)
class FedMomentum(FedAdam):
    """FedAvgM: m <- beta1 * m + difference, w <- w + server_rate * m."""

    name = "fedmomentum"
    server: str = "momentum"
    server_rate: float = 1.0
