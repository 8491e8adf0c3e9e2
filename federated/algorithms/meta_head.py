"""MetaHead: a body that all devices learn so that it is flat and quick to adapt, and a head of its own for each device.

Ours, out of published parts. Of two batches the common model takes a step on the first, by the gradient a little uphill
(Foret et al., "Sharpness-Aware Minimization", ICLR 2021; on devices: Qu et al., "Generalized Federated Learning via
Sharpness Aware Minimization", ICML 2022): flat minima carry over to people never seen. Then one by the gradient on the
second where a step on the first leads (Finn et al. 2017, first order; several a round: Fallah et al. 2020): what is
learned adapts within few steps. The head stays on the device (Arivazhagan et al. 2019).

Rates learned as in Meta-SGD were part of it and lost: devices that take part are fitted already, so that any rate looks
good on them; what they learned made steps on people never seen too long.
"""

from __future__ import annotations

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
"""Keeps a gradient of nothing but zeros from being divided by its norm."""


@dataclass(frozen=True)
class MetaHead(FedPer):
    """`own`: glob patterns of the head; `rate`: of local steps; `sharpness`: how far uphill gradients are taken, 0 at
    the spot; `inner_rate`: of the step ahead of a meta-step; `server_rate`; `tuning_rate`: of the device's own head on
    a round's batches, and of SGD when a device adapts.

    A local step takes two batches and costs four gradients; the head costs two more. Broadcast: `params`, with the head
    that a new device starts from. Payload: `params`, how far the device moved them, that head included. Personal:
    `params`, the device's head.
    """

    name = "meta_head"
    batches_a_step = 2
    rate: float = 0.1
    tuning_rate: float = 0.1
    sharpness: float = 0.1
    inner_rate: float = 0.1
    uniform: bool = field(default=True, kw_only=True)

    def local(self, learner: Learner, broadcast: Tree, personal: Tree, batches: Batch) -> tuple[Update, Tree]:
        """Steps of the common model; then of the device's own head on the body it now has."""

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
        """The gradient `sharpness` along the gradient from here."""
        here = learner.gradient(params, batch)
        norm = tree.dot(here.grads, here.grads) ** 0.5
        there = sgd(params, here, -self.sharpness / (norm + TINY))
        return learner.gradient(there, batch)._replace(statistics=here.statistics)
