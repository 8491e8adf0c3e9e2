"""`msedge agent`: keeps the applications of this device up to date, and says what it does."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edge.cli.errors import CHECK_FAILED
from edge.cli.options import Json
from edge.cli.output import bytes_text, console, emit, say, table

if TYPE_CHECKING:
    from edge.agent.config import Config
    from lite_runtime.updates.checkin import Event

__all__ = ["again", "enrol", "import_folder", "init", "once", "rollback", "run", "status"]

File = Annotated[Path, typer.Argument(metavar="AGENT.toml", help="The configuration; `msedge agent init` prints one.")]
Name = Annotated[str, typer.Argument(metavar="APPLICATION", help="As in the configuration.")]


def run(config: File, as_json: Json = False) -> None:
    """Keep the applications up to date until the process is ended. With --json, an event is a line of JSON."""
    from edge.agent.command.starting import until_ended

    until_ended(_read(config), _line if as_json else _say)


def enrol(
    config: File,
    token: Annotated[Path, typer.Argument(metavar="TOKEN", help="A file with the token that the hub's people made.")],
    as_json: Json = False,
) -> None:
    """Make this device known to its hub: once, with a token that works once. Its key is made here and stays here."""
    from edge.agent.command.starting import enrolled

    words = _read(config)
    device = enrolled(words, token)
    if as_json:
        emit({"device": device, "hub": words.agent.hub})
    else:
        say(f"enrolled as {device} at {words.agent.hub}")


def once(
    config: File,
    wait: Annotated[
        float, typer.Option("--wait", metavar="SECONDS", min=0, help="Go on until updates have ended, at most so long.")
    ] = 0.0,
    as_json: Json = False,
) -> None:
    """Look for new versions once, and do what can be done now. Exit code 1 if something could not be done."""
    from edge.agent.command.starting import looked

    _show(looked(_read(config), wait, _say), as_json)


def status(config: File, as_json: Json = False) -> None:
    """Show what runs, what comes, and what became of the last update. An agent may run meanwhile."""
    from edge.agent.command.starting import state_of

    _print(state_of(_read(config)), as_json)


def import_folder(
    config: File,
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A copy of the repository, as on a USB stick.")],
    wait: Annotated[
        float, typer.Option("--wait", metavar="SECONDS", min=0, help="Go on until updates have ended, at most so long.")
    ] = 3600.0,
    as_json: Json = False,
) -> None:
    """Take updates from a folder instead of the network. Its signatures must be those of the repository."""
    from edge.agent.command.starting import imported

    _show(imported(_read(config), folder, wait, _say), as_json)


def rollback(
    config: File,
    application: Name,
    reason: Annotated[str, typer.Option("--reason", help="Why: it is reported.")] = "somebody asked for it",
    as_json: Json = False,
) -> None:
    """Return to the version before. The one that runs is not installed again until `msedge agent again` says so."""
    from edge.agent.command.starting import opened

    with opened(_read(config), _say) as agent:
        agent.start()
        agent.rollback(application, reason)
        _show(agent.status(), as_json)


def again(
    config: File,
    application: Name,
    version: Annotated[str, typer.Argument(metavar="[VERSION]", help="Default: all that were refused.")] = "",
    as_json: Json = False,
) -> None:
    """Let versions be tried again that failed here."""
    from edge.agent.command.starting import opened

    with opened(_read(config), _say) as agent:
        agent.start()
        agent.again(application, version)
        _show(agent.status(), as_json)


def init() -> None:
    """Print a template of the configuration."""
    from edge.agent.config import TEMPLATE

    print(TEMPLATE, end="")


def _read(path: Path) -> Config:
    from edge.agent.config import read

    return read(path)


def _say(event: Event) -> None:
    from edge.agent.command.starting import event_text

    say(event_text(event))


def _line(event: Event) -> None:
    from edge.agent.command.starting import event_line

    print(event_line(event), flush=True)


def _show(found: dict[str, Any], as_json: bool) -> None:
    from edge.agent.command.starting import failed

    _print(found, as_json)
    if failed(found):
        raise typer.Exit(CHECK_FAILED)


def _print(found: dict[str, Any], as_json: bool) -> None:
    from edge.agent.command.starting import state_text

    if as_json:
        emit(found)
        return
    rows = table("", "application", "runs", "before", "comes", "", fold=("",))
    for name, one in found["applications"].items():
        versions = ("–" if one[key] is None else one[key]["version"] for key in ("running", "previous", "coming"))
        rows.add_row(name, *versions, state_text(one))
    console().print(rows)
    facts = found["facts"]
    if facts["free"] is not None:
        print(f"{bytes_text(facts['free'])} of disk are free")
    if found["trouble"]:
        print(f"trouble: {found['trouble']}")
