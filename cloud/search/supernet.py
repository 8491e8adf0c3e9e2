"""The supernet: weights from which every network of a space is cut, and how well each of them does.

Each resolution has a set of weights of its own, trained in turns: filters of a signal that is sampled half as often are
other filters. (On windows of inertial sensors the largest network of half the resolution had 83 % with weights that all
resolutions shared, 92 % with its own, and 93 % trained alone.)

Training follows the sandwich rule with in-place distillation (Yu and Huang, "Universally Slimmable Networks", ICCV
2019): every step adds up the gradients of the largest network, which learns the labels, and of the smallest and some
random ones, which learn half from labels and half from the largest one's answers. Batch norms use the statistics of the
batch, so that networks of different widths do not disturb one another; before a network is evaluated, its statistics
are those of training examples that it alone has seen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnx_ir as ir
import optax

from cloud.engine import lower
from cloud.engine.export import export
from cloud.errors import SearchError
from cloud.search.data import Data
from cloud.search.space import LAYER, Choice, Space, graph, masks, supernet
from cloud.train.inputs.augment import Augment
from cloud.train.stepping.optimizers import cosine_schedule
from lite_runtime.graph import Array

__all__ = ["Supernet", "cut"]

Params = dict[str, jax.Array]
_RANDOM = 2
"""Random networks of a step."""
_TAUGHT = 0.5
"""The share of the largest network's answers in what the others learn; the rest is labels."""
_CALIBRATION = 512
"""Training examples whose statistics an evaluated network has."""
_CLIP = 5.0


class Supernet:
    """The weights, and their training: `steps` of `steps_in_all` are done. Every step's draws follow from the seed and
    its number alone, so that training goes on from `saved` as if it had not been interrupted."""

    def __init__(
        self, space: Space, data: Data, *, steps: int, batch: int, rate: float, seed: int, augment: Augment | None
    ) -> None:
        self.space, self.data, self.total, self.seed = space, data, steps, seed
        self.batch = min(batch, len(data.train[1]))
        self._functions = {k: lower(supernet(space, k, seed), training=True) for k in space.shrinks}
        self.params: dict[int, Params] = {k: dict(function.params) for k, function in self._functions.items()}
        each = -(-steps // len(space.shrinks))
        self._optimizer = optax.chain(
            optax.clip_by_global_norm(_CLIP), optax.adam(cosine_schedule(rate, each, warmup=max(1, each // 20)))
        )
        self.optimizer_state = {k: self._optimizer.init(params) for k, params in self.params.items()}
        self.steps, self._augment = 0, augment
        self._gradients = {k: jax.jit(partial(self._gradient, k)) for k in space.shrinks}
        self._apply = jax.jit(self._updated)
        self._measure = {k: jax.jit(partial(self._error, k)) for k in space.shrinks}
        self._moved = jax.jit(augment) if augment is not None else None
        rows = np.random.default_rng(seed).permutation(len(data.train[1]))[:_CALIBRATION]
        self._calibration = jnp.asarray(data.train[0][rows])

    # --- training

    def train(self, until: Callable[[], bool] = lambda: False, every: Callable[[], None] = lambda: None) -> None:
        """Train to the end, or until `until()` says to stop, which is asked after each step, as is `every`."""
        while self.steps < self.total and not until():
            self._step()
            every()

    def _step(self) -> None:
        draw = np.random.default_rng([self.seed, self.steps])
        rows = draw.integers(0, len(self.data.train[1]), self.batch)
        x, y = jnp.asarray(self.data.train[0][rows]), jnp.asarray(self.data.train[1][rows])
        if self._moved is not None:
            x = self._moved(jax.random.key(int(draw.integers(1 << 31))), {"x": x})["x"]
        shrink = self.space.shrinks[self.steps % len(self.space.shrinks)]
        labels, params = self.space.goal.aims(y, self.space.outputs), self.params[shrink]
        largest, smallest = (replace(choice, shrink=shrink) for choice in (self.space.largest, self.space.smallest))
        gradients, answers = self._gradients[shrink](
            params, masks(self.space, largest), self._levels(largest), x, labels
        )
        aims = (1 - _TAUGHT) * labels + _TAUGHT * self.space.goal.taught(answers)
        for choice in (smallest, *(replace(self.space.random(draw), shrink=shrink) for _ in range(_RANDOM))):
            more, _ = self._gradients[shrink](params, masks(self.space, choice), self._levels(choice), x, aims)
            gradients = jax.tree.map(jnp.add, gradients, more)
        self.params[shrink], self.optimizer_state[shrink] = self._apply(params, self.optimizer_state[shrink], gradients)
        self.steps += 1

    def _gradient(
        self, shrink: int, params: Params, gates: Mapping[str, Array], levels: Array, x: jax.Array, aims: jax.Array
    ) -> tuple[Params, jax.Array]:
        function = self._functions[shrink]

        def loss(weights: Params) -> tuple[jax.Array, jax.Array]:
            rounded = _rounded(weights, levels)
            outputs, _ = function.apply(rounded, function.state, {"x": x, **gates}, train=True)
            answers = outputs[self.space.goal.output]
            return self.space.goal.loss(answers, aims).mean(), answers

        found: tuple[Params, jax.Array] = jax.grad(loss, has_aux=True)(params)
        return found

    def _updated(self, params: Params, state: Any, gradients: Params) -> tuple[Params, Any]:
        updates, state = self._optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state

    def _levels(self, choice: Choice) -> Array:
        """By stage: the largest integer of its weights, 0 for floats and for 8 bits, whose rounding changes nothing."""
        return np.array([7.0 if stage.bits == 4 else 0.0 for stage in choice.stages], np.float32)

    # --- evaluation

    def accuracy(self, choice: Choice) -> float:
        """The figure of the choice on the validation part with the shared weights."""
        x, y = self.data.validation
        error = self._measure[choice.shrink](
            self.params[choice.shrink], masks(self.space, choice), self._levels(choice), self._calibration, x, y
        )
        return 1 - float(error) / self.space.goal.scale(self.data.validation)

    def _error(
        self, shrink: int, params: Params, gates: Mapping[str, Array], levels: Array, seen: jax.Array, x: jax.Array,
        y: jax.Array,
    ) -> jax.Array:  # fmt: skip
        function, rounded = self._functions[shrink], _rounded(params, levels)
        _, state = function.apply(rounded, function.state, {"x": seen, **gates}, train=True)
        outputs, _ = function.apply(rounded, state, {"x": x, **gates})
        return jnp.mean(self.space.goal.errors(outputs[self.space.goal.output], y))

    def network(self, choice: Choice) -> ir.Model:
        """The choice as a network of its own with the shared weights, and the statistics that they have on training
        examples."""
        if not self.space.has(choice):
            raise SearchError(f"{choice.text} is no choice of this space")
        model = graph(self.space, choice, self.seed)
        alone = lower(model, training=True)
        shared = self.params[choice.shrink]
        params = {name: cut(np.asarray(shared[name]), np.asarray(own)) for name, own in alone.params.items()}
        gates, function = masks(self.space, choice), self._functions[choice.shrink]
        _, state = function.apply(shared, function.state, {"x": self._calibration, **gates}, train=True)
        kept = {name: cut(np.asarray(state[name]), np.asarray(own)) for name, own in alone.state.items()}
        return export(model, params, kept)

    # --- its state

    def saved(self) -> dict[str, Array]:
        """Weights and the optimiser's state by name."""
        leaves = jax.tree.leaves((self.params, self.optimizer_state))
        return {**{str(i): np.asarray(leaf) for i, leaf in enumerate(leaves)}, "steps": np.array(self.steps)}

    def restore(self, arrays: Mapping[str, Array]) -> None:
        """Go on from `saved`. Raises SearchError for what another supernet saved."""
        leaves, tree = jax.tree.flatten((self.params, self.optimizer_state))
        wanted = {str(i): leaf.shape for i, leaf in enumerate(leaves)}
        if wanted != {name: array.shape for name, array in arrays.items() if name != "steps"}:
            raise SearchError("the folder has a supernet of another space; name another search.folder")
        held = [jnp.asarray(arrays[str(i)], leaf.dtype) for i, leaf in enumerate(leaves)]
        self.params, self.optimizer_state = jax.tree.unflatten(tree, held)
        self.steps = int(arrays["steps"])


def cut(shared: Array, own: Array) -> Array:
    """The part of shared weights that a smaller network has: the first channels, and of kernels the middle."""
    parts = []
    for axis, (most, size) in enumerate(zip(shared.shape, own.shape, strict=True)):
        begin = (most - size) // 2 if shared.ndim == 4 and axis >= 2 else 0
        parts.append(slice(begin, begin + size))
    return np.ascontiguousarray(shared[tuple(parts)])


def _rounded(params: Params, levels: Any) -> Params:
    """Filters, or rows of dense layers, rounded to as many levels as their stage has on both sides of 0, one scale for
    each; gradients pass straight through."""

    def one(name: str, value: jax.Array) -> jax.Array:
        if not name.endswith(f".{LAYER}.weight"):
            return value
        level = levels[int(name.removeprefix("stage").partition(".")[0])]
        most = jnp.max(jnp.abs(value), axis=tuple(range(1, value.ndim)), keepdims=True)
        scale = most / jnp.maximum(level, 1.0) + 1e-12
        nearest = jnp.round(value / scale) * scale
        return value + jnp.where(level > 0, jax.lax.stop_gradient(nearest - value), 0.0)

    return {name: one(name, value) for name, value in params.items()}
