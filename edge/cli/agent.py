"""`msedge agent`: keeps the applications of this device up to date, and says what it does."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edge.cli.errors import CHECK_FAILED
from edge.cli.options import Json
from edge.cli.output import bytes_text, console, emit, say, table

if TYPE_CHECKING:
    from edge.agent.agent import Agent
    from edge.agent.config import Config
    from edge.agent.conversation import Conversation
    from edge.agent.fetching import Fetch
    from edge.agent.source import Source
    from lite_runtime.updates.checkin import Event

__all__ = ["again", "enrol", "import_folder", "init", "once", "rollback", "run", "status"]

File = Annotated[Path, typer.Argument(metavar="AGENT.toml", help="The configuration; `msedge agent init` prints one.")]
Name = Annotated[str, typer.Argument(metavar="APPLICATION", help="As in the configuration.")]


def run(config: File, as_json: Json = False) -> None:
    """Keep the applications up to date until the process is ended. With --json, an event is a line of JSON."""
    import signal
    import threading

    words, ended = _read(config), threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    hub = _hub(words)
    with _opened(words, as_json, hub) as agent:
        agent.start()
        agent.run(None if hub is None else hub.check_in, ended)


def enrol(
    config: File,
    token: Annotated[Path, typer.Argument(metavar="TOKEN", help="A file with the token that the hub's people made.")],
    as_json: Json = False,
) -> None:
    """Make this device known to its hub: once, with a token that works once. Its key is made here and stays here."""
    from edge.agent.errors import AgentError

    words = _read(config)
    hub = _hub(words)
    if hub is None:
        raise AgentError("agent.hub: expected the address of a hub, got none; add it to the configuration")
    try:
        given = token.read_text(encoding="ascii").strip()
    except (OSError, ValueError) as error:
        raise AgentError(f"cannot read the token in {str(token)!r}: {error}; check the path") from None
    found = hub.enrol(given, words.agent.attributes)
    hub.close()
    if as_json:
        emit({"device": found.device, "hub": words.agent.hub})
    else:
        say(f"enrolled as {found.device} at {words.agent.hub}")


def once(
    config: File,
    wait: Annotated[
        float, typer.Option("--wait", metavar="SECONDS", min=0, help="Go on until updates have ended, at most so long.")
    ] = 0.0,
    as_json: Json = False,
) -> None:
    """Look for new versions once, and do what can be done now. Exit code 1 if something could not be done."""
    with _opened(_read(config)) as agent:
        agent.start()
        agent.once()
        _settle(agent, wait)
        _show(agent, as_json)


def status(config: File, as_json: Json = False) -> None:
    """Show what runs, what comes, and what became of the last update. An agent may run meanwhile."""
    from edge.agent.agent import peek

    words = _read(config)
    _print(peek(words.path(words.agent.folder), words.settings()), as_json)


def import_folder(
    config: File,
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A copy of the repository, as on a USB stick.")],
    wait: Annotated[
        float, typer.Option("--wait", metavar="SECONDS", min=0, help="Go on until updates have ended, at most so long.")
    ] = 3600.0,
    as_json: Json = False,
) -> None:
    """Take updates from a folder instead of the network. Its signatures must be those of the repository."""
    from edge.agent.errors import AgentError
    from edge.agent.fetching import Folder

    if not folder.is_dir():
        raise AgentError(f"expected a folder, got {str(folder)!r}; give that of a copied repository")
    words = _read(config)
    with _opened(words) as agent:
        agent.source = _source(words, Folder(folder))
        agent.start()
        agent.once(agent.source)
        _settle(agent, wait)
        _show(agent, as_json)


def rollback(
    config: File,
    application: Name,
    reason: Annotated[str, typer.Option("--reason", help="Why: it is reported.")] = "somebody asked for it",
    as_json: Json = False,
) -> None:
    """Return to the version before. The one that runs is not installed again until `msedge agent again` says so."""
    with _opened(_read(config)) as agent:
        agent.start()
        agent.rollback(application, reason)
        _show(agent, as_json)


def again(
    config: File,
    application: Name,
    version: Annotated[str, typer.Argument(metavar="[VERSION]", help="Default: all that were refused.")] = "",
    as_json: Json = False,
) -> None:
    """Let versions be tried again that failed here."""
    with _opened(_read(config)) as agent:
        agent.start()
        agent.again(application, version)
        _show(agent, as_json)


def init() -> None:
    """Print a template of the configuration."""
    from edge.agent.config import TEMPLATE

    print(TEMPLATE, end="")


def _read(path: Path) -> Config:
    from edge.agent.config import read

    return read(path)


def _opened(words: Config, lines: bool = False, hub: Conversation | None = None) -> Agent:
    """The agent of a configuration; its repository is that of the hub if there is no other."""
    from edge.agent.agent import Agent
    from edge.agent.machine import Machine

    settings = words.settings()
    return Agent(
        words.path(words.agent.folder),
        settings,
        _source(words, _fetch(words) if words.agent.repository else hub or _hub(words)),
        machine=Machine(words.agent.costly),
        every=words.agent.every,
        attributes=words.agent.attributes,
        watch=_line if lines else _say,
    )


def _fetch(words: Config) -> Fetch:
    """The repository that is configured."""
    import ssl

    from edge.agent.fetching import Folder, Https

    where = words.agent.repository
    if "://" not in where:
        return Folder(words.path(where))
    authority = str(words.path(words.agent.authority)) if words.agent.authority else None
    return Https(where, ssl.create_default_context(cafile=authority))


def _hub(words: Config) -> Conversation | None:
    """The conversation with the hub that is configured; None without one."""
    if not words.agent.hub:
        return None
    from edge.agent.agent import IDENTITY
    from edge.agent.conversation import Conversation
    from edge.agent.identity import Identity

    authority = str(words.path(words.agent.authority)) if words.agent.authority else ""
    return Conversation(words.agent.hub, Identity(words.path(words.agent.folder) / IDENTITY), authority)


def _source(words: Config, fetch: Fetch | None) -> Source:
    from edge.agent.agent import TRUST
    from edge.agent.errors import AgentError
    from edge.agent.source import Repository
    from edge.agent.trust import Trust

    assert fetch is not None  # `Config.settings` has refused that
    path = words.path(words.agent.root)
    try:
        root = path.read_bytes()
    except OSError as error:
        raise AgentError(f"agent.root: cannot read {str(path)!r}: {error.strerror}; get it from the hub") from None
    return Repository(Trust(words.path(words.agent.folder) / TRUST, root, fetch), fetch)


def _settle(agent: Agent, seconds: float) -> None:
    """Go on until no update is under way that waits for nothing."""
    import time

    end = time.monotonic() + seconds
    while time.monotonic() < end and any(one.busy for one in agent.applications.values()):
        time.sleep(min(agent.pause, 0.2))
        agent.advance()


def _say(event: Event) -> None:
    where = " ".join(word for word in (event.application, event.version) if word)
    say(f"{event.kind}: {where}{': ' if where and event.text else ''}{event.text}")


def _line(event: Event) -> None:
    import json

    print(json.dumps(event._asdict()), flush=True)


def _show(agent: Agent, as_json: bool) -> None:
    found = agent.status()
    _print(found, as_json)
    if found["trouble"] or any(one["trouble"] for one in found["applications"].values()):
        raise typer.Exit(CHECK_FAILED)


def _print(found: dict[str, Any], as_json: bool) -> None:
    if as_json:
        emit(found)
        return
    rows = table("", "application", "runs", "before", "comes", "", fold=("",))
    for name, one in found["applications"].items():
        versions = ("–" if one[key] is None else one[key]["version"] for key in ("running", "previous", "coming"))
        rows.add_row(name, *versions, _word(one))
    console().print(rows)
    facts = found["facts"]
    if facts["free"] is not None:
        print(f"{bytes_text(facts['free'])} of disk are free")
    if found["trouble"]:
        print(f"trouble: {found['trouble']}")


def _word(one: dict[str, Any]) -> str:
    """The state of an application in a few words."""
    if one["trouble"]:
        return str(one["trouble"])
    if one["waits"]:
        return f"waits for {one['waits']}"
    if one["phase"] != "idle":
        return str(one["phase"])
    last = one["outcome"]
    return "" if last is None else f"{last['version']} {last['kind']}{': ' + last['reason'] if last['reason'] else ''}"
