"""`Trainer`: fit an ONNX model with JAX on the default device, and hand it back as ONNX."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import optax

from cloud.engine import export, lower
from cloud.errors import TrainError
from cloud.train.batches import Arrays, Batch, Dataset, batches, epoch_order, pair
from cloud.train.losses import LOSSES, METRICS, PerExample

__all__ = ["EpochReport", "Evaluation", "Trainer"]

_CHECK_EVERY = 100
"""Steps between looks at the losses: each look waits for the device."""


@dataclass(frozen=True)
class Evaluation:
    """Means over `examples`; `metrics` holds those asked for by name."""

    loss: float
    metrics: Mapping[str, float]
    examples: int

    @property
    def accuracy(self) -> float | None:
        """The metric of that name, where there is one."""
        return self.metrics.get("accuracy")


@dataclass(frozen=True)
class EpochReport:
    """One epoch: `training` as seen while the weights moved, `validation` after it, seconds of both together."""

    epoch: int
    epochs: int
    training: Evaluation
    validation: Evaluation | None
    seconds: float

    @property
    def loss(self) -> float:
        """Mean training loss."""
        return self.training.loss

    @property
    def accuracy(self) -> float | None:
        """Mean training accuracy, where measured."""
        return self.training.accuracy


@dataclass(frozen=True)
class _Moving:
    """All that a step replaces; its buffers are donated."""

    params: Any
    state: Any
    slots: Any
    step: Any


jax.tree_util.register_dataclass(_Moving, ["params", "state", "slots", "step"], [])


class Trainer:
    """Trains the float initialisers of `model` (see `cloud.engine.lower`).

    `loss` and the values of `metrics` are names out of `LOSSES` and `METRICS`, or functions of (output, labels) that
    give one float an example; output is the model's only output, or the dict of all. `augment(key, inputs)` changes
    a batch's dict of inputs on the device, in training only. `optimizer` is any optax transformation, Adam with rate
    1e-3 by default. `trainable`: glob patterns of what to train.

    Runs with the same seed, data and device give the same weights (on GPUs, with XLA's deterministic operations
    switched on). The last batch of an epoch is filled up (`last="pad"`) with examples from the epoch's start: these
    take part in BatchNormalization's statistics but not in loss, gradient and metrics. `last="drop"` skips it.
    """

    def __init__(
        self, model: ir.Model, *, loss: str | PerExample = "softmax_cross_entropy",
        optimizer: optax.GradientTransformation | None = None, seed: int = 0,
        metrics: Sequence[str] | Mapping[str, PerExample] | None = None,
        augment: Callable[[jax.Array, dict[str, jax.Array]], dict[str, jax.Array]] | None = None,
        trainable: Sequence[str] | None = None, last: str = "pad",
    ) -> None:  # fmt: skip
        if last not in ("pad", "drop"):
            raise TrainError(f'last is "pad" or "drop", got {last!r}')
        self._model, self._seed, self._last, self._augment = model, seed, last, augment
        self._function = lower(model, training=True, trainable=trainable)
        if not self._function.params:
            raise TrainError("the model has no float initialisers to train; are its weights Constant nodes?")
        self._loss = _named("loss", loss, LOSSES)
        if metrics is None:
            metrics = ("accuracy",) if loss == "softmax_cross_entropy" else ()
        pairs = metrics if isinstance(metrics, Mapping) else {name: name for name in metrics}
        self._metrics = {name: _named("metric", metric, METRICS) for name, metric in pairs.items()}
        self._optimizer = optimizer if optimizer is not None else optax.adam(1e-3)
        self._moving = jax.jit(self._fresh)(self._function.params, self._function.state)
        self._epochs_done = self._steps_done = 0
        self._train_step = jax.jit(self._make_step, donate_argnums=0)
        self._measure = jax.jit(self._make_measure)
        self._forward = jax.jit(partial(self._outputs, train=False))

    @property
    def params(self) -> dict[str, jax.Array]:
        """The weights as they stand; the next `fit` uses up these arrays, so copy what must outlive it."""
        return dict(self._moving.params)

    @property
    def state(self) -> dict[str, jax.Array]:
        """BatchNormalization's running statistics as they stand, under the same terms as `params`."""
        return dict(self._moving.state)

    def fit(
        self, data: tuple[Arrays, npt.ArrayLike], epochs: int = 1, batch_size: int = 128,
        *, validation: tuple[Arrays, npt.ArrayLike] | None = None,
        progress: Callable[[EpochReport], None] | None = None,
    ) -> list[EpochReport]:  # fmt: skip
        """Train on (inputs, labels) for `epochs`; further calls go on where this one ended.

        Raises `TrainError` at a loss that is not finite; the trainer is of no further use then.
        """
        dataset = self._dataset(*pair(data))
        held_out = None if validation is None else self._dataset(*pair(validation))
        if epochs < 1 or batch_size < 1:
            raise TrainError(f"expected at least 1 epoch and batches of at least 1, got {epochs} and {batch_size}")
        reports = []
        for epoch in range(1, epochs + 1):
            begun = time.perf_counter()
            training = self._epoch(dataset, batch_size)
            tested = None if held_out is None else self._evaluate(held_out, batch_size)
            reports.append(EpochReport(epoch, epochs, training, tested, time.perf_counter() - begun))
            if progress is not None:
                progress(reports[-1])
        return reports

    def evaluate(self, data: tuple[Arrays, npt.ArrayLike], batch_size: int = 256) -> Evaluation:
        """Loss and metrics in inference form; every example counts once."""
        return self._evaluate(self._dataset(*pair(data)), batch_size)

    def predict(self, inputs: Arrays, batch_size: int = 256) -> Any:
        """The model's output for all examples in inference form: an array, or a dict where there are several."""
        dataset = Dataset.of(inputs, None, self._input_names)
        parts = []
        for batch in batches(dataset, np.arange(dataset.size), batch_size, "pad"):
            outputs, _ = self._forward(self._moving.params, self._moving.state, batch.inputs, None)
            kept = int(batch.mask.sum())
            parts.append(jax.tree.map(lambda a, kept=kept: np.asarray(a[:kept]), outputs))
        return jax.tree.map(lambda *arrays: np.concatenate(arrays), *parts)

    def export(self) -> ir.Model:
        """The model in inference form with the weights as they stand."""
        return export(self._model, self._moving.params, self._moving.state)

    @property
    def _input_names(self) -> tuple[str, ...]:
        return tuple(spec.name for spec in self._function.inputs)

    def _dataset(self, inputs: Arrays, labels: npt.ArrayLike) -> Dataset:
        return Dataset.of(inputs, labels, self._input_names)

    def _epoch(self, dataset: Dataset, batch_size: int) -> Evaluation:
        order = epoch_order(dataset.size, self._seed, self._epochs_done)
        totals: list[Any] = []
        checked = 0
        for batch in batches(dataset, order, batch_size, self._last):
            self._moving, sums = self._train_step(self._moving, _device(batch))
            totals.append(sums)
            if len(totals) - checked == _CHECK_EVERY:
                self._check_finite(totals[checked:])
                checked = len(totals)
        self._check_finite(totals[checked:])
        self._epochs_done += 1
        return _mean(totals)

    def _check_finite(self, totals: Sequence[Mapping[str, Any]]) -> None:
        for number, sums in enumerate(jax.device_get(totals), start=self._steps_done + 1):
            if not np.isfinite(sums["loss"]):
                raise TrainError(
                    f"the loss is {sums['loss'] / sums['examples']} at step {number} (counted from 1): lower the "
                    "learning rate, warm it up or clip gradients (optax.clip_by_global_norm), and look for NaN or "
                    "infinity in the data"
                )
        self._steps_done += len(totals)

    def _evaluate(self, dataset: Dataset, batch_size: int) -> Evaluation:
        rows = np.arange(dataset.size)
        return _mean(
            [
                self._measure(self._moving.params, self._moving.state, _device(batch))
                for batch in batches(dataset, rows, batch_size, "pad")
            ]
        )

    def _outputs(self, params: Any, state: Any, inputs: Any, rng: Any, *, train: bool) -> tuple[Any, Any]:
        outputs, state = self._function.apply(params, state, inputs, rng=rng, train=train)
        return (next(iter(outputs.values())) if len(outputs) == 1 else outputs), state

    def _sums(self, output: Any, batch: Any) -> dict[str, Any]:
        """Sums over the rows that count: loss, metrics, examples."""
        rows = {"loss": self._loss, **{f"metric {name}": metric for name, metric in self._metrics.items()}}
        sums = {"examples": jnp.sum(batch["mask"])}
        for name, function in rows.items():
            values = function(output, batch["labels"])
            if values.shape != batch["mask"].shape:
                raise TrainError(
                    f"expected {name} to give one value an example, shape {batch['mask'].shape}, got {values.shape}"
                )
            sums[name] = jnp.sum(jnp.where(batch["mask"] > 0, values, 0))
        return sums

    def _fresh(self, params: Any, state: Any) -> _Moving:
        params, state = jax.tree.map(jnp.copy, (params, state))  # our own: the step donates them
        return _Moving(params, state, self._optimizer.init(params), jnp.zeros((), jnp.int32))

    def _make_step(self, moving: _Moving, batch: Any) -> tuple[_Moving, dict[str, Any]]:
        key = jax.random.fold_in(jax.random.key(self._seed), moving.step)
        inputs = batch["inputs"]
        if self._augment is not None:
            inputs = self._augment(jax.random.fold_in(key, 1), inputs)

        def mean_loss(params: Any) -> Any:
            output, state = self._outputs(params, moving.state, inputs, jax.random.fold_in(key, 0), train=True)
            sums = self._sums(output, batch)
            return sums["loss"] / sums["examples"], (state, sums)

        gradient, (state, sums) = jax.grad(mean_loss, has_aux=True)(moving.params)
        updates, slots = self._optimizer.update(gradient, moving.slots, moving.params)
        return _Moving(optax.apply_updates(moving.params, updates), state, slots, moving.step + 1), sums

    def _make_measure(self, params: Any, state: Any, batch: Any) -> dict[str, Any]:
        output, _ = self._outputs(params, state, batch["inputs"], None, train=False)
        return self._sums(output, batch)


def _device(batch: Batch) -> dict[str, Any]:
    return {"inputs": batch.inputs, "labels": batch.labels, "mask": batch.mask}


def _mean(totals: Sequence[Mapping[str, Any]]) -> Evaluation:
    summed: dict[str, float] = {}
    for sums in jax.device_get(list(totals)):
        for name, value in sums.items():
            summed[name] = summed.get(name, 0.0) + float(value)
    examples = summed.pop("examples")
    loss = summed.pop("loss") / examples
    return Evaluation(loss, {name.removeprefix("metric "): s / examples for name, s in summed.items()}, int(examples))


def _named(what: str, choice: str | PerExample, table: Mapping[str, PerExample]) -> PerExample:
    if callable(choice):
        return choice
    if choice not in table:
        raise TrainError(f"expected a {what} of {', '.join(table)}, or a function, got {choice!r}")
    return table[choice]
