"""The interface of a federated algorithm: pure functions over trees, the same on devices, servers and in simulation.

    state = algorithm.init(params)                                            the server, once
    broadcast = algorithm.broadcast(state)                                    sent to the devices of a round
    update, personal = algorithm.local(learner, broadcast, personal, batches) on each of them
    state = algorithm.apply(state, mean_of_payloads, fraction)                the server again

Between `local` and `apply` come codecs, noise, secure sums and robust means, which see only `Update.payload`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, NamedTuple, Self

from federated import tree
from federated.errors import FederatedError
from federated.learner import Batch, Learner, Shaped
from federated.tree import Tree

__all__ = ["Algorithm", "Update", "below_one"]

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
    instead: ClassVar[tuple[str, ...]] = ()
    """If `second_order`: names of similar algorithms without it."""

    local_rates: ClassVar[tuple[str, ...]] = ("rate",)
    """The fields with the rates of a device's steps in training, which a schedule changes."""
    server_rates: ClassVar[tuple[str, ...]] = ("server_rate",)
    excludes: ClassVar[Mapping[str, str]] = {}
    """Names of update transforms (`Transforms.features`) that the algorithm cannot be combined with, and the reason."""
    switches: ClassVar[tuple[str, ...]] = ("clip_norm", "weight_decay", "momentum")
    """Fields that are off if they are 0; what is off is never traced by JAX."""

    uniform: bool = field(default=False, kw_only=True)
    """Whether all devices have the same weight in the mean, regardless of their number of examples."""
    clip_norm: float = field(default=0.0, kw_only=True)
    """The largest norm of the gradients of one step on a device, in training and adapting; 0: any."""
    weight_decay: float = field(default=0.0, kw_only=True)
    """The multiple of matrices and filters that is added to their gradients on a device."""

    def __post_init__(self) -> None:
        idle = self.idle()
        for entry in fields(self):
            if entry.name in idle and getattr(self, entry.name) != entry.default:
                raise FederatedError(f"{self.name}: {entry.name} has no effect {idle[entry.name]}; omit it")
        for entry in fields(self):
            value = getattr(self, entry.name)
            if isinstance(value, bool) or not isinstance(value, int | float):
                continue
            least, most = (1, MOST) if entry.type == "int" else (0, MOST_REAL)
            if not least <= value <= most:
                wanted = f"{least} to {most}" if entry.type == "int" else "at least 0"
                raise FederatedError(f"{self.name}: expected {entry.name} of {wanted}, got {str(value)[:80]}")

    def idle(self) -> Mapping[str, str]:
        """Fields without effect, which must have their defaults, and the reason, such as "with server 'sgd'"."""
        names = ("clip_norm", "weight_decay") if self.second_order else ()
        return dict.fromkeys(names, "on exact second-order gradients")

    def shaped(self, learner: Learner) -> Learner:
        """The learner that `local` and `personalise` must be given: with `clip_norm` and `weight_decay`."""
        shaping = tree.is_on(self.clip_norm) or tree.is_on(self.weight_decay)
        return Shaped(learner, self.clip_norm, self.weight_decay) if shaping else learner

    def with_rates(self, factors: Mapping[str, float]) -> Self:
        """The same with these fields multiplied."""
        return replace(self, **{name: getattr(self, name) * factor for name, factor in factors.items()})

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


def below_one(algorithm: Algorithm, *names: str) -> None:
    """Raises FederatedError unless these fields, decay rates, are below 1."""
    for name in names:
        if not getattr(algorithm, name) < 1:
            raise FederatedError(f"{algorithm.name}: expected {name} below 1, got {getattr(algorithm, name)}")
