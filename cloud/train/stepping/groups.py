"""Groups of parameters, by glob patterns of their names: learning rates and optimisers of their own."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import optax

from cloud.errors import TrainError
from cloud.train.stepping.freeze import names
from cloud.train.stepping.layers import layers_of
from cloud.train.tasks.task import Task

__all__ = ["Group", "grouped", "layer_factors"]

_OTHERS = "others"


@dataclass(frozen=True)
class Group:
    """Parameters whose names match one of the glob patterns `match`. `rate` multiplies their updates (weight decay
    included), and so their learning rate; `optimizer`: their own instead of the trainer's, with its own weight decay. A
    parameter belongs to the first group that matches it."""

    match: Sequence[str]
    rate: float = 1.0
    optimizer: optax.GradientTransformation | None = None

    def __post_init__(self) -> None:
        if isinstance(self.match, str) or not self.match:
            raise TrainError(f"expected a list of patterns for a group of parameters, got {self.match!r}")
        if not 0 <= self.rate < float("inf"):
            raise TrainError(f"expected a factor of at least 0 for the rate of {list(self.match)}, got {self.rate}")


def layer_factors(layers: Sequence[Sequence[str]], decay: float) -> dict[str, float]:
    """By parameter: `decay` to the power of the number of layers behind its own (the last layer has factor 1)."""
    if not 0 < decay <= 1:
        raise TrainError(f"expected a decay above 0 and at most 1 for the rates of layers, got {decay}")
    last = len(layers) - 1
    return {name: decay ** (last - i) for i, layer in enumerate(layers) for name in layer}


def grouped(
    optimizer: optax.GradientTransformation, groups: Sequence[Group], task: Task, layer_decay: float | None = None,
    layers: Sequence[str] = (),
) -> optax.GradientTransformation:  # fmt: skip
    """`optimizer` with these groups of a task's parameters, and with `layer_decay` if it is given. Raises TrainError
    for patterns that match no parameter."""
    if layer_decay is None and layers:
        raise TrainError("expected layer_decay together with layers, which name what it counts")
    if layer_decay is None and not groups:
        return optimizer
    there = names(task.init()[0])
    factors = {} if layer_decay is None else layer_factors(layers_of(task, layers), layer_decay)
    for group in groups:
        if idle := [pattern for pattern in group.match if not fnmatch.filter(there, pattern)]:
            raise TrainError(f"expected patterns of parameters for a group, got {idle}, which match none of {there}")
    home = {name: next((i for i, group in enumerate(groups) if _is_in(name, group)), -1) for name in there}
    for name, i in home.items():
        factors[name] = factors.get(name, 1.0) * (groups[i].rate if i >= 0 else 1.0)
    own = {str(i): group.optimizer for i, group in enumerate(groups) if group.optimizer is not None}
    if own:
        label = {name: str(i) if str(i) in own else _OTHERS for name, i in home.items()}
        optimizer = optax.partition(
            {**own, _OTHERS: optimizer}, lambda tree: _named(tree, lambda name, _: label[name])
        )  # fmt: skip
    if all(factor == 1 for factor in factors.values()):
        return optimizer

    def scaled(updates: Any, _params: Any) -> Any:
        return _named(updates, lambda name, update: update * factors[name])

    return optax.chain(optimizer, optax.stateless(scaled))


def _is_in(name: str, group: Group) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in group.match)


def _named(tree: Any, function: Any) -> Any:
    """`function(name, leaf)` of every array."""
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: function(jax.tree_util.keystr(path, simple=True, separator="/"), leaf), tree
    )
