"""Per-FedAvg: train parameters that are good after one gradient step, by several local steps of MAML.

Fallah, Mokhtari, Ozdaglar, "Personalized Federated Learning with Theoretical Guarantees: A Model-Agnostic
Meta-Learning Approach", NeurIPS 2020, algorithm 1: with v = w - alpha * grad f(w; D), a step is
w <- w - beta * (I - alpha * hessian f(w; D'')) grad f(v; D'). The first-order form omits the Hessian; HF computes its
product with the gradient by finite differences. With alpha = 0 both are FedAvg.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from federated import tree
from federated.algorithms.base import Algorithm, Update
from federated.algorithms.steps import descend, groups, part
from federated.learner import Batch, Gradient, Learner, sgd
from federated.tree import Tree

__all__ = ["PerFedAvg", "PerFedAvgHF"]


@dataclass(frozen=True)
class PerFedAvg(Algorithm):
    """`alpha`: rate of the step to adapt; `beta`: of local meta-steps; `server_rate`: of the server's.

    A local step takes batches D, D'. Broadcast: `params`. Payload: `params`, the device's difference.
    """

    name = "perfedavg"
    batches_a_step = 2
    local_rates = ("beta",)
    alpha: float = 0.05
    beta: float = 0.05
    server_rate: float = 1.0

    def local(self, learner: Learner, broadcast: Tree, personal: Tree, batches: Batch) -> tuple[Update, Tree]:
        """Meta-steps; the payload is the difference."""

        def step(params: Tree, group: Batch) -> tuple[Tree, Any]:
            gradient = self.meta(learner, params, group)
            return sgd(params, gradient, self.beta), gradient.loss

        params, losses = learner.scan(step, broadcast["params"], groups(batches, self.batches_a_step))
        return Update({"params": tree.sub(params, broadcast["params"])}, 1.0, losses.mean()), personal

    def meta(self, learner: Learner, params: Tree, group: Batch) -> Gradient:
        """The gradient of the loss on D' after a step on D, to first order."""
        ahead = sgd(params, learner.gradient(params, part(group, 0)), self.alpha)
        return learner.gradient(ahead, part(group, 1))

    def apply(self, state: Tree, mean: Tree, fraction: Any) -> Tree:
        """Add the mean difference times `server_rate`."""
        return {**state, "params": tree.add(state["params"], mean["params"], self.server_rate)}

    def personalise(self, learner: Learner, broadcast: Tree, personal: Tree, support: Batch) -> Tree:
        """The adapting step, once per batch; the paper takes one."""
        return descend(learner, broadcast["params"], support, self.alpha).params


@dataclass(frozen=True)
class PerFedAvgHF(PerFedAvg):
    """With the Hessian-vector product: grad f(v) - alpha * (grad f(w + delta g) - grad f(w - delta g)) / (2 delta) on
    D''.

    A local step takes batches D, D', D''; it costs twice the gradients of the first-order form.
    """

    name = "perfedavg_hf"
    batches_a_step = 3
    delta: float = 1e-2

    def meta(self, learner: Learner, params: Tree, group: Batch) -> Gradient:
        """The gradient with its second-order part."""
        outer = super().meta(learner, params, group)
        here, third = tree.take(params, outer.grads), part(group, 2)
        above, below = (
            learner.gradient(tree.merge(params, tree.add(here, outer.grads, side)), third).grads
            for side in (self.delta, -self.delta)
        )
        curved = tree.sub(above, below)
        return outer._replace(grads=tree.add(outer.grads, curved, -self.alpha / (2 * self.delta)))
