"""The structure of a round's updates, computed from the model and the algorithm alone.

The server must know the shape of every update before it reads the first one. It is found by running the algorithm once
with a learner whose gradients are zero.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from federated import tree
from federated.algorithms import Algorithm
from federated.codec import Spec
from federated.learner import Batch, Evaluation, Gradient
from federated.tree import Tree

__all__ = ["payload_spec"]

Carry = TypeVar("Carry")


@dataclass
class _Still:
    """A learner with the names and shapes of parameters and zero gradients."""

    params: Tree
    statistics: tuple[str, ...]
    second_order: bool = True

    def gradient(self, params: Tree, batch: Batch) -> Gradient:
        trained = {name: leaf for name, leaf in params.items() if name not in self.statistics}
        return Gradient(np.float32(0), tree.zeros(trained), tree.take(params, self.statistics))

    def meta_gradient(self, params: Tree, rates: Tree, support: Batch, query: Batch) -> tuple[Gradient, Tree]:
        gradient = self.gradient(params, query)
        return gradient, gradient.grads

    def evaluate(self, params: Tree, batch: Batch) -> Evaluation:
        return Evaluation(np.float32(0), np.int64(0), np.int64(len(batch.labels)))

    def scan(
        self, step: Callable[[Carry, Batch], tuple[Carry, Any]], carry: Carry, batches: Batch
    ) -> tuple[Carry, Any]:
        outs = []
        for at in range(len(batches.labels)):
            carry, out = step(carry, Batch({name: x[at] for name, x in batches.inputs.items()}, batches.labels[at]))
            outs.append(out)
        if isinstance(outs[0], dict):
            return carry, tree.map_leaves(lambda *leaves: np.stack(leaves), outs[0], *outs[1:])
        return carry, np.stack(outs)


def payload_spec(algorithm: Algorithm, params: Tree, statistics: tuple[str, ...]) -> Spec | None:
    """The structure of what devices send; None if they send nothing. `statistics`: the parameters without gradient."""
    broadcast = algorithm.broadcast(algorithm.init(params))
    nothing = np.zeros((2 * algorithm.batches_a_step, 1), np.float32)
    update, _ = algorithm.local(
        _Still(params, statistics), broadcast, algorithm.enrol(broadcast), Batch({"x": nothing}, nothing)
    )
    return Spec.of(update.payload) if any(True for _ in tree.leaves(update.payload)) else None
