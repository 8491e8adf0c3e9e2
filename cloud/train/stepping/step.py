"""One step of training as a pure function of state and batch, as defined on a single device.

This function is jitted, planned and sharded; nothing in it depends on devices. Losses and metrics are sums over rows
until the very end, so that microbatches, devices and processes with parts of the rows add up to the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import jax
import jax.numpy as jnp
import optax

from cloud.errors import TrainError, take_multiple
from cloud.train.inputs.augment import Augment
from cloud.train.stepping.averaging import Average, averaged, check_average
from cloud.train.stepping.freeze import merge, parts, which_frozen
from cloud.train.stepping.losses import PerExample
from cloud.train.stepping.precision import (
    PRECISIONS,
    LossScale,
    all_finite,
    first_scale,
    is_least,
    narrowed,
    next_scale,
    widened,
)
from cloud.train.tasks.task import Task, Tree

if TYPE_CHECKING:
    from cloud.parallel.compressed.across import Across

__all__ = [
    "Batch", "Objective", "Recipe", "Step", "StepOptions", "Sums", "TrainState", "initial_state", "make_step",
]  # fmt: skip

Batch: TypeAlias = Mapping[str, Any]
"""{"inputs": arrays by name, "labels": array or tree, "mask": [rows] float32, 0 for padding rows}."""

Sums: TypeAlias = dict[str, Any]
"""() float32 each, over rows that are not padding: "loss", "metric NAME", and "examples", their number."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class TrainState:
    """Everything that a step replaces; its buffers are donated.

    `slots`: the optimiser's. `step`: () int32, steps done. `scale`: of the loss, for float16. `average`: of
    trained parameters. `memory`: what compressed gradients leave for later steps (`cloud.parallel.compressed`).
    """

    params: Tree
    state: Tree
    slots: Tree
    step: Any
    scale: LossScale | None = None
    average: Tree | None = None
    memory: Tree | None = None


Step: TypeAlias = Callable[[TrainState, Batch], tuple[TrainState, Sums]]


@dataclass(frozen=True)
class StepOptions:
    """How an objective becomes a step. `accumulate`: the number of microbatches per batch, computed one after another;
    `clip`: the global norm that gradients are scaled down to; `average`: the share that a moving average of weights
    keeps per step, or SWA; `freeze`: glob patterns of parameters that are not trained; `recompute`: share of the
    forward pass that is recomputed in the backward pass instead of stored; `gradient_norm`: report it, as it is before
    clipping."""

    seed: int = 0
    accumulate: int = 1
    clip: float | None = None
    average: Average | None = None
    freeze: Sequence[str] = ()
    recompute: float = 0.0
    gradient_norm: bool = False

    def __post_init__(self) -> None:
        if self.seed < 0:
            raise TrainError(f"expected a seed of at least 0, got {self.seed}")
        if self.accumulate < 1:
            raise TrainError(f"expected to accumulate over at least 1 microbatch, got {self.accumulate}")
        if self.clip is not None and not self.clip > 0:
            raise TrainError(f"expected a norm above 0 to clip gradients to, got {self.clip}")
        check_average(self.average)
        if not 0 <= self.recompute <= 1:
            raise TrainError(f"expected a share from 0 to 1 of the forward pass to recompute, got {self.recompute}")


@dataclass(frozen=True)
class Objective:
    """What is minimised: the loss of a task's output and labels, summed over rows; metrics are summed with it.

    `augment` changes inputs in training. `precision`: see `cloud.train.stepping.precision`. `outputs_of`: of (the
    objective, params, state, inputs, labels, key), what is computed in training instead of the output of the inputs.
    """

    task: Task
    loss: PerExample
    metrics: Mapping[str, PerExample] = field(default_factory=dict)
    augment: Augment | None = None
    precision: str = "float32"
    outputs_of: Callable[..., tuple[Any, Tree]] | None = None

    def __post_init__(self) -> None:
        if self.precision not in PRECISIONS:
            raise TrainError(f"expected a precision of {', '.join(PRECISIONS)}, got {self.precision!r}")

    def loss_sums(self, params: Tree, state: Tree, batch: Batch, key: jax.Array) -> tuple[Sums, Tree]:
        """The training form: sums, and the state after the pass."""
        inputs = batch["inputs"]
        if self.augment is not None:
            inputs = self.augment(jax.random.fold_in(key, 1), inputs)
            if not isinstance(inputs, Mapping) or set(inputs) != set(batch["inputs"]):
                found = sorted(inputs) if isinstance(inputs, Mapping) else type(inputs).__name__
                raise TrainError(f"expected augment to return the inputs {sorted(batch['inputs'])}, got {found}")
        fold = jax.random.fold_in(key, 0)
        if self.outputs_of is None:
            output, state = self.training_outputs(params, state, inputs, fold)
        else:
            output, state = self.outputs_of(self, params, state, inputs, batch["labels"], fold)
        return self._sums(output, batch), state

    def measure(self, params: Tree, state: Tree, batch: Batch) -> tuple[Sums, Any]:
        """The inference form: sums, and the output."""
        output = self.outputs(params, state, batch["inputs"])
        return self._sums(output, batch), output

    def outputs(self, params: Tree, state: Tree, inputs: Mapping[str, Any]) -> Any:
        """The model's output in inference form."""
        return self._outputs(params, state, inputs, None, train=False)[0]

    def training_outputs(self, params: Tree, state: Tree, inputs: Mapping[str, Any], rng: jax.Array) -> Any:
        """(output, state afterwards) in training form, without `augment`."""
        return self._outputs(params, state, inputs, rng, train=True)

    def _outputs(self, params: Tree, state: Tree, inputs: Any, rng: Any, *, train: bool) -> tuple[Any, Tree]:
        if self.precision == "float32":
            return self.task.apply(params, state, inputs, rng, train)
        narrow = PRECISIONS[self.precision]
        output, after = self.task.apply(narrowed(params, narrow), state, narrowed(inputs, narrow), rng, train)
        return widened(output), jax.tree.map(lambda new, old: new.astype(old.dtype), after, state)

    def _sums(self, output: Any, batch: Batch) -> Sums:
        rows = {"loss": self.loss, **{f"metric {name}": metric for name, metric in self.metrics.items()}}
        mask = batch["mask"]
        sums = {"examples": jnp.sum(mask)}
        for name, function in rows.items():
            values = _by_row(name, function, output, batch["labels"])
            if values.shape != mask.shape:
                raise TrainError(
                    f"expected {name} to return one value per example, shape {mask.shape}, got {values.shape}"
                )
            sums[name] = jnp.sum(jnp.where(mask > 0, values, 0))
        return sums


def _by_row(name: str, function: PerExample, output: Any, labels: Any) -> Any:
    """A loss or metric, whose errors become TrainErrors that describe its arguments."""
    try:
        return function(output, labels)
    except (AttributeError, TypeError, ValueError) as error:
        given = (", ".join(f"{a.dtype}{list(a.shape)}" for a in jax.tree.leaves(tree)) for tree in (output, labels))
        shown, reason = " and labels ".join(each or "of none" for each in given), str(error).partition("\n")[0]
        raise TrainError(f"{name} does not fit an output {shown}: {reason}") from error


@dataclass(frozen=True)
class Recipe:
    """The parts of a step: objective, optimiser, options."""

    objective: Objective
    optimizer: optax.GradientTransformation
    options: StepOptions

    def step(self, recompute: float | None = None, across: Across | None = None) -> Step:
        """See `make_step`; optionally with another share of the forward pass recomputed."""
        options = self.options if recompute is None else replace(self.options, recompute=recompute)
        return make_step(self.objective, self.optimizer, options, across)


def initial_state(objective: Objective, optimizer: optax.GradientTransformation, options: StepOptions) -> TrainState:
    """The state before the first step: newly created arrays, since steps donate them."""
    params, state = objective.task.init()
    frozen = which_frozen(params, options.freeze)

    def fresh(params: Tree, state: Tree) -> TrainState:
        params, state = jax.tree.map(jnp.copy, (params, state))
        trained, _ = parts(params, frozen)
        return TrainState(
            params, state, optimizer.init(trained), jnp.zeros((), jnp.int32),
            first_scale() if objective.precision == "float16" else None,
            None if options.average is None else jax.tree.map(jnp.copy, trained),
        )  # fmt: skip

    made: TrainState = jax.jit(fresh)(params, state)
    return made


def make_step(
    objective: Objective, optimizer: optax.GradientTransformation, options: StepOptions, across: Across | None = None
) -> Step:
    """(state, batch) -> (state, sums), pure and not jitted.

    The loss of a step is `sums["loss"] / sums["examples"]`; gradients are of that mean. A float16 step that overflows
    changes only the scale and has the sums 0 and "skipped" 1. If gradients are clipped or the options ask for it,
    "gradient_norm" is among the sums. `across`: how groups of devices exchange compressed gradients.
    """
    optimizer = optax.with_extra_args_support(optimizer)
    loss_sums = _recomputed(objective.loss_sums, options.recompute)
    params, _ = objective.task.init()
    frozen = which_frozen(params, options.freeze)

    def local(given: tuple[Tree, ...], batch: Batch, key: jax.Array, examples: Any) -> tuple[Tree, Sums, Tree]:
        trained, kept, state, scale = given
        unit = 1.0 if scale is None else scale.value

        def scaled(trained: Tree, state: Tree, batch: Batch, key: jax.Array, examples: Any) -> tuple[Any, Any]:
            sums, state = loss_sums(merge(trained, kept), state, batch, key)
            loss = sums["loss"] / (sums["examples"] if examples is None else examples)
            return loss if scale is None else loss * unit, (sums, state)

        gradient, sums, state = _gradient(scaled, trained, state, batch, key, options.accumulate, examples)
        return gradient if scale is None else jax.tree.map(lambda g: g / unit, gradient), sums, state

    def step(before: TrainState, batch: Batch) -> tuple[TrainState, Sums]:
        key = jax.random.fold_in(jax.random.key(options.seed), before.step)
        trained, kept = parts(before.params, frozen)
        given = trained, kept, before.state, before.scale
        memory = before.memory
        if across is None:
            gradient, sums, state = local(given, batch, key, None)
        else:
            gradient, sums, state, memory = across.gradient(local, given, batch, key, memory or {})
        fine = None if before.scale is None else jnp.isfinite(sums["loss"]) & all_finite(gradient)
        if options.gradient_norm or options.clip is not None:
            sums = {**sums, "gradient_norm": optax.tree.norm(gradient)}
        if options.clip is not None:
            gradient = _clipped(gradient, sums["gradient_norm"], options.clip)
        updates, slots = optimizer.update(gradient, before.slots, trained, value=sums["loss"] / sums["examples"])
        trained = optax.apply_updates(trained, updates)
        average = None
        if options.average is not None:
            average = averaged(before.step, before.average, trained, options.average)
        after = TrainState(merge(trained, kept), state, slots, before.step + 1, before.scale, average, memory)
        return (after, sums) if fine is None else _unless_overflown(fine, before, after, sums)

    return step


def _unless_overflown(fine: Any, before: TrainState, after: TrainState, sums: Sums) -> tuple[TrainState, Sums]:
    """`after` if the step was `fine`, else `before`; and the next loss scale. If the scale is already the smallest, the
    loss becomes NaN, which ends training."""
    assert before.scale is not None
    skipped = ~fine & ~is_least(before.scale)
    sums = {name: jnp.where(skipped, 0.0, value) for name, value in sums.items()}
    sums["loss"] = jnp.where(fine | skipped, sums["loss"], jnp.nan)
    state = jax.tree.map(lambda this, that: jax.lax.select_n(fine, that, this), after, before)
    scale = next_scale(before.scale, fine)
    return replace(state, step=after.step, scale=scale), {**sums, "skipped": skipped.astype(jnp.float32)}


def _gradient(
    scaled: Callable[..., tuple[Any, Any]], trained: Tree, state: Tree, batch: Batch, key: jax.Array, accumulate: int,
    examples: Any,
) -> tuple[Tree, Sums, Tree]:  # fmt: skip
    """Gradient of the batch's mean loss, sums, state; in `accumulate` parts that take every `accumulate`-th row each.
    `examples`: of which the loss is the mean; None: those of the batch.

    Neighbouring rows go to different parts, so that the rows of a sharded batch stay on their devices.
    """
    if accumulate == 1:
        gradient, (sums, state) = jax.grad(scaled, has_aux=True)(trained, state, batch, key, examples)
        return gradient, sums, state
    rows = len(batch["mask"])
    if rows % accumulate:
        raise TrainError(
            f"a batch of {rows} rows cannot be computed in {accumulate} microbatches of one size: "
            f"{take_multiple(rows, accumulate)}"
        )
    examples = jnp.sum(batch["mask"]) if examples is None else examples
    micro = jax.tree.map(lambda a: jnp.moveaxis(a.reshape(-1, accumulate, *a.shape[1:]), 1, 0), dict(batch))

    def one(state: Tree, index: Any, part: Batch) -> tuple[Tree, Sums, Tree]:
        fold = jax.random.fold_in(key, index + 2)
        gradient, (sums, state) = jax.grad(scaled, has_aux=True)(trained, state, part, fold, examples)
        return gradient, sums, state

    def add(carry: tuple[Tree, Sums, Tree], given: tuple[Any, Batch]) -> tuple[tuple[Tree, Sums, Tree], None]:
        gradient, sums, state = one(carry[2], *given)
        return (*jax.tree.map(jnp.add, carry[:2], (gradient, sums)), state), None

    shapes = jax.eval_shape(one, state, 0, jax.tree.map(lambda a: a[0], micro))
    nothing = jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), shapes[:2])
    (gradient, sums, state), _ = jax.lax.scan(add, (*nothing, state), (jnp.arange(accumulate), micro))
    return gradient, sums, state


def _clipped(gradient: Tree, norm: Any, most: float) -> Tree:
    factor = jnp.where(norm > most, most / norm, 1.0)
    return jax.tree.map(lambda g: (g * factor).astype(g.dtype), gradient)


def _recomputed(loss_sums: Callable[..., tuple[Sums, Tree]], share: float) -> Callable[..., tuple[Sums, Tree]]:
    if not share:
        return loss_sums
    from cloud.parallel.staged.recompute import recomputed

    return recomputed(loss_sums, share)
