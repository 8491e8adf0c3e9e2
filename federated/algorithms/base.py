"""The interface of a federated algorithm: pure functions over trees, the same on devices, servers and in simulation.

    state = algorithm.init(params)                                            the server, once
    broadcast = algorithm.broadcast(state)                                    sent to the devices of a round
    update, personal = algorithm.local(learner, broadcast, personal, batches) on each of them
    state = algorithm.apply(state, mean_of_payloads, fraction)                the server again

Between `local` and `apply` come codecs, noise, secure sums and robust means, which see only `Update.payload`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, NamedTuple

from federated.errors import FederatedError
from federated.learner import Batch, Learner
from federated.tree import Tree

__all__ = ["Algorithm", "Update"]

MOST = 10_000
"""The largest integer hyperparameter, a count of steps: a device does as many as the server's message says."""
MOST_REAL = 1e300


class Update(NamedTuple):
    """What a device sends. `payload` is small if little was learned (a difference or a gradient), as clipping, sparse
    codecs and medians require; `weight` is its share in the mean; `loss` the mean training loss."""

    payload: Tree
    weight: Any
    loss: Any


@dataclass(frozen=True)
class Algorithm(ABC):
    """Hyperparameters are fields of the subclass; methods never change their arguments.

    Numbers must be finite and not negative, integers from 1 to MOST; otherwise FederatedError. An empty subtree may be
    lost between devices and server, so `apply` must work without subtrees that can be empty.
    """

    name: ClassVar[str]
    batches_a_step: ClassVar[int] = 1
    """Batches that one local step draws: meta-learners take one to adapt on and one to evaluate on afterwards."""
    second_order: ClassVar[bool] = False
    """Whether `local` needs `Learner.meta_gradient`."""

    uniform: bool = field(default=False, kw_only=True)
    """Whether all devices have the same weight in the mean, regardless of their number of examples."""

    def __post_init__(self) -> None:
        for entry in fields(self):
            value = getattr(self, entry.name)
            if isinstance(value, bool) or not isinstance(value, int | float):
                continue
            least, most = (1, MOST) if entry.type == "int" else (0, MOST_REAL)
            if not least <= value <= most:
                wanted = f"{least} to {most}" if entry.type == "int" else "at least 0"
                raise FederatedError(f"{self.name}: expected {entry.name} of {wanted}, got {str(value)[:80]}")

    def init(self, params: Tree) -> Tree:
        """The server's initial state; everything that a checkpoint must contain."""
        return {"params": dict(params)}

    def model(self, state: Tree) -> Tree:
        """The global model's parameters."""
        params: Tree = state["params"]
        return params

    def broadcast(self, state: Tree) -> Tree:
        """What is sent to the devices of a round."""
        return {"params": self.model(state)}

    def enrol(self, broadcast: Tree) -> Tree:
        """The initial personal state of a new device; {}: none."""
        return {}

    @abstractmethod
    def local(self, learner: Learner, broadcast: Tree, personal: Tree, batches: Batch) -> tuple[Update, Tree]:
        """A device's work in a round over batches [steps * batches_a_step, n, ...]: its update (weight 1, which the
        caller multiplies by the device's number of examples unless `uniform`), and its personal state afterwards."""

    @abstractmethod
    def apply(self, state: Tree, mean: Tree, fraction: Any) -> Tree:
        """The server's next state from the mean payload; `fraction` of all devices took part."""

    def start(self, broadcast: Tree, personal: Tree) -> Tree:
        """The parameters with which a device predicts before it adapts."""
        params: Tree = broadcast["params"]
        return params

    @abstractmethod
    def personalise(self, learner: Learner, broadcast: Tree, personal: Tree, support: Batch) -> Tree:
        """The parameters with which a device predicts after adapting to its own batches [steps, n, ...]."""
