"""The server's optimiser: the mean payload is a direction, from which momentum or adaptive rates make a step.

Reddi et al., "Adaptive Federated Optimization", ICLR 2021, algorithm 2 (adagrad, adam, yogi; without bias correction,
the second moment starts at tau^2); Hsu, Qi, Brown, "Measuring the Effects of Non-Identical Data Distribution for
Federated Visual Classification", 2019 (momentum).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from federated import tree
from federated.algorithms.base import Algorithm, below_one
from federated.errors import FederatedError
from federated.tree import Array, Tree

__all__ = ["SECOND_MOMENTS", "SERVERS", "ServerStep"]

SECOND_MOMENTS: Mapping[str, Callable[[Array, Array, float], Array]] = {
    "adagrad": lambda v, d, _: v + d * d,
    "adam": lambda v, d, beta: beta * v + (1 - beta) * (d * d),
    # v - (1 - beta) * d^2 * sign(v - d^2), the sign computed by products so that floats keep their dtype.
    "yogi": lambda v, d, beta: v - (1 - beta) * (d * d * (v > d * d) - d * d * (v < d * d)),
}
"""The next second moment for a direction d: v, d, beta2 -> v."""

USED: Mapping[str, tuple[str, ...]] = {
    "sgd": (),
    "momentum": ("beta1",),
    "adagrad": ("beta1", "tau"),
    "adam": ("beta1", "beta2", "tau"),
    "yogi": ("beta1", "beta2", "tau"),
}
"""The hyperparameters of each optimiser."""

SERVERS = ("sgd", "momentum", *SECOND_MOMENTS)


@dataclass(frozen=True)
class ServerStep(Algorithm):
    """Payloads hold directions under the names in `learned`; `statistics`, if any, are averaged without the optimiser.

    `server`: one of `SERVERS`; `server_rate`: its rate; `beta1`, `beta2`: decay of the moments; `tau`: avoids too large
    steps for small moments. State: what is learned, and `slots` with `first` and `second` moments of each.
    """

    learned: ClassVar[tuple[str, ...]] = ("params",)

    server: str = "adam"
    server_rate: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.server not in SERVERS:
            raise FederatedError(f"{self.name}: expected server to be one of {', '.join(SERVERS)}, got {self.server!r}")
        below_one(self, "beta1", "beta2")

    def idle(self) -> Mapping[str, str]:
        """What the server's optimiser does not use."""
        used = USED.get(self.server, USED["adam"])
        return {**super().idle(), **{name: f"with server {self.server!r}" for name in USED["adam"] if name not in used}}

    def init(self, params: Tree) -> Tree:
        """The model and the moments of its optimiser."""
        state = super().init(params)
        return {**state, "slots": self.slots({"params": params})}

    def slots(self, learned: Tree) -> Tree:
        """The moments before the first step."""
        moments: dict[str, Any] = {}
        if self.server != "sgd":
            moments["first"] = tree.zeros(learned)
        if self.server in SECOND_MOMENTS:
            moments["second"] = tree.map_leaves(lambda x: x * 0 + self.tau**2, learned)
        return moments

    def apply(self, state: Tree, mean: Tree, fraction: Any) -> Tree:
        """A step of the optimiser along the mean direction."""
        after: dict[str, Any] = dict(state)
        slots: Tree = state["slots"]
        for entry in self.learned:
            moments = {kind: moment[entry] for kind, moment in slots.items()}
            after[entry], moved = self._step(state[entry], moments, mean[entry])
            slots = {kind: {**moment, entry: moved[kind]} for kind, moment in slots.items()}
        statistics = mean.get("statistics", {})
        params = after["params"]
        after["params"] = tree.merge(params, tree.add(tree.take(params, statistics), statistics))
        return {**after, "slots": slots}

    def _step(self, values: Tree, moments: Tree, direction: Tree) -> tuple[Tree, Tree]:
        """The values and moments after a step; values without a direction (statistics) stay."""
        change, after = direction, {}
        if "first" in moments:
            share = 1.0 if self.server == "momentum" else 1 - self.beta1
            change = tree.map_leaves(lambda d, m: self.beta1 * m + share * d, direction, moments["first"])
            after["first"] = tree.merge(moments["first"], change)
        if "second" in moments:
            rule = SECOND_MOMENTS[self.server]
            second = tree.map_leaves(lambda d, v: rule(v, d, self.beta2), direction, moments["second"])
            change = tree.map_leaves(lambda m, v: m / (v**0.5 + self.tau), change, second)
            after["second"] = tree.merge(moments["second"], second)
        return tree.merge(values, tree.add(tree.take(values, change), change, self.server_rate)), after
