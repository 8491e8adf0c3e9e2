"""The interface between algorithms and what computes gradients: a bundle on a device, or JAX in the simulator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol, TypeVar

from federated import tree
from federated.errors import FederatedError
from federated.tree import Array, Tree

__all__ = ["NO_MODEL", "Batch", "Descends", "Evaluation", "Gradient", "Indexed", "Learner", "Shaped", "sgd"]

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


class Descends(Protocol):
    """What a learner may offer in addition: a whole descent at once."""

    def descend(
        self, params: Tree, batches: Batch, rate: float, pool: Batch | None = None
    ) -> tuple[Tree, Array] | None:
        """The parameters after steps of `sgd` with this rate over batches [steps, n, ...], or over the examples of
        `pool` that batches of numbers name, and the mean loss: the same bits as step by step. None if that cannot be
        done for these operands."""


class Shaped:
    """A learner whose gradients are clipped and then decayed; everything else is the given learner's.

    clip_norm: the largest Euclidean norm of a batch's gradients together, 0 for none (Pascanu et al., "On the
    Difficulty of Training Recurrent Neural Networks", ICML 2013). weight_decay: this multiple of the parameters is
    added to the gradients of matrices and filters, never of biases and scales. Both as in `converter.training`.
    """

    def __init__(self, learner: Learner, clip_norm: Any, weight_decay: Any) -> None:
        self._learner, self._clip_norm, self._weight_decay = learner, clip_norm, weight_decay
        self.second_order = learner.second_order
        self.meta_gradient, self.evaluate, self.scan = learner.meta_gradient, learner.evaluate, learner.scan

    @property
    def params(self) -> Tree:
        """The learner's."""
        return self._learner.params

    def gradient(self, params: Tree, batch: Batch) -> Gradient:
        """See `Learner`."""
        found = self._learner.gradient(params, batch)
        grads = found.grads
        if tree.is_on(self._clip_norm):
            norm = tree.dot(grads, grads) ** 0.5
            excess = (norm / self._clip_norm).clip(1.0, float("inf"))
            grads = tree.map_leaves(lambda slope: slope / excess, grads)
        if tree.is_on(self._weight_decay):
            grads = tree.map_leaves(
                lambda slope, x: slope + self._weight_decay * x if x.ndim >= 2 else slope, grads, params
            )
        return found._replace(grads=grads)


class Indexed:
    """A learner for batches of row numbers in `pool`; everything else is the given learner's.

    The examples are read in the step that uses them. A batch then takes the memory of the one before, in the
    processor's cache; to copy all batches of a round first evicts from it what the next device needs (200 examples of
    561 numbers: 0.4 MiB). Every leaf of a batch holds the numbers; `inputs` may be empty.
    """

    def __init__(self, learner: Learner, pool: Batch) -> None:
        self._learner, self._pool = learner, pool
        self.second_order, self.scan = learner.second_order, learner.scan

    @property
    def params(self) -> Tree:
        """The learner's."""
        return self._learner.params

    def gradient(self, params: Tree, batch: Batch) -> Gradient:
        """See `Learner`."""
        return self._learner.gradient(params, self._read(batch))

    def meta_gradient(self, params: Tree, rates: Tree, support: Batch, query: Batch) -> tuple[Gradient, Tree]:
        """See `Learner`."""
        return self._learner.meta_gradient(params, rates, self._read(support), self._read(query))

    def evaluate(self, params: Tree, batch: Batch) -> Evaluation:
        """See `Learner`."""
        return self._learner.evaluate(params, self._read(batch))

    def descend(
        self, params: Tree, batches: Batch, rate: float, pool: Batch | None = None
    ) -> tuple[Tree, Array] | None:
        """See `Descends`."""
        whole = getattr(self._learner, "descend", None)
        found: tuple[Tree, Array] | None = whole and whole(params, batches, rate, self._pool)
        return found

    def _read(self, batch: Batch) -> Batch:
        rows, pool = batch.labels, self._pool
        return Batch({name: values.take(rows, 0) for name, values in pool.inputs.items()}, pool.labels.take(rows, 0))


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


class _NoModel:
    """The learner of a device without a bundle. Messages that need a model name their bundle, which is not this
    device's, so none of this is reached."""

    second_order = False

    @property
    def params(self) -> Tree:
        """None."""
        return {}

    def _refuse(self, *operands: Any) -> Any:
        raise FederatedError("this device has no bundle: it answers questions and grows trees; install one to train")

    gradient = meta_gradient = evaluate = scan = _refuse


NO_MODEL: Learner = _NoModel()
