"""The same training on a Ray cluster.

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

from cloud.train.callbacks import Callback
from cloud.train.reports import EpochReport

if TYPE_CHECKING:
    from cloud.train.jobs.job import Job

__all__ = ["ray_trainer"]


def ray_trainer(
    what: str | os.PathLike[str] | Callable[[], Job], *, changes: Sequence[str] = (), scaling: Any = None,
    run: Any = None, datasets: Mapping[str, Any] | None = None,
) -> Any:  # fmt: skip
    """A `DataParallelTrainer` of Ray Train. Its `fit()` runs, in every worker, the TOML file `what` (with `changes`,
    "section.key=value") or the job that the function `what` returns.

    `scaling`: a `ray.train.ScalingConfig`: workers, each with its GPUs; `run`: a `ray.train.RunConfig`, for example the
    number of failures to tolerate. Workers continue from the newest checkpoint in the job's folder, if there is one;
    all of them need access to it. `datasets`: `ray.data.Dataset`s by name, of which each worker reads its share with
    `RayBatches`. Each epoch's metrics are reported to Ray; the first worker exports the files of
    [export].
    """
    from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

    made = what if callable(what) else os.path.abspath(what)
    said = {"what": made, "changes": tuple(changes)}
    return DataParallelTrainer(
        _work, train_loop_config=said, scaling_config=scaling, run_config=run, datasets=dict(datasets or {})
    )  # fmt: skip


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
