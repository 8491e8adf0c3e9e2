"""`msedge tune`: search for the best settings of a run's file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edge.cli.errors import COULD_NOT_RUN
from edge.cli.options import Changes, Json
from edge.cli.output import emit, say, seconds_text

if TYPE_CHECKING:
    from cloud.train.tuning.history import Trial
    from cloud.train.tuning.pool import Pool
    from cloud.train.tuning.study import Outcome

__all__ = ["tune"]


def tune(
    path: Annotated[Path, typer.Argument(metavar="RUN.toml", help="A configuration of a run with [tune].")],
    changes: Changes = None,
    runs: Annotated[
        Path | None, typer.Option("--runs", metavar="FILE", help="The store of runs; default: from [track].")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the study in [tune] folder.")] = False,
    ray: Annotated[
        str | None,
        typer.Option(
            "--ray", metavar="ADDRESS", help="Run the trials on this Ray cluster; local: start one on this machine."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Search for the best settings of a run, by trials: runs of the file with other values of the keys in [tune] space.

    Every trial is a run in the store, with the study as its parent: `msedge runs page STUDY` shows all of them. The
    files of [export] are those of the best trial. Ctrl-C or SIGTERM ends the study with exit code 3; --resume continues
    it, also after a kill: trials that were running are run again with the same values.
    """
    from cloud.train.many.preempt import stopping_on_signals
    from cloud.train.tuning import study

    with _pool(ray) as pool, stopping_on_signals(lambda _: None) as came:
        found = study.tune(
            path, changes or (), resume=resume, store=runs, pool=pool, progress=_lines(), stop=lambda: "".join(came[:1])
        )
    if as_json:
        emit(_summary(found))
    else:
        _print(found, path)
    if not found.complete:
        say(f"stopped by {found.ended}; --resume continues it")
        raise typer.Exit(COULD_NOT_RUN)
    if found.best is None:
        say("no trial was finished; lower tune.halving, or see the reasons with msedge runs page")
        raise typer.Exit(COULD_NOT_RUN)


@contextmanager
def _pool(ray: str | None) -> Iterator[Callable[[int], Pool]]:
    """What makes the pool: processes of this machine, or actors of a Ray cluster."""
    if ray is None:
        from cloud.train.tuning.pool import Processes

        yield Processes
        return
    from cloud.train.many.ray.trials import connected

    with connected(ray) as pool:
        yield pool


def _lines() -> Callable[[Trial], None]:
    """Prints a line when a trial begins and when it ends."""
    begun: set[int] = set()

    def show(trial: Trial) -> None:
        if trial.state == "running":
            if trial.number not in begun:
                begun.add(trial.number)
                say(f"trial {trial.number}: {_values(trial)}")
            return
        value = trial.value if trial.value is not None else trial.curve[-1] if trial.curve else None
        figure = "" if value is None else f" {value:.4g}"
        why = f": {trial.facts['why']}" if trial.facts.get("why") else ""
        count = len(trial.curve)
        say(f"trial {trial.number}: {trial.state}{figure}, {count} evaluation{'s' * (count != 1)}{why}")

    return show


def _values(trial: Trial) -> str:
    from cloud.train.tuning.study import changes_of

    return " ".join(changes_of(trial))


def _row(trial: Trial) -> dict[str, Any]:
    return dict.fromkeys(("run", "seconds", "why")) | trial.as_data()


def _summary(found: Outcome) -> dict[str, Any]:
    return {
        "run": found.run or None, "store": found.store, "folder": found.folder, "metric": found.metric,
        "lower": found.lower, "ended": found.ended, "complete": found.complete, "evaluations": found.evaluations,
        "best": None if found.best is None else _row(found.best), "files": dict(found.files),
        "trials": [_row(trial) for trial in found.trials],
    }  # fmt: skip


def _print(found: Outcome, path: Path) -> None:
    seconds = sum(trial.facts.get("seconds", 0.0) for trial in found.trials)
    print(f"{len(found.trials)} trials, {found.evaluations} evaluations, {seconds_text(seconds)} of training")
    if found.best is not None:
        from cloud.train.tuning.study import changes_of

        words = " ".join(f"--set '{change}'" for change in changes_of(found.best))
        print(f"best: trial {found.best.number}, {found.metric} {found.best.value:.4g}")
        print(f"msedge train {path} {words}")
    for kind, file in found.files.items():
        print(f"{kind}: {file}")
    if found.run:
        print(f"run {found.run}: msedge runs page {found.run} --runs {found.store}")
