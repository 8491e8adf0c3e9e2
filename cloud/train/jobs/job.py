"""A training run built from its configuration, including the files it exports."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias

import jax
import numpy as np
import onnx_ir as ir
import optax

from cloud.errors import TrainError
from cloud.train.inputs.feed import feed_of
from cloud.train.jobs.config import Config, Train
from cloud.train.jobs.named import named_function
from cloud.train.jobs.sections import need
from cloud.train.jobs.sources import Examples, examples_of, model_of
from cloud.train.keeping.checkpoint import Checkpoints
from cloud.train.optim import thor
from cloud.train.optim.advice import work_of_gradient
from cloud.train.placing.placement import Prepare
from cloud.train.reports import EpochReport
from cloud.train.stepping.losses import LOSSES, PerExample, smoothed_cross_entropy
from cloud.train.stepping.optimizers import cosine_schedule, decay_mask, momentum_sgd
from cloud.train.stepping.step import Objective
from cloud.train.tasks import as_task
from cloud.train.trainer import Trainer
from federated.tables import closest
from lite_runtime._files import write_atomically

__all__ = ["OPTIMIZERS", "Job", "exported", "job_of", "optimizer_of", "rate_of"]

Rate: TypeAlias = Callable[[Any], Any]
"""Steps done -> learning rate."""


@dataclass(frozen=True)
class Job:
    """A trainer and its task: `epochs` (0: as many as `until` needs), at most `until` steps (0: no limit). `steps` per
    epoch, 0 if known only after reading the data. `config`: the settings as JSON data; `model`: digest of the file that
    training starts from."""

    trainer: Trainer
    examples: Examples
    epochs: int
    batch: int
    steps: int = 0
    rate: Callable[[int], float] | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    model: str = ""
    until: int = 0

    @property
    def total(self) -> int:
        """Steps of the whole run, 0 if known only after reading the data."""
        return _total(self.epochs, self.until, self.steps)

    def fit(self) -> list[EpochReport]:
        """Train to the end; a resumed trainer does what is left."""
        epochs = self._left("epochs", self.epochs, self.trainer.epochs_done)
        steps = self._left("steps", self.until, self.trainer.steps_done)
        data = self.examples
        return self.trainer.fit(data.train, epochs, self.batch, steps=steps, validation=data.validation)

    def _left(self, what: str, most: int, done: int) -> int | None:
        if most and done >= most:
            raise TrainError(f"nothing is left to do: {done} of {most} {what} are done; set a larger number")
        return most - done if most else None


def _total(epochs: int, until: int, steps: int) -> int:
    return min([most for most in (epochs * steps, until) if most], default=0)


def _decayed(optimizer: optax.GradientTransformation, decay: float) -> optax.GradientTransformation:
    """With decay as part of the gradient."""
    return optax.chain(optax.add_decayed_weights(decay, mask=decay_mask), optimizer) if decay else optimizer


Work: TypeAlias = Callable[[], float]
"""FLOPs of the passes of a step, counted when it is called."""

OPTIMIZERS: Mapping[str, Callable[[Rate, Train, Work | None], optax.GradientTransformation]] = MappingProxyType(
    {
        "adam": lambda rate, said, _: _decayed(optax.adam(rate), said.weight_decay),
        "adamw": lambda rate, said, _: optax.adamw(rate, weight_decay=said.weight_decay, mask=decay_mask),
        "sgd": lambda rate, said, _: _decayed(optax.sgd(rate), said.weight_decay),
        "momentum": lambda rate, said, _: momentum_sgd(rate, momentum=said.momentum, weight_decay=said.weight_decay),
        "lion": lambda rate, said, _: optax.lion(rate, weight_decay=said.weight_decay, mask=decay_mask),
        "muon": lambda rate, said, _: optax.contrib.muon(
            rate, weight_decay=said.weight_decay, weight_decay_mask=decay_mask
        ),
        "thor": lambda rate, said, work: thor(rate, weight_decay=said.weight_decay, work=work and work()),
    }
)


def rate_of(said: Train, steps: int) -> Rate:
    """The learning rate over `steps`, over all epochs; if their number is unknown, it can only be constant."""
    if steps == 0 and (said.warmup or said.schedule != "constant"):
        raise TrainError(
            f"train.schedule: expected constant and no warm-up, got {said.schedule!r} and {said.warmup}: the number "
            "of steps is known only after reading the data. Set train.steps to use them"
        )
    warmup = round(said.warmup * steps)
    if said.schedule == "cosine":
        cosine: Rate = cosine_schedule(said.rate, steps, warmup=warmup)
        return cosine
    rise: Rate = optax.schedules.linear_schedule(0.0, said.rate, warmup)
    end = said.rate if said.schedule == "constant" else 0.0
    rest: Rate = optax.schedules.linear_schedule(said.rate, end, max(steps - warmup, 1))
    joined: Rate = optax.schedules.join_schedules([rise, rest], [warmup])
    return joined if warmup else rest


def optimizer_of(said: Train, steps: int, work: Work | None = None) -> tuple[optax.GradientTransformation, Rate]:
    """The optimiser and learning rate of [train], for a run of `steps`; `work`: for those that are bounded by it."""
    rate = rate_of(said, steps)
    return OPTIMIZERS[said.optimizer](rate, said, work), rate


def job_of(config: Config) -> Job:
    """The run that a configuration describes. Raises TrainError, which names the key."""
    said = config.train
    _check_targets(config)
    model, digest = model_of(config)
    examples = examples_of(config, model)
    _check_best(config, examples)
    if said.loss == "softmax_cross_entropy":
        _check_classes(model, examples)
    steps = _steps(examples.count, said)
    optimizer, rate = optimizer_of(said, _total(said.epochs, said.steps, steps), lambda: _work(config, model, examples))
    augment = named_function(said.augment, config.folder, "train.augment") if said.augment else None
    trainer = Trainer(
        model, loss=_loss(config), optimizer=optimizer, seed=said.seed, metrics=said.metrics, augment=augment,
        trainable=config.model.trainable or None, last=said.last, precision=said.precision, accumulate=said.accumulate,
        clip=said.clip or None, gradient_norm=said.gradient_norm, recompute=said.recompute, freeze=said.freeze,
        average=said.average or None,
        parallel=_parallel(config), checkpoints=_checkpoints(config),
    )  # fmt: skip
    return Job(
        trainer, examples, said.epochs, said.batch, steps, lambda at: float(rate(at)), config.source, digest,
        said.steps,
    )  # fmt: skip


def _work(config: Config, model: Any, examples: Examples) -> float:
    """FLOPs of the forward and backward pass of a whole batch: the same wherever and on however many devices the run is
    resumed."""
    said = config.train
    task = as_task(model, trainable=config.model.trainable or None, frozen=said.freeze)
    loss = _loss(config)
    objective = Objective(task, LOSSES[loss] if isinstance(loss, str) else loss, precision=said.precision)
    feed = feed_of(examples.train, task.inputs, size=said.batch, last="pad", seed=0)
    batch = jax.eval_shape(lambda: dict(next(feed.epoch(0))))
    params, state = jax.eval_shape(task.init)
    return work_of_gradient(objective, said.freeze, params, state, batch)


def _check_targets(config: Config) -> None:
    """Check before computing anything, as far as possible, that all requested files can be written."""
    for key, target in (("onnx", config.export.onnx), ("bundle", config.export.bundle)):
        path = config.path(target).absolute()
        if target and not path.parent.is_dir():
            raise TrainError(f"export.{key}: there is no folder for {target!r}; create it first")
        need(not target or not path.is_dir(), f"export.{key}", "the name of a file, not of a folder", target)
    folder = config.path(config.checkpoint.folder).absolute()
    there = next(path for path in (folder, *folder.parents) if path.exists())
    can = there.is_dir() and os.access(there, os.W_OK)
    need(not config.checkpoint.folder or can, "checkpoint.folder", "a folder that can be written to", str(folder))


def _check_best(config: Config, examples: Examples) -> None:
    best, known = config.checkpoint.best, ("loss", *config.train.metrics)
    need(not best or best in known, "checkpoint.best", f"one of {', '.join(known)}", best)
    judged = not best or examples.validation is not None
    need(judged, "checkpoint.best", "validation data together with it (data.validation above 0)", best)


def _check_classes(model: Any, examples: Examples) -> None:
    """Labels beyond a model's outputs would make the loss NaN."""
    shape = model.graph.outputs[0].shape if isinstance(model, ir.Model) and len(model.graph.outputs) == 1 else None
    labels = None if hasattr(examples.train, "batches") else np.asarray(examples.train[1])
    if shape is None or labels is None or labels.dtype.kind not in "iu" or labels.ndim >= len(shape):
        return
    classes, least, most = shape[-1], int(labels.min()), int(labels.max())
    if isinstance(classes, int) and not 0 <= least <= most < classes:
        raise TrainError(
            f"data: expected labels from 0 to {classes - 1}, as the model has {classes} outputs; got {least} to {most}"
        )


def _checkpoints(config: Config) -> Checkpoints | None:
    said = config.checkpoint
    if not said.folder:
        return None
    facts = {"config": config.source}
    return Checkpoints(config.path(said.folder), steps=said.every or None, keep=said.keep, best=said.best, facts=facts)


def _parallel(config: Config) -> str | Prepare:
    """The planner's modules are loaded only if a plan is wanted."""
    if config.parallel.mode != "auto":
        return config.parallel.mode
    from cloud.train.jobs.placing import placing

    return placing(config)


def _steps(examples: int, said: Train) -> int:
    batch = min(said.batch, examples)
    if batch == 0:
        return 0
    return examples // batch if said.last == "drop" else -(-examples // batch)


def _loss(config: Config) -> str | PerExample:
    said = config.train
    if said.smoothing:
        return smoothed_cross_entropy(said.smoothing)
    if ":" in said.loss:
        return named_function(said.loss, config.folder, "train.loss")
    if said.loss not in LOSSES:
        raise TrainError(f'train.loss: no such loss {said.loss!r}{closest(said.loss, LOSSES)}, or "module:function"')
    return said.loss


def exported(job: Job, config: Config) -> dict[str, Path]:
    """Write the files of [export]; returns paths by kind ("onnx", "bundle"). The bundle is made from the ONNX file."""
    said = config.export
    if not (said.onnx or said.bundle):
        return {}
    data = _serialized(job.trainer.export())
    made: dict[str, Path] = {}
    if said.onnx:
        made["onnx"] = config.path(said.onnx)
        write_atomically(made["onnx"], data, TrainError)
    if said.bundle:
        made["bundle"] = config.path(said.bundle)
        _convert(made.get("onnx"), data, made["bundle"], said.quantize, job.examples)
    return made


def _serialized(model: ir.Model) -> bytes:
    return bytes(ir.to_proto(model).SerializeToString(deterministic=True))


def _convert(source: Path | None, data: bytes, target: Path, quantize: Any, examples: Examples) -> None:
    from converter import convert

    needs = quantize in ("int8", "int16x8")
    if needs and examples.sample is None:
        raise TrainError("export.quantize: calibration needs arrays by input name; the data provides none")
    model = os.fspath(source) if source is not None else ir.from_proto(_proto(data))
    convert(model, output=target, quantize=quantize, calibration=dict(examples.sample or {}) if needs else None)


def _proto(data: bytes) -> Any:
    import onnx

    return onnx.load_model_from_string(data)
