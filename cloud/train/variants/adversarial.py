"""Adversarial training: every batch is moved within a ball to where the loss is high before it is learned (Madry et
al., "Towards Deep Learning Models Resistant to Adversarial Attacks", ICLR 2018), or the output there is held near that
of the batch as it was (Zhang et al., "Theoretically Principled Trade-off between Robustness and Accuracy", ICML 2019:
TRADES)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp

from cloud.errors import TrainError
from cloud.train.stepping.losses import PerExample
from cloud.train.stepping.step import Objective
from cloud.train.tasks.task import Tree

__all__ = ["Adversarial", "Defended", "defended", "of_clean"]

_SCALE = {"float16": 1024.0}
"""Losses are multiplied by this for gradients in narrow numbers; only directions are used."""
_UNROLLED = 10
"""Up to so many steps are written out: inside loops XLA's convolutions on a processor take six times as long."""


@dataclass(frozen=True)
class Adversarial:
    """`steps` up the gradient of the loss of each example, in the `norm` "Linf" or "L2", each of length `step` (0:
    2.5 * epsilon / steps), from a random point within `epsilon` of it, in units of the inputs; inputs stay between
    `low` and `high`. One step of length 1.25 * epsilon is the fast method of Wong et al. (ICLR 2020). A training step
    costs `steps` further passes forward and backward.

    `trades`: above 0, the loss is that of the examples as they are, plus `trades` times KL(output ‖ output of the moved
    examples), which the moved examples maximise; the paper uses 1 to 6. Otherwise the loss is that of the moved ones.

    `input`: which input is moved; "": the only one of floats. Moving uses the model in inference form: running
    statistics and no dropout. Metrics of training are of moved examples, with `trades` of those as they are;
    validation is of those as they are.
    """

    epsilon: float
    steps: int = 7
    step: float = 0.0
    norm: Literal["Linf", "L2"] = "Linf"
    low: float = 0.0
    high: float = 1.0
    trades: float = 0.0
    input: str = ""

    def __post_init__(self) -> None:
        if not 0 < self.epsilon < math.inf:
            raise TrainError(f"adversarial: expected an epsilon above 0, got {self.epsilon}")
        if self.steps < 1 or not 0 <= self.step < math.inf:
            raise TrainError(
                f"adversarial: expected at least 1 step, of a length from 0, got {self.steps} of {self.step}"
            )
        if self.norm not in ("Linf", "L2"):
            raise TrainError(f'adversarial: expected the norm "Linf" or "L2", got {self.norm!r}')
        if not self.low < self.high:
            raise TrainError(f"adversarial: expected low below high, got {self.low} and {self.high}")
        if not 0 <= self.trades < math.inf:
            raise TrainError(f"adversarial: expected trades of at least 0, got {self.trades}")

    def outputs(
        self, objective: Objective, params: Tree, state: Tree, inputs: Mapping[str, Any], labels: Any, key: jax.Array
    ) -> tuple[Any, Tree]:
        """(output in training form, state afterwards): of moved inputs, with `trades` `Defended`."""
        start, drawn, again = (jax.random.fold_in(key, number) for number in range(3))
        frozen = jax.lax.stop_gradient((params, state))
        if not self.trades:
            moved = self._moved(objective, frozen, inputs, labels, None, start)
            output, state = objective.training_outputs(params, state, moved, drawn)
            return output, state
        aim = jax.lax.stop_gradient(objective.outputs(*frozen, inputs))
        moved = self._moved(objective, frozen, inputs, labels, aim, start)
        clean, state = objective.training_outputs(params, state, inputs, drawn)
        found, state = objective.training_outputs(params, state, moved, again)
        return Defended(clean, found), state

    def _moved(
        self, objective: Objective, frozen: tuple[Tree, Tree], inputs: Mapping[str, Any], labels: Any, aim: Any,
        key: jax.Array,
    ) -> dict[str, Any]:  # fmt: skip
        """The inputs, one of them moved to where the loss is high, or the divergence from `aim`."""
        name = self._name(inputs)
        x, unit = inputs[name], _SCALE.get(objective.precision, 1.0)

        def total(tried: Any) -> Any:
            output = objective.outputs(*frozen, {**inputs, name: tried})
            rows = objective.loss(output, labels) if aim is None else _divergence(aim, output)
            return unit * jnp.sum(rows)

        size = self.step or 2.5 * self.epsilon / self.steps

        def one(_: Any, tried: Any) -> Any:
            return self._within(x, tried + size * self._uphill(jax.grad(total)(tried)))

        start = self._within(x, x + self._noise(key, x))
        return {**inputs, name: jax.lax.stop_gradient(jax.lax.fori_loop(
            0, self.steps, one, start, unroll=self.steps <= _UNROLLED
        ))}  # fmt: skip

    def _name(self, inputs: Mapping[str, Any]) -> str:
        floats = [name for name, array in inputs.items() if jnp.issubdtype(array.dtype, jnp.floating)]
        if self.input:
            floats = [name for name in floats if name == self.input]
        if len(floats) != 1:
            kinds = ", ".join(f"{name} {array.dtype}" for name, array in inputs.items())
            wanted = (
                f"the input {self.input!r} of floats" if self.input else "one input of floats, or its name as input"
            )
            raise TrainError(f"adversarial: expected {wanted}, got {kinds}")
        return floats[0]

    def _noise(self, key: jax.Array, x: Any) -> Any:
        """Within the ball: uniform in Linf; in L2 of a uniform direction and length."""
        if self.norm == "Linf":
            return jax.random.uniform(key, x.shape, x.dtype, -self.epsilon, self.epsilon)
        one, two = jax.random.split(key)
        length = self.epsilon * jax.random.uniform(two, (x.shape[0],), x.dtype)
        return self._uphill(jax.random.normal(one, x.shape, x.dtype)) * _along(length, x)

    def _uphill(self, slope: Any) -> Any:
        """The direction of length 1 up the gradient; zero where that is zero."""
        if self.norm == "Linf":
            return jnp.sign(slope)
        scaled = slope / _along(jnp.maximum(jnp.max(jnp.abs(slope).reshape(len(slope), -1), 1), 1e-30), slope)
        return scaled / _length(scaled)

    def _within(self, x: Any, moved: Any) -> Any:
        delta = moved - x
        if self.norm == "Linf":
            delta = jnp.clip(delta, -self.epsilon, self.epsilon)
        else:
            delta = delta * jnp.minimum(1.0, self.epsilon / _length(delta))
        return jnp.clip(x + delta, self.low, self.high)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Defended:
    """The outputs of a batch as it is and of the moved one."""

    clean: Any
    moved: Any


def defended(loss: PerExample, adversarial: Adversarial) -> PerExample:
    """The loss of `Defended`; of a plain output, as in validation, the loss itself."""

    def traded(output: Any, labels: Any) -> Any:
        if not isinstance(output, Defended):
            return loss(output, labels)
        return loss(output.clean, labels) + adversarial.trades * _divergence(output.clean, output.moved)

    return traded


def of_clean(metric: PerExample) -> PerExample:
    """A metric of the output of a batch as it is."""
    return lambda output, labels: metric(output.clean if isinstance(output, Defended) else output, labels)


def _divergence(first: Any, second: Any) -> Any:
    """[rows]: KL(softmax of first ‖ softmax of second), the mean over the positions of a sequence."""
    if not hasattr(first, "ndim") or first.ndim < 2:
        raise TrainError("adversarial: expected one output of scores by class for trades; use trades=0")
    wanted, found = jax.nn.log_softmax(first), jax.nn.log_softmax(second)
    rows = jnp.sum(jnp.exp(wanted) * (wanted - found), axis=-1)
    return rows if rows.ndim == 1 else jnp.mean(rows, axis=tuple(range(1, rows.ndim)))


def _along(values: Any, like: Any) -> Any:
    return values.reshape(-1, *[1] * (like.ndim - 1))


def _length(x: Any) -> Any:
    """L2 norms (rows, 1, ...), at least 1e-12; its gradient is not used."""
    return _along(jnp.maximum(jnp.sqrt(jnp.sum(x.reshape(len(x), -1) ** 2, 1)), 1e-12), x)
