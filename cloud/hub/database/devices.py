"""Devices that are enrolled, what they last reported, and their events."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from cloud.hub.database.engine import Cursor
from lite_runtime.updates.checkin import Event

__all__ = ["EVENT", "SEEN", "Device", "add", "all_of", "by_key", "events", "mark", "prune", "some"]

SEEN = "UPDATE devices SET seen = ?, report = ?, received = ? WHERE id = ?"
"""Stores a check-in: time, report (JSON without events), serial of the last event, id."""
EVENT = "INSERT INTO events VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING"


class Device(NamedTuple):
    """A device. key: its Ed25519 public key, in hex. state: "active" or "blocked". created, seen, certified (when its
    certificate ends): seconds since 1970; seen 0: never. labels: attributes that people gave it. report: JSON of the
    last one. received, batch: serials of the last event and the last batch of telemetry. token: the one it enrolled
    with."""

    id: str
    key: str
    state: str
    created: float
    seen: float
    labels: Mapping[str, str]
    report: str
    received: int
    batch: int
    certified: float
    token: str


def _device(row: tuple[Any, ...]) -> Device:
    return Device._make((*row[:5], json.loads(row[5]), *row[6:]))


def add(cursor: Cursor, device: Device) -> None:
    """A new device."""
    row = device._replace(labels=json.dumps(dict(device.labels), sort_keys=True))  # type: ignore[arg-type]
    cursor.run("INSERT INTO devices VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", *row)


def by_key(cursor: Cursor, key: str) -> Device | None:
    """The device with this public key."""
    row = cursor.one("SELECT * FROM devices WHERE key = ?", key)
    return _device(row) if row else None


def all_of(cursor: Cursor) -> Iterable[Device]:
    """All devices."""
    return map(_device, cursor.rows("SELECT * FROM devices"))


def some(cursor: Cursor, ids: Sequence[str]) -> list[Device]:
    """The devices with these ids, at most 10,000, in the order of their ids."""
    if not ids:
        return []
    marks = ", ".join("?" * len(ids))
    return [_device(row) for row in cursor.rows(f"SELECT * FROM devices WHERE id IN ({marks}) ORDER BY id", *ids)]


def mark(cursor: Cursor, device: str, **columns: Any) -> bool:
    """Set columns of a device: state, labels, certified. False if there is no such device."""
    if not columns.keys() <= {"state", "labels", "certified"}:
        raise TypeError(f"expected state, labels or certified, got {', '.join(columns)}")
    values = [json.dumps(dict(one), sort_keys=True) if name == "labels" else one for name, one in columns.items()]
    words = ", ".join(f"{name} = ?" for name in columns)
    return cursor.run(f"UPDATE devices SET {words} WHERE id = ?", *values, device) == 1


def events(cursor: Cursor, device: str, most: int = 100) -> list[Event]:
    """A device's newest events, the newest first."""
    words = "SELECT serial, time, kind, application, version, words FROM events WHERE device = ?"
    return [Event(*row) for row in cursor.rows(f"{words} ORDER BY serial DESC LIMIT ?", device, most)]


def prune(cursor: Cursor, before: float) -> int:
    """Remove events that were stored before a time; returns how many."""
    return cursor.run("DELETE FROM events WHERE stored < ?", before)
