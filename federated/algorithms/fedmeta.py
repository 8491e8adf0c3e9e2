"""FedMeta: devices adapt on some examples, evaluate on others, and send that loss's gradient at the common start.

Chen et al., "Federated Meta-Learning with Fast Convergence and Efficient Communication", 2018, algorithm 1, over MAML
(Finn, Abbeel, Levine, "Model-Agnostic Meta-Learning for Fast Adaptation of Deep Networks", ICML 2017), its first-order
form FOMAML, and Meta-SGD (Li et al., "Meta-SGD: Learning to Learn Quickly for Few-Shot Learning", 2017), which also
learns the rate of every parameter.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from federated import tree
from federated.algorithms.base import Update
from federated.algorithms.server_step import ServerStep
from federated.algorithms.steps import accumulate, descend, groups, look_ahead, part, repeat
from federated.errors import FederatedError
from federated.learner import Batch, Learner
from federated.tree import Tree

__all__ = ["FOMAML", "MAML", "MetaSGD", "MetaSGDExact"]

MOST_REMEMBERED = 100


@dataclass(frozen=True)
class FOMAML(ServerStep):
    """`rate`: of the `inner_steps` on a support batch; the others belong to the server's optimiser, see `ServerStep`.

    A local step takes a batch to adapt on and one to evaluate on. Broadcast: `params`. Payload: `params`, minus the
    query gradient, mean over the steps, all taken at the broadcast parameters; `statistics`, their change.
    """

    name = "fomaml"
    batches_a_step = 2
    local_rates = ()
    rate: float = 0.05
    inner_steps: int = 1

    def local(self, learner: Learner, broadcast: Tree, personal: Tree, batches: Batch) -> tuple[Update, Tree]:
        """The mean direction over pairs of batches."""
        start, rates = broadcast["params"], self.rates(broadcast)
        ask = learner.meta_gradient if self.second_order else partial(look_ahead, learner)

        def step(carry: tuple[Tree, Tree, Tree], pair: Batch) -> tuple[tuple[Tree, Tree, Tree], Any]:
            params, grads, slopes = carry
            gradient, slope = ask(params, rates, repeat(part(pair, 0), self.inner_steps), part(pair, 1))
            params = tree.merge(params, gradient.statistics)
            carry = params, accumulate(grads, gradient.grads), accumulate(slopes, slope)
            return carry, {"loss": gradient.loss, "statistics": gradient.statistics}

        nothing = tree.zeros(start)
        first: tuple[Tree, Tree, Tree] = start, nothing, nothing if "rates" in self.learned else {}
        (params, grads, slopes), seen = learner.scan(step, first, groups(batches, self.batches_a_step))
        steps, names = batches.labels.shape[0] // self.batches_a_step, seen["statistics"]
        payload = {"params": tree.scale({name: leaf for name, leaf in grads.items() if name not in names}, -1 / steps)}
        if slopes:
            payload["rates"] = tree.scale(slopes, -1 / steps)
        if names:
            payload["statistics"] = tree.sub(tree.take(params, names), tree.take(start, names))
        return Update(payload, 1.0, seen["loss"].mean()), personal

    def rates(self, broadcast: Tree) -> Tree:
        """The rate of every element."""
        return tree.map_leaves(lambda x: x * 0 + self.rate, broadcast["params"])

    def personalise(self, learner: Learner, broadcast: Tree, personal: Tree, support: Batch) -> Tree:
        """The same steps as in training."""
        return descend(learner, broadcast["params"], support, self.rates(broadcast)).params


@dataclass(frozen=True)
class MAML(FOMAML):
    """With the exact gradient, through the steps on the support batch."""

    name = "maml"
    second_order = True
    instead = ("fomaml (to first order)", "perfedavg_hf (by finite differences)")

    def __post_init__(self) -> None:
        super().__post_init__()
        _few(self)


@dataclass(frozen=True)
class MetaSGD(FOMAML):
    """A rate for every element, learned by the server's optimiser like the parameters; `rate` is their initial value.

    State, broadcast and payload also have `rates`. First-order; for the gradients of the rates that is exact with one
    inner step.
    """

    name = "meta_sgd"
    learned = ("params", "rates")

    def init(self, params: Tree) -> Tree:
        """The model, its rates, and the moments of both."""
        rates = tree.map_leaves(lambda x: x * 0 + self.rate, params)
        learned = {"params": dict(params), "rates": rates}
        return {**learned, "slots": self.slots(learned)}

    def broadcast(self, state: Tree) -> Tree:
        """The model and its rates."""
        return {"params": state["params"], "rates": state["rates"]}

    def rates(self, broadcast: Tree) -> Tree:
        """The rates learned so far."""
        learned: Tree = broadcast["rates"]
        return learned


@dataclass(frozen=True)
class MetaSGDExact(MetaSGD):
    """Meta-SGD with the exact gradient, as published."""

    name = "meta_sgd_exact"
    second_order = True
    instead = ("meta_sgd (the rates' gradients are exact with one inner step)",)

    def __post_init__(self) -> None:
        super().__post_init__()
        _few(self)


def _few(algorithm: FOMAML) -> None:
    """Raises FederatedError for many inner steps: a device keeps the parameters of each for the way back."""
    if algorithm.inner_steps > MOST_REMEMBERED:
        raise FederatedError(
            f"{algorithm.name}: expected inner_steps of 1 to {MOST_REMEMBERED}, got {algorithm.inner_steps}: a device "
            "keeps the parameters of each"
        )
