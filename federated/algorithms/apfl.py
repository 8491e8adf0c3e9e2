"""APFL: a device predicts with a mixture of its own model and the global one, and learns the proportion.

Deng, Kamani, Mahdavi, "Adaptive Personalized Federated Learning", 2020, algorithm 1 with the adaptive mixture of
section 3: w <- w - rate * grad f(w); with m = a v + (1 - a) w, v <- v - rate * a * grad f(m), and
a <- a - mixture_rate * <v - w, grad f(m)>, kept within [0, 1].
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from federated import tree
from federated.algorithms.base import Update
from federated.algorithms.fedavg import FedAvg
from federated.algorithms.steps import descend
from federated.errors import FederatedError
from federated.learner import Batch, Learner, sgd
from federated.tree import Tree

__all__ = ["APFL"]


@dataclass(frozen=True)
class APFL(FedAvg):
    """`mixture` (a): the initial share of the personal model; `mixture_rate`: the rate at which it is learned, 0 keeps
    it constant; `rate` is used for w and v.

    Broadcast and payload as in FedAvg. Personal: `params` (v), `mixture` (a, float32 scalar).
    """

    name = "apfl"
    mixture: float = 0.5
    mixture_rate: float = 0.05

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mixture > 1:
            raise FederatedError(f"apfl: expected a mixture within [0, 1], got {self.mixture}")

    def idle(self) -> Mapping[str, str]:
        """Momentum: three models move at once."""
        return {**super().idle(), "momentum": "on the mixture"}

    def enrol(self, broadcast: Tree) -> Tree:
        """The global model, and the initial share."""
        params = broadcast["params"]
        return {"params": params, "mixture": tree.total(params) * 0 + self.mixture}

    def local(self, learner: Learner, broadcast: Tree, personal: Tree, batches: Batch) -> tuple[Update, Tree]:
        """Steps of all three, batch by batch. The personal model's statistics are the mixture's."""

        def step(carry: tuple[Tree, Tree], batch: Batch) -> tuple[tuple[Tree, Tree], Any]:
            shared, personal = carry
            own, share = personal["params"], personal["mixture"]
            gradient = learner.gradient(shared, batch)
            mixed = learner.gradient(_mixed(own, shared, share), batch)
            apart = tree.sub(tree.take(own, mixed.grads), tree.take(shared, mixed.grads))
            slope = tree.dot(apart, mixed.grads)
            personal = {
                "params": sgd(own, mixed, self.rate * share),
                "mixture": (share - self.mixture_rate * slope).clip(0.0, 1.0),
            }
            return (sgd(shared, gradient, self.rate), personal), gradient.loss

        (shared, personal), losses = learner.scan(step, (broadcast["params"], personal), batches)
        return Update({"params": tree.sub(shared, broadcast["params"])}, 1.0, losses.mean()), personal

    def start(self, broadcast: Tree, personal: Tree) -> Tree:
        """The mixture."""
        return _mixed(personal["params"], broadcast["params"], personal["mixture"])

    def personalise(self, learner: Learner, broadcast: Tree, personal: Tree, support: Batch) -> Tree:
        """Fine-tune the mixture."""
        return descend(learner, self.start(broadcast, personal), support, self.tuning_rate).params


def _mixed(own: Tree, shared: Tree, share: Any) -> dict[str, Any]:
    return tree.add(shared, tree.sub(own, shared), share)
