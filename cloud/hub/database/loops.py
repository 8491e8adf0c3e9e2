"""Events of loops, from which their state follows."""

from __future__ import annotations

import json
from collections.abc import Iterator

from cloud.hub.database.engine import Cursor
from cloud.hub.errors import HubError
from cloud.hub.loop.cycle import Cycle, Event

__all__ = ["add", "events", "load", "names"]


def names(cursor: Cursor) -> list[str]:
    """All loops, in order."""
    return [str(row[0]) for row in cursor.rows("SELECT DISTINCT loop FROM loops ORDER BY loop")]


def load(cursor: Cursor, loop: str) -> Cycle:
    """A loop's state; one without events is idle."""
    return Cycle(event for _, event in _numbered(cursor, loop, 0))


def events(cursor: Cursor, loop: str, after: int = 0, most: int = 1000) -> list[tuple[int, Event]]:
    """Events with numbers above `after` (from 1), in order."""
    return list(_numbered(cursor, loop, after, most))


def add(cursor: Cursor, loop: str, number: int, event: Event) -> Cycle:
    """Store an event as the `number`th of its loop (from 1); returns the state after it. Raises HubError if another one
    is there: somebody else has done something meanwhile; and if the state does not allow the event."""
    cursor.alone("loops")
    found = load(cursor, loop)
    if number != found.events + 1:
        raise HubError(f"loop {loop}: expected event {found.events + 1}, got {number}; read what happened meanwhile")
    found.apply(event)
    words = json.dumps(dict(event.data), separators=(",", ":"))
    row = (loop, number, event.time, event.kind, event.step, event.by, event.text, words)
    cursor.run("INSERT INTO loops VALUES (?, ?, ?, ?, ?, ?, ?, ?)", *row)
    return found


def _numbered(cursor: Cursor, loop: str, after: int, most: int = 1 << 31) -> Iterator[tuple[int, Event]]:
    words = "SELECT number, kind, time, step, who, words, data FROM loops WHERE loop = ? AND number > ?"
    for number, kind, time, step, who, text, data in cursor.rows(f"{words} ORDER BY number LIMIT ?", loop, after, most):
        yield number, Event(kind, time, step, who, text, json.loads(data))
