"""`msedge train` in several processes: starting them, and what differs from a single process."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from edge.cli.errors import COULD_NOT_RUN
from edge.cli.output import say

if TYPE_CHECKING:
    from cloud.train.jobs.job import Job
    from cloud.train.reports import EpochReport
    from cloud.train.trainer import Trainer

__all__ = ["fitted", "follow", "goes_on", "stop_code", "supervised", "together"]


def supervised(
    what: str, changes: Sequence[str], runs: Path | None, resume: bool, as_json: bool, processes: int, restarts: int,
    function: bool,
) -> int:  # fmt: skip
    """Run the same command in `processes` processes and supervise them; returns the exit code."""
    from cloud.errors import TrainError
    from cloud.train.jobs.config import read
    from cloud.train.many.elastic import supervise
    from cloud.train.many.preempt import PREEMPTED

    command = [sys.executable, "-m", "edge.cli", "train", what, *(word for each in changes for word in ("--set", each))]
    command += [*(["--runs", str(runs)] if runs else []), *["--resume"] * resume, *["--json"] * as_json]
    config = None if function else read(what, changes)
    if config is not None and config.parallel.mode == "none":
        raise TrainError(f'parallel.mode: expected "data" or "auto" for {processes} processes, got "none"')
    if config is not None and not config.checkpoint.folder and restarts:
        say("[checkpoint] folder is not set: if a process is lost, the others start from the beginning")
    batch = config.train.batch if config is not None else 0
    found = supervise(command, processes, restarts=restarts, fits=lambda count: batch % count == 0, say=say)
    return COULD_NOT_RUN if found.status == PREEMPTED else found.status


def together() -> AbstractContextManager[tuple[int, int]]:
    """Connect to the other processes, if there are any; an error then ends this process at once."""
    from cloud.train.many import processes
    from cloud.train.many.elastic import RESTARTS

    def tell(error: Exception) -> None:
        print(f"error: {type(error).__name__}: {error}", file=sys.stderr)

    if RESTARTS in os.environ:
        _only_python_prints()
    return processes.together(status=COULD_NOT_RUN, tell=tell)


def _only_python_prints() -> None:
    """Redirect the lines that Gloo, the communication library for CPUs, prints on stdout to stderr."""
    sys.stdout.flush()
    sys.stdout = open(os.dup(1), "w", encoding=sys.stdout.encoding, closefd=True)  # noqa: SIM115
    os.dup2(2, 1)


def follow(job: Job) -> int:
    """The work of all processes but the first: train, and help to gather the weights for the export. Returns the exit
    code."""
    from cloud.train.many.preempt import stopping_on_signals

    with stopping_on_signals(lambda name: job.trainer.stop()):
        fitted(job)
    if job.trainer.stopped:
        return stop_code(job.trainer)
    job.trainer.weights()
    return 0


def fitted(job: Job) -> list[EpochReport]:
    """Train to the end. A process that a supervisor restarts may have been stopped after its last step: then nothing is
    left but what comes after."""
    return [] if goes_on(job.trainer) and job.over else job.fit()


def goes_on(trainer: Trainer) -> bool:
    """Whether a supervisor restarted this process and there is a checkpoint to continue from."""
    from cloud.train.many.elastic import RESTARTS

    kept = trainer.checkpoints
    return int(os.environ.get(RESTARTS, "0")) > 0 and kept is not None and bool(kept.there())


def stop_code(trainer: Trainer) -> int:
    """The exit code of a stopped run: it tells a supervisor whether the run was saved."""
    from cloud.train.many.elastic import RESTARTS
    from cloud.train.many.preempt import PREEMPTED

    return PREEMPTED if RESTARTS in os.environ and trainer.checkpoints is not None else COULD_NOT_RUN
