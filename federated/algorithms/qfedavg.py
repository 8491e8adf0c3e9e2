"""q-FedAvg: devices with a higher loss count more, so that accuracy differs less from device to device.

Li, Sanjabi, Beirami, Smith, "Fair Resource Allocation in Federated Learning", ICLR 2020, algorithm 2, which minimises
q-FFL, the sum of p_k / (q + 1) * F_k^(q + 1). With Delta w = L (w - w_k), L = 1 / rate, a device sends F_k(w)^q Delta w
and h_k = q F_k(w)^(q - 1) |Delta w|^2 + L F_k(w)^q; the server subtracts the sum of the former over the sum of the
latter. Both are sent divided by L here. With q = 0 it is FedAvg.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from federated import tree
from federated.algorithms.base import Update
from federated.algorithms.fedavg import FedAvg
from federated.algorithms.steps import change, descend, joined
from federated.errors import FederatedError
from federated.learner import Batch, Learner
from federated.tree import Tree

__all__ = ["QFedAvg"]

LEAST_LOSS = 1e-10
"""Added to the loss, as in the program published with the paper: a power below 0 of a loss of 0 is infinite."""
LEAST_STEP = 1e-30
"""Avoids a division by zero where every power of a loss underflows."""
_WHY = "the server divides by a sum of numbers that devices send besides their updates, which must arrive as they are"


@dataclass(frozen=True)
class QFedAvg(FedAvg):
    """`q`: fairness, 0 for none; the others as in FedAvg, `server_rate` in addition to the paper's step.

    The paper chooses devices with probability p_k and weights them equally; here they are chosen uniformly and weighted
    by p_k, their share of the examples (`uniform`: equally). F_k is the mean loss over the round's batches, in
    inference form. Broadcast: `params`. Payload: `params`, the device's difference times F_k^q; `step`, h_k / L;
    `statistics`, the device's difference. Adapting as in FedAvg.
    """

    name = "qfedavg"
    excludes = dict.fromkeys(("noise", "a robust rule", "a sparse codec", "signds", "a lossy number format"), _WHY)
    q: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.rate > 0:
            raise FederatedError(f"qfedavg: expected a rate above 0, whose inverse is the paper's L, got {self.rate}")

    def local(self, learner: Learner, broadcast: Tree, personal: Tree, batches: Batch) -> tuple[Update, Tree]:
        """FedAvg's steps, weighted by the loss before them."""
        start = broadcast["params"]
        found = learner.evaluate(start, joined(batches))
        loss = (found.loss / found.examples).astype(np.float32) + LEAST_LOSS
        there = descend(learner, start, batches, self.rate, momentum=self.momentum)
        payload = change(start, there.params, there.statistics)
        moved, power = payload["params"], loss**self.q
        step = self.q * loss ** (self.q - 1) * tree.dot(moved, moved) / self.rate + power
        payload |= {"params": tree.scale(moved, power), "step": step.reshape(1)}
        return Update(payload, 1.0, there.loss), personal

    def apply(self, state: Tree, mean: Tree, fraction: Any) -> Tree:
        """Add the mean weighted difference over the mean step, times `server_rate`; statistics are averaged."""
        params, statistics = state["params"], mean.get("statistics", {})
        share = self.server_rate / mean["step"].reshape(()).clip(LEAST_STEP, float("inf"))
        moved = tree.add(tree.take(params, mean["params"]), mean["params"], share)
        kept = tree.add(tree.take(params, statistics), statistics)
        return {**state, "params": tree.merge(params, {**moved, **kept})}
