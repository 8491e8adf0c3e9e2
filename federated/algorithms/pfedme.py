"""pFedMe: each device's personal model minimises a Moreau envelope; the global model follows these models.

T. Dinh, Tran, Nguyen, "Personalized Federated Learning with Moreau Envelopes", NeurIPS 2020, algorithm 1: for every
batch, theta ~ argmin f(theta) + lambda / 2 * |theta - w|^2 by a few steps, then w <- w - eta * lambda * (w - theta).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from federated import tree
from federated.algorithms.base import Algorithm, Update
from federated.algorithms.steps import descend, repeat
from federated.learner import Batch, Learner
from federated.tree import Tree

__all__ = ["PFedMe"]


@dataclass(frozen=True)
class PFedMe(Algorithm):
    """`rate`: of the `inner_steps` (K) towards theta; `outer_rate` (eta): of the device's copy of the global model;
    `penalty` (lambda); `server_rate` (beta): the share of the mean that the server takes over.

    Broadcast: `params` (w). Payload: `params`, the change of the device's copy. Personal: `params` (theta).
    """

    name = "pfedme"
    local_rates = ("outer_rate",)
    rate: float = 0.05
    inner_steps: int = 5
    outer_rate: float = 0.05
    penalty: float = 15.0
    server_rate: float = 1.0
    uniform: bool = field(default=True, kw_only=True)

    def enrol(self, broadcast: Tree) -> Tree:
        """The global model as the initial personal one."""
        return {"params": broadcast["params"]}

    def local(self, learner: Learner, broadcast: Tree, personal: Tree, batches: Batch) -> tuple[Update, Tree]:
        """Alternate steps of theta and w. The statistics of w are those of theta."""
        copy, theta, loss = self._alternate(learner, broadcast["params"], batches)
        return Update({"params": tree.sub(copy, broadcast["params"])}, 1.0, loss), {"params": theta}

    def apply(self, state: Tree, mean: Tree, fraction: Any) -> Tree:
        """w <- (1 - beta) * w + beta * mean w_i."""
        return {**state, "params": tree.add(state["params"], mean["params"], self.server_rate)}

    def start(self, broadcast: Tree, personal: Tree) -> Tree:
        """The device's theta."""
        params: Tree = personal["params"]
        return params

    def personalise(self, learner: Learner, broadcast: Tree, personal: Tree, support: Batch) -> Tree:
        """theta after the same steps as in training."""
        return self._alternate(learner, broadcast["params"], support)[1]

    def _alternate(self, learner: Learner, params: Tree, batches: Batch) -> tuple[Tree, Tree, Any]:
        """w, theta, the mean loss. Theta continues from its value for the previous batch."""

        def step(carry: tuple[Tree, Tree], batch: Batch) -> tuple[tuple[Tree, Tree], Any]:
            copy, theta = carry
            towards = descend(
                learner,
                theta,
                repeat(batch, self.inner_steps),
                self.rate,
                pull=lambda params: tree.scale(tree.sub(params, copy), self.penalty),
            )
            theta, statistics = towards.params, tree.take(towards.params, towards.statistics)
            copy = tree.add(copy, tree.sub(theta, copy), self.outer_rate * self.penalty)
            return (tree.merge(copy, statistics), theta), towards.loss

        (copy, theta), losses = learner.scan(step, (params, params), batches)
        return copy, theta, losses.mean()
