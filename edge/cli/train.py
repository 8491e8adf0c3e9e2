"""`msedge train`: run a training job described by a TOML file or a function; show, record and export it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edge.cli.options import Changes, Json
from edge.cli.output import emit, say, seconds_text

if TYPE_CHECKING:
    from cloud.track.tracked import Tracked
    from cloud.train.jobs.config import Config
    from cloud.train.jobs.job import Job
    from cloud.train.reports import EpochReport

__all__ = ["train"]


def train(
    what: Annotated[
        str | None,
        typer.Argument(
            metavar="CONFIG.toml|MODULE:FUNCTION",
            help="A configuration (--template prints one), or a function without parameters that returns a "
            "cloud.train.jobs.job.Job.",
        ),
    ] = None,
    changes: Changes = None,
    runs: Annotated[
        Path | None, typer.Option("--runs", metavar="FILE", help="The store of runs; default: from [track].")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue from the newest checkpoint in [checkpoint] folder.")
    ] = False,
    processes: Annotated[
        int, typer.Option("--processes", min=1, metavar="N", help="Train in N processes on this machine.")
    ] = 1,
    restarts: Annotated[
        int, typer.Option("--restarts", min=0, help="How often to restart with fewer processes after one is lost.")
    ] = 3,
    page: Annotated[
        int | None,
        typer.Option(
            "--page",
            min=0,
            max=65535,
            metavar="PORT",
            help="Serve a page of the run while it trains, on this port of 127.0.0.1; 0: one that is free.",
        ),
    ] = None,
    template: Annotated[bool, typer.Option("--template", help="Print a template of the configuration.")] = False,
    as_json: Json = False,
) -> None:
    """Train a model, record the run, export the result.

    Ctrl-C or SIGTERM ends the run after the current step; its record and, if [checkpoint] is set, a checkpoint are
    saved, and the exit code is 3. A second signal ends it at once. `msedge runs` shows the records.

    Processes started in another way, on one or several machines, find each other through the environment variables
    MSEDGE_COORDINATOR, MSEDGE_PROCESSES and MSEDGE_PROCESS, or those of SLURM or Open MPI.
    """
    if template:
        from cloud.train.jobs.template import TEMPLATE

        print(TEMPLATE, end="")
        return
    if what is None:
        raise typer.BadParameter("expected a configuration, got none; --template prints one", param_hint="CONFIG.toml")
    function = ":" in what and not Path(what).exists()
    if function and changes:
        raise typer.BadParameter("--set changes a configuration, not a function; omit it", param_hint="--set")
    if processes > 1 and page is not None:
        raise typer.BadParameter(
            "one process serves a page; watch several with msedge runs watch in another terminal", param_hint="--page"
        )
    if processes > 1:
        from edge.cli.train_many import supervised

        raise typer.Exit(supervised(what, changes or (), runs, resume, as_json, processes, restarts, function))
    from edge.cli.train_many import together

    with together():
        status = _run(what, changes or (), runs, resume, as_json, function, page)
    raise typer.Exit(status)


def _run(
    what: str, changes: Sequence[str], runs: Path | None, resume: bool, as_json: bool, function: bool, page: int | None
) -> int:
    """Run what this process has to do; returns the exit code."""
    from cloud.track.store import default_path
    from cloud.train.jobs.recording import copies_of, store_of, tracked_as

    if function:
        job = _job_of_function(what)
        _resumed(job, resume)
        tracked = tracked_as(job, runs or default_path(), name=what, profile=_profile(0, page))
        return _train(job, tracked, None, as_json, page)
    from cloud.train.jobs.config import read
    from cloud.train.jobs.job import job_of

    config = read(what, changes)
    said = config.track
    if page is not None and not said.keep:
        raise typer.BadParameter("a page shows what is recorded: set track.keep = true", param_hint="--page")
    job = job_of(config)
    _resumed(job, resume)
    kept = None
    if said.keep:
        kept = tracked_as(
            job, runs or store_of(config), name=said.name, seed=config.train.seed,
            profile=_profile(said.profile, page), copies=copies_of(said),
        )  # fmt: skip
    return _train(job, kept, config, as_json, page)


PROFILED = 8
"""Steps that are profiled for a page."""


def _profile(said: int, page: int | None) -> int:
    return said or (0 if page is None else PROFILED)


def _job_of_function(text: str) -> Job:
    from cloud.errors import TrainError
    from cloud.train.jobs.job import Job
    from cloud.train.jobs.named import named_function

    job = named_function(text, Path.cwd(), "MODULE:FUNCTION")()
    if not isinstance(job, Job):
        raise TrainError(f"{text}: expected it to return a cloud.train.jobs.job.Job, got {type(job).__name__}")
    return job


def _resumed(job: Job, asked: bool) -> None:
    from edge.cli.train_many import goes_on

    if asked or goes_on(job.trainer):
        say(f"continuing from {job.trainer.resume()}, after step {job.trainer.steps_done}")


@contextmanager
def _paged(tracked: Tracked | None, page: int | None) -> Iterator[None]:
    """Serve the page of a run, if it is wanted."""
    if page is None or tracked is None:
        yield
        return
    from edge.pages.live import LivePage, serving

    with serving(LivePage(tracked.path, lambda: [tracked.run] if tracked.run else []), page) as address:
        say(f"page of this run: {address}")
        yield


def _train(job: Job, tracked: Tracked | None, config: Config | None, as_json: bool, page: int | None) -> int:
    from cloud.train.many.processes import is_first
    from edge.cli.train_live import watching
    from edge.cli.train_many import fitted, follow, stop_code

    if not is_first():
        return follow(job)

    begun = perf_counter()
    with _paged(tracked, page), watching(job.epochs, job.total) as view:
        job.trainer.watch(view, *([tracked] if tracked is not None else []))
        with _stoppable(job, tracked) as stopped:
            reports = fitted(job)
        stopped += ["another process"] if job.trainer.stopped and not stopped else []
    files = {} if stopped or config is None else _exported(job, config, tracked)
    if tracked is not None:
        tracked.close()
    made = _summary(job, reports, tracked, files) | {"stopped": stopped, "seconds": perf_counter() - begun}
    if as_json:
        emit(made)
    else:
        _print(made)
    if stopped:
        go_on = "--resume continues it" if job.trainer.checkpoints else "not saved, as [checkpoint] folder is not set"
        say(f"stopped by {stopped[0]} after step {job.trainer.steps_done}; {go_on}")
        return stop_code(job.trainer)
    return 0


def _stoppable(job: Job, tracked: Tracked | None) -> AbstractContextManager[list[str]]:
    """Stop at a signal after the current step; a second signal interrupts. Gives the names of received signals."""
    from cloud.train.many.preempt import stopping_on_signals

    def stop(name: str) -> None:
        if tracked is not None:
            tracked.stopping(name)
        job.trainer.stop()

    return stopping_on_signals(stop)


def _exported(job: Job, config: Config, tracked: Tracked | None) -> dict[str, str]:
    from cloud.train.jobs.job import exported

    files = exported(job, config)
    for kind, path in files.items():
        if tracked is not None:
            tracked.left(kind, path)
    return {kind: str(path) for kind, path in files.items()}


def _summary(job: Job, reports: list[EpochReport], tracked: Tracked | None, files: dict[str, str]) -> dict[str, Any]:
    last = reports[-1] if reports else None
    found = {"training": last.training, "validation": last.validation} if last is not None else {}
    return {
        "run": tracked.run if tracked is not None else None,
        "store": tracked.path if tracked is not None else None,
        "epochs": job.trainer.epochs_done,
        "steps": job.trainer.steps_done,
        **{name: {"loss": e.loss, **e.metrics} if e is not None else None for name, e in found.items()},
        "files": files,
    }


def _print(made: dict[str, Any]) -> None:
    counts = [f"{made[what]} {what[:-1] if made[what] == 1 else what}" for what in ("epochs", "steps")]
    words = [f"{', '.join(counts)} in {seconds_text(made['seconds'])}"]
    for name in ("training", "validation"):
        if found := made.get(name):
            words.append(f"{name} " + ", ".join(f"{key} {value:.4f}" for key, value in found.items()))
    print("; ".join(words))
    for kind, path in made["files"].items():
        print(f"{kind}: {path}")
    if made["run"] is not None:
        print(f"run {made['run']}: msedge runs show {made['run']} --runs {made['store']}")
