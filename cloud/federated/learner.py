"""`JaxLearner`: the learner interface of federated algorithms for an ONNX model, computed by JAX."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import onnx_ir as ir

from cloud.engine import lower
from cloud.errors import TrainError
from cloud.federated.products import as_products
from cloud.train.stepping.losses import LOSSES, PerExample
from federated import tree
from federated.learner import Batch, Evaluation, Gradient
from federated.tree import Tree

__all__ = ["JaxLearner"]

Carry = TypeVar("Carry")

UNROLLED = 4
"""Local steps in one turn of XLA's loop. A turn has a cost of its own, which counts for small models: softmax
regression 561-6, 4 steps on batches of 50, takes 140 µs of core time per device instead of 178 (medians of 6 runs in
turns, two threads); a convolutional network is as fast as before and takes 1 s longer to compile."""


class JaxLearner:
    """The learner of `model`'s one output: pure functions that can be jitted, mapped and differentiated.

    `loss`: a name in `cloud.train.stepping.losses.LOSSES`, or a function (output, labels) -> one float per example;
    `trainable`: glob patterns of initialisers, see `cloud.engine.lower`. Batches name the model's inputs.
    """

    second_order = True

    def __init__(
        self, model: ir.Model, loss: str | PerExample = "softmax_cross_entropy", trainable: Sequence[str] | None = None
    ) -> None:
        self._function = as_products(lower(model, training=True, trainable=trainable))
        if len(self._function.outputs) != 1:
            names = [spec.name for spec in self._function.outputs]
            raise TrainError(f"expected a model with one output for the loss, got {names}; remove the others")
        if isinstance(loss, str) and loss not in LOSSES:
            raise TrainError(f"expected a loss of {', '.join(LOSSES)}, or a function, got {loss!r}")
        self._loss = LOSSES[loss] if isinstance(loss, str) else loss
        self._pool: Batch | None = None

    def over(self, pool: Batch) -> JaxLearner:
        """This learner for batches of indices: every leaf holds indices of examples in `pool` [examples, ...].

        Examples are gathered in the step that uses them, so that a device's whole data is never copied.
        """
        learner = copy.copy(self)
        learner._pool = pool
        return learner

    @property
    def params(self) -> dict[str, jax.Array]:
        """Trainable parameters, then running statistics."""
        return {**self._function.params, **self._function.state}

    def gradient(self, params: Tree, batch: Batch) -> Gradient:
        """See `federated.learner.Learner`."""
        weights, state = self._split(params)
        (loss, moved), grads = jax.value_and_grad(self._mean_loss, has_aux=True)(weights, state, batch)
        return Gradient(loss, grads, moved)

    def meta_gradient(self, params: Tree, rates: Tree, support: Batch, query: Batch) -> tuple[Gradient, Tree]:
        """See `federated.learner.Learner`; exact, by differentiating through the steps on `support`."""
        weights, state = self._split(params)

        def asked(weights: Tree, rates: Tree) -> tuple[Any, Any]:
            def step(carry: tuple[Any, Any], batch: Batch) -> tuple[tuple[Any, Any], None]:
                weights, state = carry
                grads, state = jax.grad(self._mean_loss, has_aux=True)(weights, state, batch)
                return (tree.sub(weights, tree.mul(rates, grads)), state), None

            (adapted, moved), _ = jax.lax.scan(step, (dict(weights), dict(state)), support)
            return self._mean_loss(adapted, moved, query)

        rates = tree.take(rates, weights)
        (loss, moved), (grads, slopes) = jax.value_and_grad(asked, (0, 1), has_aux=True)(weights, rates)
        return Gradient(loss, grads, moved), slopes

    def evaluate(self, params: Tree, batch: Batch) -> Evaluation:
        """See `federated.learner.Learner`."""
        return self.measure(params, batch, jnp.ones(len(batch.labels), jnp.float32))

    def measure(self, params: Tree, batch: Batch, mask: Any) -> Evaluation:
        """`evaluate` over the examples whose `mask` [n] is 1; 0: padding."""
        weights, state = self._split(params)
        batch = self._read(batch)
        output = self._output(weights, state, batch, train=False)[0]
        loss = jnp.sum(jnp.where(mask > 0, self._loss(output, batch.labels), 0))
        right = jnp.sum(jnp.where(mask > 0, _right(output, batch.labels), 0))
        return Evaluation(loss, right, jnp.sum(mask))

    def scan(
        self, step: Callable[[Carry, Batch], tuple[Carry, Any]], carry: Carry, batches: Batch
    ) -> tuple[Carry, Any]:
        """`jax.lax.scan`."""
        return jax.lax.scan(step, carry, batches, unroll=UNROLLED)

    def _read(self, batch: Batch) -> Batch:
        """The examples that a batch refers to, or the batch itself if it contains them."""
        if self._pool is None:
            return batch
        examples: Batch = jax.tree.map(lambda leaf, rows: leaf[rows], self._pool, batch)
        return examples

    def _split(self, params: Tree) -> tuple[dict[str, Any], dict[str, Any]]:
        return tree.take(params, self._function.params), tree.take(params, self._function.state)

    def _mean_loss(self, weights: Tree, state: Tree, batch: Batch) -> tuple[Any, Any]:
        batch = self._read(batch)
        output, state = self._output(weights, state, batch, train=True)
        return jnp.mean(self._loss(output, batch.labels)), state

    def _output(self, weights: Tree, state: Tree, batch: Batch, *, train: bool) -> tuple[Any, dict[str, Any]]:
        outputs, state = self._function.apply(weights, state, dict(batch.inputs), train=train)
        return next(iter(outputs.values())), state


def _right(output: Any, labels: Any) -> Any:
    """Per example, 1 if the highest output is the label's; zeros for regression."""
    if not np.issubdtype(labels.dtype, np.integer):
        return jnp.zeros(len(labels), jnp.float32)
    return (jnp.argmax(output, axis=-1) == labels).astype(jnp.float32)
