"""Shadow models: the target's recipe trained again on random halves of the examples, all of them by one program.

Shokri, Stronati, Song and Shmatikov, "Membership Inference Attacks Against Machine Learning Models", S&P 2017. Models
come in pairs, one on a random half and one on the other, so that every example was seen by exactly half of the models.
A step is the Trainer's; `group` models take it side by side (`vmap`), groups follow one another (`lax.map`).
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import optax

from cloud.audit.privacy.membership.signals import Array, logit_confidence
from cloud.errors import AuditError
from cloud.federated.products import as_products
from cloud.train.inputs.augment import Augment
from cloud.train.stepping.heads import Loss
from cloud.train.stepping.step import Objective, Recipe, TrainState
from cloud.train.tasks import Task, as_task
from cloud.train.trainer import Trainer

if TYPE_CHECKING:
    import onnx_ir as ir

__all__ = ["Shadows", "View", "halves", "train_shadows"]

View: TypeAlias = Callable[[Array], Array]
"""Inputs (rows, ...) to the same of another appearance: an augmented query."""

ROWS = 512
"""Rows of one call of all models."""


@dataclass(frozen=True)
class Shadows:
    """Trained models. `weights`: params and state, leaves (models, ...)."""

    keep: Array
    """(models, n) bool: which model was trained on which example."""
    weights: tuple[Any, Any]
    losses: Array
    """(models,) float32: the mean training loss of the last epoch."""
    objective: Objective = field(repr=False)
    group: int = 1

    def logits(self, x: Array) -> Array:
        """Outputs (models, rows, classes) float32 for inputs (rows, ...) float32."""
        name = _input(self.objective.task)
        parts = []
        for start in range(0, len(x), ROWS):
            part = np.asarray(x[start : start + ROWS], np.float32)
            filled = np.concatenate([part, np.repeat(part[:1], min(ROWS, len(x)) - len(part), axis=0)])
            parts.append(np.asarray(self._run(self.weights, {name: filled}))[:, : len(part)])
        return np.concatenate(parts, 1)

    def confidences(self, x: Array, labels: Array, views: Sequence[View] = ()) -> Array:
        """Logit-scaled confidences (models, rows, 1 + views) of the inputs and of views of them, for `lira`."""
        answers = [self.logits(given) for given in (x, *(view(x) for view in views))]
        return np.stack([[logit_confidence(one, labels) for one in each] for each in answers], -1)

    @cached_property
    def _run(self) -> Callable[..., Any]:
        return jax.jit(self._outputs)

    def _outputs(self, weights: Any, inputs: Mapping[str, Any]) -> Any:
        def one(part: Any) -> Any:
            params, state = part
            return self.objective.outputs(params, state, inputs)

        return _ungrouped(jax.lax.map(jax.vmap(one), _grouped(weights, self.group)))


def halves(models: int, examples: int, seed: int = 0) -> Array:
    """keep (models, examples) bool: model 2i has a random half and model 2i + 1 the others, one of which, chosen at
    random, is left out if the number is odd. Raises AuditError for an odd number of models and too few examples."""
    if models < 2 or models % 2:
        raise AuditError(f"expected an even number of shadow models, at least 2, got {models}")
    if examples < 4:
        raise AuditError(f"expected at least 4 examples to divide, got {examples}")
    keep = np.zeros((models, examples), np.bool_)
    for pair in range(models // 2):
        order = np.random.default_rng([seed, pair]).permutation(examples)
        half = examples // 2
        keep[2 * pair, order[:half]] = True
        keep[2 * pair + 1, order[half : 2 * half]] = True
    return keep


def train_shadows(
    make: Callable[[int], ir.Model | Task], x: Array, y: Array, *, models: int, epochs: int, batch_size: int = 128,
    optimizer: optax.GradientTransformation | None = None, loss: Loss = "softmax_cross_entropy",
    augment: Augment | None = None, seed: int = 0, group: int | None = None,
) -> Shadows:  # fmt: skip
    """Train `models` shadow models on halves of x (n, ...) float32 and labels y (n,).

    make: a seed to a newly initialised model, the same but for the weights. Everything from `optimizer` to `augment` is
    as in `Trainer`, so that a recipe is trained as the target was; the last batch of an epoch is filled up with rows
    that do not count. group: models that a step computes side by side; by default 8 of models without convolutions,
    else 1. Raises AuditError for labels that do not match, and for a loss that is not finite.
    """
    x, y = np.asarray(x, np.float32), np.asarray(y)
    if y.shape[:1] != x.shape[:1] or y.dtype.kind not in "iu":
        raise AuditError(f"expected {len(x)} labels, integers, got {y.dtype}{list(y.shape)}")
    if epochs < 1 or batch_size < 1:
        raise AuditError(f"expected at least 1 epoch and row in a batch, got {epochs} and {batch_size}")
    keep = halves(models, len(x), seed)
    recipe, convolutions = _recipe(make, seed, loss, optimizer, augment)
    group = _divisor(models, group or (1 if convolutions else 8))
    first = [as_task(make(seed + i)).init() for i in range(models)]
    params, state = jax.tree.map(lambda *leaves: jnp.stack(leaves), *first)
    rows = np.stack([np.flatnonzero(own) for own in keep]).astype(np.int32)
    size = min(batch_size, rows.shape[1])
    name = _input(recipe.objective.task)

    @jax.jit
    def run(params: Any, state: Any, rows: Any, x: Any, y: Any) -> Any:
        def one(given: Any) -> Any:
            return _trained(recipe, given, lambda at: ({name: x[at]}, y[at]), epochs, size, seed)

        return _ungrouped(jax.lax.map(jax.vmap(one), _grouped((params, state, rows, jnp.arange(models)), group)))

    params, state, losses = run(params, state, rows, x, y.astype(np.int32))
    losses = np.asarray(losses)
    if not np.isfinite(losses).all():
        wrong = np.flatnonzero(~np.isfinite(losses)).tolist()
        raise AuditError(f"expected finite losses, got others in shadow models {wrong}; lower the learning rate")
    return Shadows(keep, (params, state), losses, recipe.objective, group)


def _recipe(
    make: Callable[[int], Any], seed: int, loss: Any, optimizer: Any, augment: Augment | None
) -> tuple[Recipe, bool]:
    """The Trainer's recipe, its convolutions as products, which XLA computes faster inside loops on a CPU."""
    recipe = Trainer(make(seed), loss=loss, optimizer=optimizer, augment=augment, seed=seed).recipe
    function = getattr(recipe.objective.task, "function", None)
    if function is None or not any(step.op == "Conv" for step in function.program.steps):
        return recipe, False
    if jax.default_backend() != "cpu":
        return recipe, True
    task = copy.copy(recipe.objective.task)
    task.function = as_products(function)  # type: ignore[attr-defined]
    return Recipe(dataclasses.replace(recipe.objective, task=task), recipe.optimizer, recipe.options), True


def _trained(
    recipe: Recipe, given: Any, read: Callable[[Any], tuple[Any, Any]], epochs: int, size: int, seed: int
) -> tuple[Any, Any, Any]:
    """One model: params and state after all epochs, and the mean loss of the last. Pure; batches are drawn inside."""
    params, state, rows, number = given
    step, steps = recipe.step(), -(-rows.shape[0] // size)
    missing = steps * size - rows.shape[0]
    mask = (jnp.arange(steps * size) < rows.shape[0]).astype(jnp.float32).reshape(steps, size)

    def epoch(carry: TrainState, key: Any) -> tuple[TrainState, Any]:
        order = jax.random.permutation(key, rows)
        filled = jnp.concatenate([order, order[:missing]]).reshape(steps, size)

        def once(carry: TrainState, part: Any) -> tuple[TrainState, Any]:
            at, counted = part
            inputs, labels = read(at)
            carry, sums = step(carry, {"inputs": inputs, "labels": labels, "mask": counted})
            return carry, sums["loss"]

        carry, losses = jax.lax.scan(once, carry, (filled, mask))
        return carry, losses.sum() / rows.shape[0]

    start = TrainState(params, state, recipe.optimizer.init(params), jnp.zeros((), jnp.int32))
    keys = jax.random.split(jax.random.fold_in(jax.random.key(seed), number), epochs)
    end, losses = jax.lax.scan(epoch, start, keys)
    return end.params, end.state, losses[-1]


def _input(task: Task) -> str:
    if len(task.inputs) != 1:
        raise AuditError(f"expected a model with one input, got {', '.join(task.inputs)}")
    return task.inputs[0]


def _divisor(count: int, most: int) -> int:
    return max(d for d in range(1, min(count, most) + 1) if count % d == 0)


def _grouped(tree: Any, group: int) -> Any:
    return jax.tree.map(lambda leaf: leaf.reshape(-1, group, *leaf.shape[1:]), tree)


def _ungrouped(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), tree)
