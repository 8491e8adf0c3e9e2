"""SCAFFOLD: control variates remove the drift of heterogeneous devices from their steps.

Karimireddy et al., "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning", ICML 2020, algorithm 1, with
option II for the controls: c_i <- c_i - c + (x - y) / (K * rate), which for plain SGD is the mean of the gradients on
the way. It is computed as that mean, so that no small difference is divided by a small rate.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from federated import tree
from federated.algorithms.base import Update
from federated.algorithms.fedavg import FedAvg
from federated.algorithms.steps import descend
from federated.learner import Batch, Learner
from federated.tree import Tree

__all__ = ["Scaffold"]


@dataclass(frozen=True)
class Scaffold(FedAvg):
    """Fields as in FedAvg; devices have equal weights, as the mean of the controls requires.

    Broadcast: `params`, `control` (the mean of all devices' controls). Payload: `params`, `control`, the change of
    each. Personal: `control`. The controls of statistics stay zero.
    """

    name = "scaffold"
    excludes: ClassVar[Mapping[str, str]] = {
        "history": "devices keep only their newest controls, whose mean the server's control must be; omit history.keep"
    }
    uniform: bool = field(default=True, kw_only=True)

    def init(self, params: Tree) -> Tree:
        """The model, and a control of zeros."""
        return {**super().init(params), "control": tree.zeros(params)}

    def broadcast(self, state: Tree) -> Tree:
        """The model and the control."""
        return {"params": state["params"], "control": state["control"]}

    def enrol(self, broadcast: Tree) -> Tree:
        """A control of zeros."""
        return {"control": tree.zeros(broadcast["params"])}

    def local(self, learner: Learner, broadcast: Tree, personal: Tree, batches: Batch) -> tuple[Update, Tree]:
        """y <- y - rate * (g(y) - c_i + c)."""
        correction = tree.sub(broadcast["control"], personal["control"])
        there = descend(
            learner,
            broadcast["params"],
            batches,
            self.rate,
            pull=lambda _: correction,
            summed=True,
            momentum=self.momentum,
        )
        control = tree.scale(there.gradients, 1 / batches.labels.shape[0])
        payload = {
            "params": tree.sub(there.params, broadcast["params"]),
            "control": tree.sub(control, personal["control"]),
        }
        return Update(payload, 1.0, there.loss), {"control": control}

    def apply(self, state: Tree, mean: Tree, fraction: Any) -> Tree:
        """x <- x + server_rate * mean dy; c <- c + fraction * mean dc."""
        moved = super().apply(state, mean, fraction)
        return {**moved, "control": tree.add(state["control"], mean["control"], fraction)}
