"""Ditto: FedAvg, and in addition a personal model for each device, kept close to the global one.

Li et al., "Ditto: Fair and Robust Federated Learning Through Personalization", ICML 2021, algorithm 1:
v <- v - rate * (grad f(v) + lambda * (v - w)). With lambda = 0 devices learn alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from federated import tree
from federated.algorithms.base import Update
from federated.algorithms.fedavg import FedAvg
from federated.algorithms.steps import Descent, descend
from federated.learner import Batch, Learner
from federated.tree import Tree

__all__ = ["Ditto"]


@dataclass(frozen=True)
class Ditto(FedAvg):
    """`penalty` (lambda); `tuning_rate`: the rate of the personal model's steps; the others as in FedAvg.

    Broadcast and payload as in FedAvg. Personal: `params` (v).
    """

    name = "ditto"
    penalty: float = 0.1

    def enrol(self, broadcast: Tree) -> Tree:
        """The global model as the initial personal one."""
        return {"params": broadcast["params"]}

    def local(self, learner: Learner, broadcast: Tree, personal: Tree, batches: Batch) -> tuple[Update, Tree]:
        """FedAvg's steps, then the same number for the personal model, towards the w that was received."""
        update, _ = super().local(learner, broadcast, personal, batches)
        return update, {"params": self._near(learner, broadcast, personal, batches).params}

    def start(self, broadcast: Tree, personal: Tree) -> Tree:
        """The personal model."""
        params: Tree = personal["params"]
        return params

    def personalise(self, learner: Learner, broadcast: Tree, personal: Tree, support: Batch) -> Tree:
        """More steps of the personal model."""
        return self._near(learner, broadcast, personal, support).params

    def _near(self, learner: Learner, broadcast: Tree, personal: Tree, batches: Batch) -> Descent:
        centre = broadcast["params"]
        return descend(
            learner,
            personal["params"],
            batches,
            self.tuning_rate,
            pull=lambda params: tree.scale(tree.sub(params, centre), self.penalty),
            momentum=self.momentum,
        )
