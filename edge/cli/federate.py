"""`msedge federate`: a federated run, simulated here or on real devices behind a SuperLink."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edge.cli.errors import COULD_NOT_RUN
from edge.cli.options import Json
from edge.cli.output import bytes_text, console, emit, say, seconds_text, table

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["federate"]


def federate(
    config: Annotated[
        Path | None, typer.Argument(metavar="CONFIG.toml", help="What to learn; --init prints one to begin with.")
    ] = None,
    simulate: Annotated[
        int | None,
        typer.Option("--simulate", metavar="N", min=0, help="With N devices in this process; 0: all of data.shards."),
    ] = None,
    superlink: Annotated[
        str | None, typer.Option("--superlink", metavar="HOST:PORT", help="On the devices of a Flower SuperLink.")
    ] = None,
    certificates: Annotated[
        Path | None,
        typer.Option("--certificates", metavar="CA.crt", help="Whom to trust as that SuperLink; without it: no TLS."),
    ] = None,
    report: Annotated[
        Path | None, typer.Option("--report", metavar="out.html", help="Write what happened as a page (--simulate).")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from state.checkpoint.")] = False,
    init: Annotated[bool, typer.Option("--init", help="Print a configuration to begin with.")] = False,
    as_json: Json = False,
) -> None:
    """Learn from many devices without seeing their data.

    Devices train a bundle made with `msedge convert --trainable`; the algorithm, who takes part, what travels and what
    is kept stand in the configuration.
    """
    if init:
        from federated.config import TEMPLATE

        print(TEMPLATE, end="")
        return
    if config is None:
        raise typer.BadParameter("expected a configuration; --init prints one", param_hint="CONFIG.toml")
    if (simulate is None) == (superlink is None):
        raise typer.BadParameter("expected --simulate N or --superlink HOST:PORT, one of them")
    if superlink is not None:
        _submit(config, superlink, certificates, resume, as_json)
    else:
        _simulate(config, simulate or 0, resume, report, as_json)


def _submit(config: Path, superlink: str, certificates: Path | None, resume: bool, as_json: bool) -> None:
    """Flower shows the ServerApp's log, a line of JSON for each round."""
    from federated.config import read
    from federated.transport.submit import submit

    read(config)
    if certificates is None:
        say("warning: without --certificates nothing proves that this is your SuperLink, and anybody can read along")
    code = submit(config, superlink, certificates=certificates, resume=resume)
    if as_json:
        emit({"config": str(config), "superlink": superlink, "exit_code": code})
    if code:
        raise typer.Exit(COULD_NOT_RUN)


def _simulate(config: Path, devices: int, resume: bool, page: Path | None, as_json: bool) -> None:
    from federated.config import read
    from federated.run import fleet_of, report, simulate

    begun = perf_counter()
    words = read(config)
    fleet = fleet_of(words, devices)
    say(f"{words.algorithm.name}: {len(fleet.shards)} devices, {words.rounds.count} rounds")
    with _bar(words.rounds.count) as watch:
        federation = simulate(words, fleet, resume=resume, watch=watch)
    made = report(federation) | {"wall_seconds": perf_counter() - begun}
    if page is not None:
        _write_page(page, made)
    if as_json:
        emit(made)
    else:
        _print(made)


def _write_page(path: Path, made: Mapping[str, Any]) -> None:
    from edge.fleet_page import fleet_page
    from lite_runtime._files import write_atomically

    write_atomically(path, fleet_page(made).encode())


@contextmanager
def _bar(rounds: int) -> Iterator[Callable[[dict[str, Any]], None]]:
    """A progress bar on stderr; plain lines where that is no terminal."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    out = console(stderr=True)
    columns = (TextColumn("round {task.completed:.0f}/{task.total:.0f}"), BarColumn(bar_width=30))
    bar = Progress(*columns, TextColumn("{task.description}"), TimeElapsedColumn(), console=out)
    task = bar.add_task("", total=rounds)

    def advance(row: dict[str, Any]) -> None:
        if not out.is_terminal:
            say(f"round {row['round']}/{rounds}: {_words(row)}")
            return
        bar.start()
        bar.update(task, completed=row["round"], description=_words(row))

    try:
        yield advance
    finally:
        bar.stop()


def _words(row: Mapping[str, Any]) -> str:
    """A round in a line."""
    parts = [f"{row['answered']}/{row['asked']} devices"]
    if row["loss"] is not None:
        parts.append(f"loss {row['loss']:.3f}")
    for name, (before, after) in _accuracies(row).items():
        parts.append(f"{name.replace('_', ' ')} {before:.3f} → {after:.3f}")
    parts.append(f"{bytes_text(row['bytes_up'])} up, {bytes_text(row['bytes_down'])} down")
    if row["refused"]:
        parts.append("refused " + ", ".join(f"{count} {reason}" for reason, count in row["refused"].items()))
    if row["silent"]:
        parts.append(f"{row['silent']} silent")
    if not row["counted"]:
        parts.append("too few: tried again")
    return "; ".join(parts)


def _accuracies(row: Mapping[str, Any]) -> dict[str, tuple[float, float]]:
    """Mean accuracy before and after adapting, of devices that train and ones that never do."""
    found = {}
    for name, survey in row.get("evaluation", {}).items():
        if survey["summary"]:
            found[name] = (survey["summary"]["accuracy_before"]["mean"], survey["summary"]["accuracy_after"]["mean"])
    return found


def _print(made: Mapping[str, Any]) -> None:
    evaluated = [row for row in made["rows"] if "evaluation" in row]
    if evaluated:
        heads = ("count", "before", "after", "worst before", "worst after")
        title = f"accuracy after round {evaluated[-1]['round']}; worst: of the worst tenth"
        rows = table(title, "devices", *heads, right=heads)
        for name, survey in evaluated[-1]["evaluation"].items():
            if (summary := survey["summary"]) is not None:
                pairs = (summary["accuracy_before"], summary["accuracy_after"])
                figures = [pair["mean"] for pair in pairs] + [pair["worst_decile"] for pair in pairs]
                label = {"training": "that train", "held_out": "never seen"}[name]
                rows.add_row(label, str(summary["devices"]), *(f"{figure + 0.0:.3f}" for figure in figures))
        console().print(rows)
    print(
        f"{made['algorithm']}: {made['rounds']} rounds with {made['devices']} devices in "
        f"{seconds_text(made['wall_seconds'])}; "
        f"{bytes_text(made['bytes_up'])} up, {bytes_text(made['bytes_down'])} down"
    )
    refused = {**made["turned_away"], **made["refused"]}
    print("refused: " + (", ".join(f"{count} {reason}" for reason, count in sorted(refused.items())) or "nothing"))
