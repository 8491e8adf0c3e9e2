"""The interface between algorithms and what computes gradients: a bundle on a device, or JAX in the simulator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol, TypeVar

from federated import tree
from federated.tree import Array, Tree

__all__ = ["Batch", "Evaluation", "Gradient", "Learner", "sgd"]

Carry = TypeVar("Carry")


class Batch(NamedTuple):
    """Examples. Arrays share their leading axes: [n, ...], or [steps, n, ...] for a sequence of batches."""

    inputs: Mapping[str, Array]
    labels: Array


class Gradient(NamedTuple):
    """The mean loss over a batch (float32 scalar), its gradients, and values that training changes otherwise (running
    statistics); `grads` and `statistics` together contain names of the parameter tree, each once."""

    loss: Array
    grads: Tree
    statistics: Tree


class Evaluation(NamedTuple):
    """Sums over the evaluated examples; the mean loss is `loss / examples`. If an example has several
    labels, or some that are ignored, `examples` counts labels."""

    loss: Array
    correct: Array
    examples: Array


class Learner(Protocol):
    """Pure functions of a parameter tree."""

    second_order: bool
    """Whether `meta_gradient` is available."""

    @property
    def params(self) -> Tree:
        """The initial values: trainable parameters and running statistics by name."""

    def gradient(self, params: Tree, batch: Batch) -> Gradient:
        """Loss and gradients at `params`, the model in training form."""

    def meta_gradient(self, params: Tree, rates: Tree, support: Batch, query: Batch) -> tuple[Gradient, Tree]:
        """The query loss after one step `params - rates * grad(support)` per batch of `support` [steps, n, ...]:
        its exact gradient with respect to params and to rates (Finn et al. 2017; Li et al. 2017)."""

    def evaluate(self, params: Tree, batch: Batch) -> Evaluation:
        """The model in inference form on [n, ...] examples."""

    def scan(
        self, step: Callable[[Carry, Batch], tuple[Carry, Any]], carry: Carry, batches: Batch
    ) -> tuple[Carry, Any]:
        """`carry, out = step(carry, batch)` over batches [steps, n, ...]; the last carry, and the outs stacked (a tree
        or an array). A loop on a device, `jax.lax.scan` in the simulator."""


def sgd(params: Tree, gradient: Gradient, rate: Any) -> dict[str, Any]:
    """One step of gradient descent; statistics take their new values. Parameters without a gradient stay.

    `rate`: a number, or a tree with a rate for every element that has a gradient.
    """
    grads = gradient.grads
    moving = tree.take(params, grads)
    if isinstance(rate, Mapping):
        moved = tree.map_leaves(lambda x, slope, r: x - r * slope, moving, grads, rate)
    else:
        moved = tree.map_leaves(lambda x, slope: x - rate * slope, moving, grads)
    return tree.merge(params, {**moved, **gradient.statistics})
