"""MetaHead: a body learned by all devices to be flat and quick to adapt, and a head for each device.

Our own combination of published methods. Of two batches the common model takes a step on the first, with the gradient
taken a little uphill (Foret et al., "Sharpness-Aware Minimization", ICLR 2021; on devices: Qu et al., "Generalized
Federated Learning via Sharpness Aware Minimization", ICML 2022): flat minima generalise better to new people. Then it
takes one with the gradient on the second batch at the point that a step on the first leads to (Finn et al. 2017, first
order; several per round: Fallah et al. 2020): the result adapts within few steps. The head stays on the device
(Arivazhagan et al. 2019).

Learned rates as in Meta-SGD were tried and lost: participating devices are fitted already, so that any rate looks good
on them; the learned rates made steps on new people too long.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from federated import tree
from federated.algorithms.base import Update
from federated.algorithms.fedper import FedPer
from federated.algorithms.steps import groups, part
from federated.learner import Batch, Gradient, Learner, sgd
from federated.tree import Tree

__all__ = ["MetaHead"]

TINY = 1e-12
"""Avoids a division by zero for a gradient of zeros."""


@dataclass(frozen=True)
class MetaHead(FedPer):
    """`own`: glob patterns of the head; `rate`: of local steps; `sharpness`: how far uphill gradients are taken (0: not
    at all); `inner_rate`: of the look-ahead in a meta-step; `server_rate`; `tuning_rate`: of the device's head on a
    round's batches, and of SGD when a device adapts.

    A local step takes two batches and costs four gradients; the head costs two more. Broadcast: `params`, with the
    initial head for new devices. Payload: `params`, the device's changes, including that of the common head. Personal:
    `params`, the device's head.
    """

    name = "meta_head"
    batches_a_step = 2
    rate: float = 0.1
    tuning_rate: float = 0.1
    sharpness: float = 0.1
    inner_rate: float = 0.1
    uniform: bool = field(default=True, kw_only=True)

    def idle(self) -> Mapping[str, str]:
        """Momentum: a gradient of the common model is taken uphill or ahead, never at the same place twice."""
        return {**super().idle(), "momentum": "on these steps"}

    def local(self, learner: Learner, broadcast: Tree, personal: Tree, batches: Batch) -> tuple[Update, Tree]:
        """Steps of the common model, then of the device's head on the resulting body."""

        def step(params: Tree, pair: Batch) -> tuple[Tree, Any]:
            first, second = part(pair, 0), part(pair, 1)
            params = sgd(params, self.uphill(learner, params, first), self.rate)
            here = learner.gradient(params, first)
            ahead = learner.gradient(sgd(params, here, self.inner_rate), second)
            return sgd(params, ahead, self.rate), here.loss

        start: Tree = broadcast["params"]
        params, losses = learner.scan(step, start, groups(batches, self.batches_a_step))
        head = personal["params"]
        trained, _ = self.steps(learner, tree.merge(params, head), batches, self.tuning_rate, head)
        return Update({"params": tree.sub(params, start)}, 1.0, losses.mean()), {"params": tree.take(trained, head)}

    def uphill(self, learner: Learner, params: Tree, batch: Batch) -> Gradient:
        """The gradient at the point that is `sharpness` further along the gradient."""
        here = learner.gradient(params, batch)
        norm = tree.dot(here.grads, here.grads) ** 0.5
        there = sgd(params, here, -self.sharpness / (norm + TINY))
        return learner.gradient(there, batch)._replace(statistics=here.statistics)
