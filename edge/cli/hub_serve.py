"""`msedge hub serve`, and what is kept in its database: tokens, the audit log."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from edge.cli.errors import CHECK_FAILED
from edge.cli.options import Json
from edge.cli.output import console, emit, say, table
from lite_runtime.errors import MsedgeError

if TYPE_CHECKING:
    from cloud.hub.database.engine import Database
    from cloud.hub.server.hub import Hub
    from cloud.hub.server.settings import Settings

__all__ = ["COMMANDS", "TOKEN", "date"]

Config: TypeAlias = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="The hub's settings, a TOML file with [hub].")
]
Base: TypeAlias = Annotated[
    str | None, typer.Option("--database", metavar="ADDRESS", help="A path, or postgresql://…; default: hub.sqlite.")
]
_DAY = 86_400.0


def serve(
    config: Config = None,
    address: Annotated[
        str | None, typer.Option("--address", metavar="HOST:PORT", help="Where to listen; port 0 is a free one.")
    ] = None,
    database: Base = None,
    repository: Annotated[
        str | None, typer.Option("--repository", metavar="DIR", help="The signed files: a folder, or s3://…")
    ] = None,
    tls: Annotated[
        tuple[Path, Path] | None,
        typer.Option("--tls", metavar="CERT.pem KEY.pem", help="The hub's certificate and key."),
    ] = None,
    folder: Annotated[
        Path, typer.Option("--folder", metavar="DIR", help="Where the hub keeps the key that certifies devices.")
    ] = Path("."),
    as_json: Json = False,
) -> None:
    """Serve a fleet: devices enrol, check in and fetch files; rollouts go on. Ends with SIGTERM, and loses nothing."""
    from cloud.hub.server import running

    more: dict[str, Any] = {"address": address, "database": database, "repository": repository}
    if tls is not None:
        more |= {"certificate": str(tls[0]), "key": str(tls[1])}
    settings = _settings(config, more)
    folder.mkdir(parents=True, exist_ok=True)

    def told(hub: Hub, url: str) -> None:
        if as_json:
            emit({"address": url, "hub": hub.id, "devices": len(hub.fleet.devices)})
            sys.stdout.flush()
        say(f"hub {hub.id} at {url}, {len(hub.fleet.devices)} devices, {len(hub.fleet.rollouts)} rollouts")

    asyncio.run(running.serve(settings, folder, told))


def _settings(config: Path | None, more: dict[str, Any]) -> Settings:
    import msgspec

    from cloud.hub.server.settings import Settings, read_settings

    settings = read_settings(config) if config is not None else Settings()
    return msgspec.structs.replace(settings, **{name: value for name, value in more.items() if value is not None})


# -- tokens ------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _database(config: Path | None, address: str | None) -> Iterator[Database]:
    """The hub's database, also while the hub serves."""
    from cloud.hub.database.opening import opened

    made = opened(_settings(config, {"database": address}).database)
    try:
        yield made
    finally:
        made.close()


def token_add(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Whose it is, or for which device.")],
    scope: Annotated[
        str, typer.Option("--scope", metavar="SCOPE", help="operator, viewer, or device: enrols one device.")
    ] = "device",
    days: Annotated[
        float | None, typer.Option("--days", metavar="N", min=0, help="Until it ends; default: never.")
    ] = None,
    label: Annotated[
        list[str] | None,
        typer.Option("--label", metavar="KEY=VALUE", help="An attribute of the device that enrols; repeatable."),
    ] = None,
    config: Config = None,
    database: Base = None,
    as_json: Json = False,
) -> None:
    """Make a token, and print it: it cannot be read again."""
    from cloud.hub.database import audit, tokens

    pairs = [word.partition("=") for word in label or ()]
    if wrong := [name for name, mark, _ in pairs if not mark]:
        raise typer.BadParameter(f"expected KEY=VALUE, got {wrong[0]!r}", param_hint="--label")
    labels = {key: value for key, _, value in pairs}
    now, seconds = time.time(), None if days is None else days * _DAY
    with _database(config, database) as base, base.transaction() as cursor:
        made = tokens.add(cursor, name, scope, now, seconds, labels)
        audit.add(cursor, now, _who(), "token add", {"name": name, "scope": scope, "labels": labels})
    if as_json:
        emit({"name": name, "scope": scope, "token": made})
    else:
        print(made)


def token_revoke(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Of the token.")],
    config: Config = None,
    database: Base = None,
    as_json: Json = False,
) -> None:
    """Remove a token; a hub that serves refuses it within five seconds."""
    from cloud.hub.database import audit, tokens

    with _database(config, database) as base, base.transaction() as cursor:
        tokens.revoke(cursor, name)
        audit.add(cursor, time.time(), _who(), "token revoke", {"name": name})
    if as_json:
        emit({"revoked": name})
    else:
        say(f"revoked {name}")


def token_list(config: Config = None, database: Base = None, as_json: Json = False) -> None:
    """Show all tokens, without their secrets."""
    from cloud.hub.database import tokens

    with _database(config, database) as base, base.reading() as cursor:
        found = tokens.listed(cursor)
    if as_json:
        emit({"tokens": [{k: v for k, v in one._asdict().items() if k != "digest"} for one in found]})
        return
    rows = table("", "name", "scope", "made", "ends", "uses left", right=("uses left",))
    for one in found:
        ends = "never" if one.expires is None else date(one.expires)
        rows.add_row(one.name, one.scope, date(one.created), ends, "any" if one.uses < 0 else str(one.uses))
    console().print(rows)


def _who() -> str:
    """Who works on this machine, for the audit log."""
    import getpass

    try:
        return f"{getpass.getuser()} on the hub's machine"
    except (KeyError, OSError, ImportError):
        return f"user {os.getuid()} on the hub's machine"


# -- audit log ---------------------------------------------------------------------------------------------------------


def audit_log(
    verify: Annotated[
        bool, typer.Option("--verify", help="Check the chain of hashes; exit code 1 if it is broken.")
    ] = False,
    head: Annotated[
        str, typer.Option("--head", metavar="HASH", help="With --verify: the last hash of an earlier time.")
    ] = "",
    export: Annotated[
        Path | None, typer.Option("--export", metavar="FILE.jsonl", help="Write all entries, one a line.")
    ] = None,
    source: Annotated[
        Path | None, typer.Option("--from", metavar="FILE.jsonl", help="Read an exported log, and no database.")
    ] = None,
    config: Config = None,
    database: Base = None,
    as_json: Json = False,
) -> None:
    """Show, export or verify the audit log, from the hub's database or an exported file."""
    from cloud.hub.database import audit
    from cloud.hub.errors import HubError
    from lite_runtime._files import write_atomically

    if source is not None:
        found = _read_log(source)
    else:
        with _database(config, database) as base, base.reading() as cursor:
            found = audit.entries(cursor)
    if export is not None:
        write_atomically(export, "".join(map(audit.line, found)).encode())
    problem, number, last = "", len(found), found[-1].chain if found else audit.START
    if verify or head:
        try:
            number, last = audit.verified(found, head)
        except HubError as error:
            problem = str(error)
    if as_json:
        shown = {} if export is not None or verify else {"log": [one._asdict() for one in found]}
        emit({"entries": number, "head": last, "problem": problem or None, **shown})
    else:
        if not verify and export is None:
            for one in found:
                print(f"{one.number:6} {date(one.time)}  {one.who}: {one.what} {json.dumps(dict(one.data))}")
        say(problem or f"{number} entries, the last with hash {last}{'; the chain is whole' if verify else ''}")
    if problem:
        raise typer.Exit(CHECK_FAILED)


def _read_log(path: Path) -> list[Any]:
    from cloud.hub.database.audit import Entry

    try:
        return [Entry(**json.loads(line)) for line in path.read_text("utf-8").splitlines()]
    except (OSError, ValueError, TypeError) as problem:
        raise MsedgeError(f"{str(path)!r}: expected an exported audit log, got another file: {problem}") from None


def date(seconds: float) -> str:
    """A time for people, as on their clock."""
    return datetime.fromtimestamp(seconds).astimezone().strftime("%Y-%m-%d %H:%M:%S")


COMMANDS: dict[str, Callable[..., None]] = {"serve": serve, "audit": audit_log}
TOKEN: dict[str, Callable[..., None]] = {"add": token_add, "revoke": token_revoke, "list": token_list}
