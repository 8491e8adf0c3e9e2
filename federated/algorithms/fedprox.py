"""FedProx: FedAvg whose devices are kept close to the global model.

Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020, algorithm 2: a device minimises its loss plus
mu / 2 * |w - w_global|^2. With mu = 0 it is FedAvg.
"""

from __future__ import annotations

from dataclasses import dataclass

from federated import tree
from federated.algorithms.base import Update
from federated.algorithms.fedavg import FedAvg
from federated.algorithms.steps import descend
from federated.learner import Batch, Learner
from federated.tree import Tree

__all__ = ["FedProx"]


@dataclass(frozen=True)
class FedProx(FedAvg):
    """`mu`: weight of the penalty; everything else, including payload and adapting, as in FedAvg."""

    name = "fedprox"
    mu: float = 0.1

    def local(self, learner: Learner, broadcast: Tree, personal: Tree, batches: Batch) -> tuple[Update, Tree]:
        """Steps of SGD on the penalised loss."""
        centre = broadcast["params"]
        there = descend(
            learner,
            centre,
            batches,
            self.rate,
            pull=lambda params: tree.scale(tree.sub(params, centre), self.mu),
            momentum=self.momentum,
        )
        return Update({"params": tree.sub(there.params, centre)}, 1.0, there.loss), personal
