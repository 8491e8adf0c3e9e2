"""The same training and prediction on a Ray cluster; needs the extra `ray`.

Ray starts the workers and restarts them when one is lost; everything else (where batches come from, plans, checkpoints)
is as it is without Ray.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cloud.errors import TrainError
from cloud.train.callbacks import Callback
from cloud.train.reports import EpochReport

if TYPE_CHECKING:
    from cloud.train.jobs.job import Job

__all__ = ["Predictor", "predict", "ray_trainer"]


def ray_trainer(
    what: str | os.PathLike[str] | Callable[[], Job], *, changes: Sequence[str] = (), scaling: Any = None,
    run: Any = None,
) -> Any:  # fmt: skip
    """A `DataParallelTrainer` of Ray Train. Its `fit()` runs, in every worker, the TOML file `what` (with `changes`,
    "section.key=value") or the job that the function `what` returns.

    `scaling`: a `ray.train.ScalingConfig`: workers, each with its GPUs; `run`: a `ray.train.RunConfig`, for example the
    number of failures to tolerate. Workers continue from the newest checkpoint in the job's folder, if there is one;
    all of them need access to it. Each epoch's metrics are reported to Ray; the first worker exports the files of
    [export].
    """
    from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

    made = what if callable(what) else os.path.abspath(what)
    said = {"what": made, "changes": tuple(changes)}
    return DataParallelTrainer(_work, train_loop_config=said, scaling_config=scaling, run_config=run)


class _Reporting(Callback):
    """Reports every epoch to Ray, from all workers. Ray keeps metrics only with a checkpoint: the first worker's has
    them."""

    def epoch_done(self, report: EpochReport) -> None:
        """See `Callback`."""
        from ray import train

        found = {"loss": report.training.loss, **report.training.metrics}
        if report.validation is not None:
            tested = {"loss": report.validation.loss, **report.validation.metrics}
            found |= {f"validation {name}": value for name, value in tested.items()}
        found = {"epoch": report.epoch, **found}
        if train.get_context().get_world_rank():
            train.report(found)
            return
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "report.json").write_text(json.dumps(found))
            train.report(found, checkpoint=train.Checkpoint.from_directory(folder))


def _work(said: Mapping[str, Any]) -> None:
    """The function that each worker runs."""
    import ray
    from ray import train
    from ray.train.collective import broadcast_from_rank_zero

    from cloud.train.many.processes import VARIABLES, free_port, join

    context = train.get_context()
    address = broadcast_from_rank_zero(f"{ray.util.get_node_ip_address()}:{free_port()}")
    values = address, str(context.get_world_size()), str(context.get_world_rank())
    index, _ = join({**os.environ, **dict(zip(VARIABLES, values, strict=True))})
    job, export = _job(said["what"], said["changes"])
    kept = job.trainer.checkpoints
    if kept is not None and kept.there():
        job.trainer.resume()
    job.trainer.watch(_Reporting())
    job.fit()
    if index == 0:
        export()
    else:
        job.trainer.weights()  # takes part in gathering them


def _job(what: str | Callable[[], Job], changes: Sequence[str]) -> tuple[Job, Callable[[], object]]:
    """The job, and a function that writes its files."""
    if callable(what):
        return what(), lambda: None
    from cloud.train.jobs.config import read
    from cloud.train.jobs.job import exported, job_of

    config = read(what, changes)
    job = job_of(config)
    return job, lambda: exported(job, config)


class Predictor:
    """A bundle or an ONNX file, for `ray.data.Dataset.map_batches`: it reads the columns named like the model's inputs,
    and returns columns named like its outputs, in addition to those of `keep`."""

    def __init__(self, path: str, keep: Sequence[str] = ()) -> None:
        self._inputs, self._run = (_of_bundle if path.endswith(".mslite") else _of_onnx)(path)
        self._keep = tuple(keep)

    def __call__(self, batch: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Outputs of a batch of rows."""
        if missing := [name for name in (*self._inputs, *self._keep) if name not in batch]:
            raise TrainError(f"expected columns {[*self._inputs, *self._keep]}, got {sorted(batch)}: no {missing}")
        found = self._run({name: batch[name] for name in self._inputs})
        return {**{name: batch[name] for name in self._keep}, **found}


def predict(
    dataset: Any, path: str | os.PathLike[str], *, batch_size: int = 256, workers: int = 1, keep: Sequence[str] = (),
    **resources: Any,
) -> Any:  # fmt: skip
    """The `ray.data.Dataset` of the outputs of the model at `path` (a bundle or an ONNX file, readable by all workers)
    for `dataset`, computed by `workers` actors; `resources`, such as num_gpus=1, are each one's. See `Predictor`."""
    return dataset.map_batches(
        Predictor, fn_constructor_args=(os.path.abspath(path), tuple(keep)), batch_size=batch_size,
        batch_format="numpy", concurrency=workers, **resources,
    )  # fmt: skip


_Run = Callable[[dict[str, np.ndarray]], Mapping[str, np.ndarray]]


def _of_bundle(path: str) -> tuple[list[str], _Run]:
    import lite_runtime

    model = lite_runtime.load(path)

    def run(inputs: dict[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        return {name: np.array(value) for name, value in model.run(inputs).items()}

    return [value.name for value in model.inputs()], run


def _of_onnx(path: str) -> tuple[list[str], _Run]:
    import jax
    import onnx_ir as ir

    from cloud.engine import lower

    model = ir.load(path)
    function = lower(model)
    forward = jax.jit(lambda inputs: function.apply(function.params, function.state, inputs, train=False)[0])

    def run(inputs: dict[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        return {name: np.asarray(value) for name, value in forward(inputs).items()}

    return [spec.name for spec in function.inputs], run
