"""Events of rollouts, from which their state follows."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator

from cloud.hub.database.engine import Cursor
from cloud.hub.errors import HubError
from cloud.hub.rollouts.rollout import Event, Rollout

__all__ = ["ADD", "decisions", "load", "row", "verdicts"]

ADD = "INSERT INTO rollouts VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
"""Stores an event; `row` has its values."""


def row(rollout: str, number: int, event: Event) -> tuple[object, ...]:
    """The values of an event, the `number`th of its rollout."""
    data = json.dumps(dict(event.data), separators=(",", ":"))
    return rollout, number, event.time, event.kind, event.device, event.by, event.text, data


def decisions(cursor: Cursor, rollout: str) -> list[Event]:
    """What happened to a rollout as a whole, in order; events of its devices are left out."""
    return [event for *_, event in _events(cursor, "WHERE rollout = ? AND device = '' ORDER BY number", rollout)]


def verdicts(cursor: Cursor, rollout: str) -> Iterator[tuple[float, str, str]]:
    """When devices joined a rollout and how they ended, in order: time, device, verdict, which is "" for joining."""
    words = "SELECT time, device, kind, data FROM rollouts WHERE rollout = ? AND kind IN ('joined', 'ended')"
    known: dict[str, str] = {}  # few texts, many rows
    for time, device, kind, data in cursor.rows(f"{words} ORDER BY number", rollout):
        if kind == "joined":
            yield time, device, ""
        else:
            if data not in known:
                known[data] = json.loads(data)["verdict"]
            yield time, device, known[data]


def load(cursor: Cursor) -> dict[str, tuple[Rollout, int]]:
    """All rollouts as their events left them, and the number of the next event of each. One whose beginning cannot be
    read is left out."""
    found: dict[str, tuple[Rollout, int]] = {}
    for identity, number, event in _events(cursor, "ORDER BY rollout, number"):
        rollout, _ = found.get(identity) or (Rollout(identity, ()), 0)
        with contextlib.suppress(HubError):  # it followed one that could not be stored
            rollout.apply(event)
        found[identity] = rollout, number + 1
    return {identity: one for identity, one in found.items() if one[0].status}


def _events(cursor: Cursor, where: str, *values: object) -> Iterator[tuple[str, int, Event]]:
    words = f"SELECT rollout, number, kind, time, device, who, words, data FROM rollouts {where}"
    for identity, number, kind, time, device, who, text, data in cursor.rows(words, *values):
        yield identity, number, Event(kind, time, device, who, text, json.loads(data))
