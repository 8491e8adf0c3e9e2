"""`msedge runs`: show what `msedge train` recorded, as tables, a page, or TensorBoard files."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from edge.cli.options import Json
from edge.cli.output import bytes_text, console, emit, seconds_text, table

if TYPE_CHECKING:
    from cloud.track import Link, Run, Store
    from cloud.track.copies import Copy

__all__ = ["compare", "export", "lineage", "listed", "page", "show", "watch"]

StoreFile: TypeAlias = Annotated[
    Path | None,
    typer.Option("--runs", metavar="FILE", help="The store of runs; default: MSEDGE_RUNS, else ./runs.sqlite."),
]
RunName: TypeAlias = Annotated[
    str, typer.Argument(metavar="RUN", help="An id, the beginning of an id, a name, or `latest`.")
]
RunNames: TypeAlias = Annotated[
    list[str] | None, typer.Argument(metavar="RUN…", help="Ids, beginnings of ids, names, or `latest`.")
]
LONG = 40
"""Characters that a table shows of a configuration's value."""


def _store(path: Path | None) -> Store:
    from cloud.track.store import Store, default_path

    return Store(path or default_path())


def listed(runs: StoreFile = None, as_json: Json = False) -> None:
    """List all runs, the newest first, with their validation metrics if there are any."""
    with _store(runs) as store:
        found = [(run, store.last(run.id)) for run in store.runs()]
    if as_json:
        emit({"runs": [_facts(run) | {"last": last} for run, last in found]})
        return
    heads = ("run", "name", "state", "begun", "took", "loss", "accuracy")
    rows = table("", *heads, right=("took", "loss", "accuracy"))
    for run, last in found:
        figures = (last.get(f"validation/{key}", last.get(f"train/{key}")) for key in ("loss", "accuracy"))
        begun = _date(run.created).partition("-")[2]
        rows.add_row(run.id, run.name, run.state, begun, seconds_text(run.seconds), *map(_figure, figures))
    console().print(rows)


def show(which: RunName = "latest", runs: StoreFile = None, as_json: Json = False) -> None:
    """Show one run: its state, metrics, settings, files and their origin."""
    from cloud.track import lineage as chain_of
    from edge.pages.runs_page import flat

    with _store(runs) as store:
        run = store.run(which)
        last, events, files = store.last(run.id), store.events(run.id), store.artifacts(run.id)
        chain = chain_of(store, run.id)
    if as_json:
        emit(
            _facts(run) | {"config": run.config, "environment": run.environment, "last": last, "plan": run.plan}
            | {"events": [vars(e) for e in events], "files": [vars(f) for f in files]}
            | {"lineage": [vars(link) for link in chain]}
        )  # fmt: skip
        return
    print(f"{run.id}  {run.name}  {run.state}, started {_date(run.created)}, took {seconds_text(run.seconds)}")
    if run.error:
        print(f"ended with an error: {run.error}")
    if run.git:
        print(f"commit {run.git['commit'][:12]} on {run.git['branch']}{', modified' if run.git['dirty'] else ''}")
    _print_pairs("latest metrics", {name: _figure(value) for name, value in last.items()})
    _print_pairs("configuration", {key: str(value)[:LONG] for key, value in flat(run.config).items()})
    for event in events:
        print(f"{_date(event.time)}  {event.kind}: {event.text}")
    for file in files:
        print(f"{file.kind}: {file.path} ({bytes_text(file.bytes)})")
    _print_chain(chain)


def compare(first: RunName, second: RunName, runs: StoreFile = None, as_json: Json = False) -> None:
    """Compare two runs: their different settings and their results."""
    from edge.pages.runs_page import flat

    with _store(runs) as store:
        pair = (store.run(first), store.run(second))
        last = [store.last(run.id) for run in pair]
    facts = _beside([flat(_all_facts(run)) for run in pair])
    settings = {key: values for key, values in facts.items() if values[0] != values[1]}
    figures = _beside(last)
    if as_json:
        emit({"runs": [run.id for run in pair], "settings": settings, "figures": figures})
        return
    heads = [run.name or run.id for run in pair]
    rows = table("different settings" if settings else "no different settings", "key", *heads, fold=heads)
    for key, values in settings.items():
        rows.add_row(key, *("" if v is None else str(v)[:LONG] for v in values))
    console().print(rows)
    rows = table("latest metrics", "name", *heads, "difference", right=(*heads, "difference"))
    for key, (a, b) in figures.items():
        rows.add_row(key, _figure(a), _figure(b), "" if a is None or b is None else f"{b - a:+.4g}")
    console().print(rows)


def lineage(
    what: Annotated[str, typer.Argument(metavar="FILE|DIGEST|RUN", help="A bundle, a model, or a run.")],
    runs: StoreFile = None, as_json: Json = False,
) -> None:  # fmt: skip
    """Show where a file came from: data, run, ONNX, bundle."""
    from cloud.track import lineage as chain_of

    with _store(runs) as store:
        chain = chain_of(store, what)
    if as_json:
        emit({"lineage": [vars(link) for link in chain]})
    else:
        _print_chain(chain)


def page(
    which: RunNames = None,
    output: Annotated[Path, typer.Option("-o", "--output", metavar="runs.html", help="The page.")] = Path("runs.html"),
    runs: StoreFile = None,
) -> None:
    """Write an HTML page with the curves of the named runs; without names, of the newest runs."""
    from edge.pages.runs_page import runs_page
    from lite_runtime._files import write_atomically

    with _store(runs) as store:
        found = [store.run(name) for name in which or ["latest"]]
        write_atomically(output, runs_page(store, found).encode())
    print(f"{output}: {', '.join(run.id for run in found)}")


def watch(
    which: RunNames = None,
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="The port; 0: one that is free.")] = 0,
    runs: StoreFile = None,
) -> None:
    """Serve a page of the named runs on 127.0.0.1 that stays up to date while they train; without names, of the newest
    run.

    Ctrl-C ends it. The page is that of `msedge runs page`; runs may train in other processes.
    """
    from cloud.track.store import default_path
    from edge.pages.live import LivePage, serving

    page = LivePage(runs or default_path(), lambda: which or ["latest"])
    page.refresh()
    with serving(page, port) as address:
        print(f"serving {address} until Ctrl-C", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            while True:
                time.sleep(3600.0)


def export(
    which: RunNames = None,
    tensorboard: Annotated[
        Path | None,
        typer.Option("--tensorboard", metavar="DIR", help="Write TensorBoard's event files here."),
    ] = None,
    mlflow: Annotated[
        str | None, typer.Option("--mlflow", metavar="URI", help="Copy to MLflow: sqlite:///mlflow.db, http://…")
    ] = None,
    experiment: Annotated[str, typer.Option("--experiment", help="MLflow's experiment.")] = "msedge",
    wandb: Annotated[
        str | None, typer.Option("--wandb", metavar="PROJECT", help="Copy to a project of Weights & Biases.")
    ] = None,
    runs: StoreFile = None,
) -> None:
    """Copy runs to TensorBoard (scalars and histograms), MLflow or Weights & Biases (settings, scalars, files); without
    names, all runs.

    A run that MLflow or Weights & Biases has already, from training or an earlier export, is continued there.
    WANDB_MODE=offline writes files for `wandb sync`.
    """
    if tensorboard is None and mlflow is None and wandb is None:
        raise typer.BadParameter("expected --tensorboard, --mlflow or --wandb, got none of them")
    with _store(runs) as store:
        for run in [store.run(name) for name in which] if which else store.runs():
            if tensorboard is not None:
                from cloud.track import tensorboard as board

                print(board.export(store, run, tensorboard))
            for copy in _copies(mlflow, experiment, wandb):
                from cloud.track.copies import export as copied

                copied(store, run, copy)
                print(f"{copy.what}: {run.id}")


def _copies(mlflow: str | None, experiment: str, wandb: str | None) -> Iterator[Copy]:
    if mlflow is not None:
        from cloud.track.copies.mlflow import MlflowCopy

        yield MlflowCopy(mlflow, experiment)
    if wandb is not None:
        from cloud.track.copies.wandb import WandbCopy

        yield WandbCopy(wandb)


def _all_facts(run: Run) -> dict[str, Any]:
    """All facts that could explain a difference between runs."""
    return {
        **run.config, "environment": run.environment, "git": run.git, "seed": run.seed, "data digest": run.data[:12],
        "plan": run.plan_digest[:12],
    }  # fmt: skip


def _beside(tables: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    keys = dict.fromkeys(key for made in tables for key in made)
    return {key: [made.get(key) for made in tables] for key in keys}


def _facts(run: Run) -> dict[str, Any]:
    left_out = ("config", "environment", "plan")
    return {name: value for name, value in vars(run).items() if name not in left_out} | {"seconds": run.seconds}


def _print_pairs(title: str, pairs: Mapping[str, str]) -> None:
    if pairs:
        rows = table(title, "", " ", right=(" ",))
        for name, value in pairs.items():
            rows.add_row(name, value)
        console().print(rows)


def _print_chain(chain: Sequence[Link]) -> None:
    print("lineage:")
    for number, link in enumerate(chain):
        made_of = f" ← {', '.join(str(n + 1) for n in link.sources)}" if link.sources else ""
        print(f"  {number + 1} {link.kind:8} {link.digest[:16]}  {link.text}{made_of}")


def _figure(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def _date(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).astimezone().strftime("%Y-%m-%d %H:%M")
