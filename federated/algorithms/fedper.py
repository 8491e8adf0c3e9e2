"""FedPer, FedRep, FedBN: some parameters are learned together, some stay on the device.

Arivazhagan et al., "Federated Learning with Personalization Layers", 2019 (FedPer: all at once); Collins et al.,
"Exploiting Shared Representations for Personalized Federated Learning", ICML 2021, algorithm 1 (FedRep: first the head,
then the body); Li et al., "FedBN: Federated Learning on Non-IID Features via Local Batch Normalization", ICLR 2021.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from federated import tree
from federated.algorithms.base import Algorithm, Update, below_one
from federated.algorithms.steps import part, tune
from federated.errors import FederatedError
from federated.learner import Batch, Learner
from federated.tree import Tree

__all__ = ["FedBN", "FedPer", "FedRep"]


@dataclass(frozen=True)
class FedPer(Algorithm):
    """`own`: glob patterns of the parameters that stay on the device; `rate`: of local SGD; `momentum`: of SGD
    on a device, which begins anew in each round; `server_rate`; `tuning_rate`: of SGD when a device adapts.

    Broadcast: `params`; the parameters that stay on devices are in it with their initial values, for new devices.
    Payload: `params`, the change of the shared ones. Personal: `params`, the device's own.
    """

    name = "fedper"
    own: tuple[str, ...] = ("head*",)
    rate: float = 0.05
    server_rate: float = 1.0
    tuning_rate: float = 0.05
    momentum: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        below_one(self, "momentum")

    def init(self, params: Tree) -> Tree:
        """FederatedError unless some parameters match `own` and some do not."""
        own, shared = tree.split(params, self.own)
        if not own or not shared:
            raise FederatedError(
                f"{self.name}: expected own = {list(self.own)} to match some parameters and to leave some to share, "
                f"got {len(own)} and {len(shared)} of {', '.join(params)}"
            )
        return super().init(params)

    def enrol(self, broadcast: Tree) -> Tree:
        """The device's own parameters with their initial values."""
        return {"params": tree.split(broadcast["params"], self.own)[0]}

    def local(self, learner: Learner, broadcast: Tree, personal: Tree, batches: Batch) -> tuple[Update, Tree]:
        """Train; send the shared parameters, keep the others."""
        before = self.start(broadcast, personal)
        params, loss = self.train(learner, before, batches)
        own, shared = tree.split(params, self.own)
        return Update({"params": tree.sub(shared, tree.take(before, shared))}, 1.0, loss), {"params": own}

    def train(self, learner: Learner, params: Tree, batches: Batch) -> tuple[Tree, Any]:
        """Both at once."""
        return self.steps(learner, params, batches, self.rate, params)

    def apply(self, state: Tree, mean: Tree, fraction: Any) -> Tree:
        """Add the mean difference times `server_rate` to the shared parameters."""
        params = state["params"]
        moved = tree.add(tree.take(params, mean["params"]), mean["params"], self.server_rate)
        return {**state, "params": tree.merge(params, moved)}

    def start(self, broadcast: Tree, personal: Tree) -> Tree:
        """The shared parameters with the device's own."""
        return tree.merge(broadcast["params"], personal["params"])

    def personalise(self, learner: Learner, broadcast: Tree, personal: Tree, support: Batch) -> Tree:
        """Fine-tune all."""
        return self.steps(learner, self.start(broadcast, personal), support, self.tuning_rate, broadcast["params"])[0]

    def steps(
        self, learner: Learner, params: Tree, batches: Batch, rate: float, moving: Collection[str]
    ) -> tuple[Tree, Any]:
        """`steps.tune`."""
        return tune(learner, params, batches, rate, moving, momentum=self.momentum)


@dataclass(frozen=True)
class FedRep(FedPer):
    """Trains the head on the first `head_steps` of a round's batches, the body on the others. If there are fewer
    batches, the last is for the body; a single one is for both. Adapting trains only the head, as the paper does for
    new devices."""

    name = "fedrep"
    head_steps: int = 5

    def train(self, learner: Learner, params: Tree, batches: Batch) -> tuple[Tree, Any]:
        """First the head, then the body."""
        count = batches.labels.shape[0]
        first = min(self.head_steps, max(1, count - 1))
        own, shared = tree.split(params, self.own)
        params, _ = self.steps(learner, params, part(batches, slice(0, first)), self.rate, own)
        return self.steps(learner, params, part(batches, slice(min(first, count - 1), count)), self.rate, shared)

    def personalise(self, learner: Learner, broadcast: Tree, personal: Tree, support: Batch) -> Tree:
        """Fine-tune the head."""
        return self.steps(learner, self.start(broadcast, personal), support, self.tuning_rate, personal["params"])[0]


@dataclass(frozen=True)
class FedBN(FedPer):
    """FedPer with `own` set to the scales, shifts and statistics of normalisation."""

    name = "fedbn"
    own: tuple[str, ...] = ("*bn*", "*norm*")
