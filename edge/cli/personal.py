"""`msedge personal`: what a store of personal versions holds, and deleting from it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edge.cli.options import Json
from edge.cli.output import console, emit, say, table

if TYPE_CHECKING:
    from federated.server.store import PersonalStore

__all__ = ["expire", "forget", "listed"]

Store = Annotated[Path, typer.Argument(metavar="STORE", help="The file that `[sync] store` of a federated run names.")]


def listed(store: Store, as_json: Json = False) -> None:
    """List the devices in a store: their newest version and its time."""
    from datetime import UTC, datetime

    from federated.server.store import PersonalReader

    reader = PersonalReader(store)
    kept, found = reader.retention, sorted(reader.stamps().items())
    if as_json:
        devices = [{"device": name, "version": version, "created": created} for name, (version, created) in found]
        emit({"retention": {"versions": kept.versions, "days": kept.days}, "devices": devices})
        return
    rows = table("", "device", "version", "stored")
    for name, (version, created) in found:
        stored = datetime.fromtimestamp(created, UTC).isoformat(sep=" ", timespec="minutes").removesuffix("+00:00")
        rows.add_row(name, str(version), stored)
    console().print(rows)
    say(f"{len(found)} devices; {kept.versions} versions of each are kept, for {kept.days:g} days; times are UTC")


def forget(
    store: Store,
    device: Annotated[str, typer.Argument(metavar="DEVICE", help="Its name, as `msedge personal list` shows it.")],
) -> None:
    """Delete all that a store has of a device; gateways notice within `personal.refresh` seconds."""
    from federated.errors import FederatedError

    count = _existing(store).forget(device)
    if not count:
        raise FederatedError(f"{device!r}: no such device in {str(store)!r}; `msedge personal list {store}` shows them")
    say(f"{device}: {count} versions deleted")


def expire(
    store: Store,
    versions: Annotated[
        int | None, typer.Option("--versions", metavar="N", help="Keep the newest N of a device; default: as before.")
    ] = None,
    days: Annotated[
        float | None, typer.Option("--days", metavar="N", help="Keep none older than that; default: as before.")
    ] = None,
) -> None:
    """Delete what exceeds the retention, after changing it if an option says so."""
    from federated.server.store import PersonalStore, Retention

    found = _existing(store)
    if versions is not None or days is not None:
        kept = found.retention
        wanted = Retention(kept.versions if versions is None else versions, kept.days if days is None else days)
        found = PersonalStore(store, wanted)
    say(f"{found.expire()} versions deleted")


def _existing(path: Path) -> PersonalStore:
    """The store in an existing file: opening one that does not exist would create it."""
    from federated.server.store import PersonalReader, PersonalStore

    PersonalReader(path)
    return PersonalStore(path)
