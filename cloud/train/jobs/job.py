"""A training run built from its configuration, including the files it exports."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import onnx_ir as ir

from cloud.errors import TrainError
from cloud.parallel.compressed.method import Compress
from cloud.train.inputs.feed import feed_of
from cloud.train.inputs.weights import plain
from cloud.train.jobs.augmenting.nodes import augmented
from cloud.train.jobs.config import Config, Train
from cloud.train.jobs.examples import taken
from cloud.train.jobs.made import Rates, average_of, deciding_of, loss_of, rate_of, trained_by
from cloud.train.jobs.named import named_function
from cloud.train.jobs.sections import need
from cloud.train.jobs.settings import Loss as LossKeys
from cloud.train.jobs.sources import Examples, examples_of, model_of
from cloud.train.jobs.varied import save_adapters, variants_of
from cloud.train.keeping.checkpoint import Checkpoints
from cloud.train.optim.advice import work_of_gradient
from cloud.train.placing.placement import Prepare
from cloud.train.reports import EpochReport
from cloud.train.stepping.heads import Loss, aims_of
from cloud.train.stepping.step import Objective
from cloud.train.tasks import as_task
from cloud.train.trainer import Trainer
from lite_runtime._files import write_atomically

__all__ = ["Job", "exported", "job_of"]


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

    @property
    def over(self) -> bool:
        """Whether all of its epochs or steps are done."""
        done = ((self.epochs, self.trainer.epochs_done), (self.until, self.trainer.steps_done))
        return any(most and count >= most for most, count in done)

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


def job_of(config: Config) -> Job:
    """The run that a configuration describes. Raises TrainError, which names the key."""
    said = config.train
    _check_targets(config)
    model, digest = model_of(config)
    examples = examples_of(config, model)
    loss = loss_of(config, None if hasattr(examples.train, "batches") else plain(examples.train[1]))
    _check_metrics(config, examples, aims_of(loss, said.metrics).known)
    if said.loss == "softmax_cross_entropy" and not said.heads:
        _check_classes(model, examples)
    losses: Mapping[str, LossKeys] = said.heads or {"": said}
    train = augmented(examples.train, config.data.augment, said.batch, said.last, [*taken(model)], losses)
    examples = replace(examples, train=train)
    steps = _steps(examples.count, said)
    total = _total(said.epochs, said.steps, steps)
    rate = rate_of(said, total, config.schedule)
    work = partial(_work, config, loss, model, examples)
    augment = named_function(said.augment, config.folder, "train.augment") if said.augment else None
    trainer = Trainer(
        model, loss=loss, seed=said.seed, metrics=said.metrics, augment=augment,
        trainable=config.model.trainable or None, last=said.last, precision=said.precision, accumulate=said.accumulate,
        clip=said.clip or None, gradient_norm=said.gradient_norm, recompute=said.recompute, freeze=said.freeze,
        average=average_of(said, total, steps), **trained_by(said, rate, work), **deciding_of(config),
        parallel=_parallel(config), compress=_compress(config), checkpoints=_checkpoints(config), **variants_of(
            said.lora, said.distill, said.prune, said.adversarial, config.folder, said.seed, said.batch, total
        ),
    )  # fmt: skip
    return Job(
        trainer, examples, said.epochs, said.batch, steps, Rates(rate), config.source, digest, said.steps,
    )  # fmt: skip


def _work(config: Config, loss: Loss, model: Any, examples: Examples) -> float:
    """FLOPs of the forward and backward pass of a whole batch: the same wherever and on however many devices the run is
    resumed."""
    said = config.train
    task = as_task(model, trainable=config.model.trainable or None, frozen=said.freeze)
    objective = Objective(task, aims_of(loss, said.metrics).loss, precision=said.precision)
    feed = feed_of(examples.train, task.inputs, size=said.batch, last="pad", seed=0)
    batch = jax.eval_shape(lambda: dict(next(feed.epoch(0))))
    params, state = jax.eval_shape(task.init)
    return work_of_gradient(objective, said.freeze, params, state, batch)


def _check_targets(config: Config) -> None:
    """Check before computing anything, as far as possible, that all requested files can be written."""
    adapted = not config.export.adapter or config.train.lora is not None
    need(adapted, "export.adapter", "[train.lora] together with it", config.export.adapter)
    for key, target in [(key, getattr(config.export, key)) for key in ("onnx", "bundle", "adapter")]:
        path = config.path(target).absolute()
        if target and not path.parent.is_dir():
            raise TrainError(f"export.{key}: there is no folder for {target!r}; create it first")
        need(not target or not path.is_dir(), f"export.{key}", "the name of a file, not of a folder", target)
    folder = config.path(config.checkpoint.folder).absolute()
    there = next(path for path in (folder, *folder.parents) if path.exists())
    can = there.is_dir() and os.access(there, os.W_OK)
    need(not config.checkpoint.folder or can, "checkpoint.folder", "a folder that can be written to", str(folder))


def _check_metrics(config: Config, examples: Examples, metrics: Sequence[str]) -> None:
    """Metrics by which something is decided are measured, on validation data."""
    watched = {
        "checkpoint.best": config.checkpoint.best,
        "stopping.metric": config.stopping.metric if config.stopping.patience else "",
        "plateau.metric": config.plateau.metric if config.plateau.patience else "",
        "tune.metric": config.tune.metric if config.tune is not None else "",
    }
    known = ("loss", *metrics)
    for key, name in watched.items():
        need(not name or name in known, key, f"one of {', '.join(known)}", name)
        judged = not name or examples.validation is not None
        need(judged, key, "validation data together with it (data.validation above 0)", name)
    cadence = config.train.evaluate_steps or config.train.evaluate_share
    need(not cadence or examples.validation is not None, "train.evaluate_steps and evaluate_share",
         "validation data together with them (data.validation above 0)", cadence)  # fmt: skip
    best = config.checkpoint.best
    same = best in ("", config.stopping.metric) or not (config.stopping.patience and config.stopping.restore)
    need(same, "checkpoint.best", "stopping.metric, whose best weights are restored", best)


def _check_classes(model: Any, examples: Examples) -> None:
    """Labels beyond a model's outputs would make the loss NaN."""
    shape = model.graph.outputs[0].shape if isinstance(model, ir.Model) and len(model.graph.outputs) == 1 else None
    labels = None if hasattr(examples.train, "batches") else plain(examples.train[1])
    if (
        shape is None
        or not isinstance(labels, np.ndarray)
        or labels.dtype.kind not in "iu"
        or labels.ndim >= len(shape)
    ):
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


def _compress(config: Config) -> Compress | None:
    """For data parallelism; the planner is told by `placing`."""
    said = config.parallel
    return Compress.named(said.compress, said.topology or None) if said.compress and said.mode == "data" else None


def _steps(examples: int, said: Train) -> int:
    batch = min(said.batch, examples)
    if batch == 0:
        return 0
    return examples // batch if said.last == "drop" else -(-examples // batch)


def exported(job: Job, config: Config) -> dict[str, Path]:
    """Write the files of [export]; returns paths by kind ("onnx", "bundle", "adapter"). The bundle is made from the
    ONNX file."""
    said = config.export
    made: dict[str, Path] = {}
    if said.adapter:
        made["adapter"] = config.path(said.adapter)
        save_adapters(made["adapter"], job.trainer.adapters(), job.model)
    if not (said.onnx or said.bundle):
        return made
    data = _serialized(job.trainer.export())
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
