"""Who did what, as a chain of hashes: an entry cannot be changed, removed or put in later without breaking it.

The hash of an entry is SHA-256 of the one before and of the entry's own JSON. Whoever can write to the database can
write a new chain, or cut off its end: who keeps the last hash elsewhere (`msedge hub audit` shows it) notices both.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Any, NamedTuple

from cloud.hub.database.engine import Cursor
from cloud.hub.errors import HubError

__all__ = ["START", "Entry", "add", "entries", "head", "latest", "line", "verified"]

START = "0" * 64


class Entry(NamedTuple):
    """One entry. number: from 1. time: seconds since 1970. data: in JSON's types. chain: its hash, in hex."""

    number: int
    time: float
    who: str
    what: str
    data: Mapping[str, Any]
    chain: str


def _hash(before: str, number: int, time: float, who: str, what: str, data: Mapping[str, Any]) -> str:
    row = json.dumps([number, time, who, what, data], sort_keys=True, separators=(",", ":"))
    return sha256(f"{before}\n{row}".encode()).hexdigest()


def add(cursor: Cursor, time: float, who: str, what: str, data: Mapping[str, Any]) -> None:
    """Write an entry at the end of the chain, in the transaction of what it describes."""
    cursor.alone("audit")
    number, before = head(cursor)
    chain = _hash(before, number + 1, time, who, what, data)
    words = json.dumps(data, sort_keys=True, separators=(",", ":"))
    cursor.run("INSERT INTO audit VALUES (?, ?, ?, ?, ?, ?)", number + 1, time, who, what, words, chain)


def entries(cursor: Cursor, after: int = 0, most: int = 1 << 31) -> list[Entry]:
    """Entries with numbers above `after`, in order."""
    rows = cursor.rows("SELECT * FROM audit WHERE number > ? ORDER BY number LIMIT ?", after, most)
    return [_entry(row) for row in rows]


def latest(cursor: Cursor, words: str = "", before: int = 1 << 53, most: int = 100) -> list[Entry]:
    """Entries with numbers below `before` in which these words stand, in any case, the newest first."""
    mask = words.lower()
    for mark in "!%_":
        mask = mask.replace(mark, f"!{mark}")
    columns = " OR ".join(f"LOWER({name}) LIKE ? ESCAPE '!'" for name in ("who", "what", "data"))
    query = f"SELECT * FROM audit WHERE number < ? AND ({columns}) ORDER BY number DESC LIMIT ?"
    return [_entry(row) for row in cursor.rows(query, before, *[f"%{mask}%"] * 3, most)]


def head(cursor: Cursor) -> tuple[int, str]:
    """The number and the hash of the last entry."""
    number, chain = cursor.one("SELECT number, chain FROM audit ORDER BY number DESC LIMIT 1") or (0, START)
    return int(number), str(chain)


def line(entry: Entry) -> str:
    """An entry as a line of an exported log."""
    return json.dumps(entry._asdict(), sort_keys=True) + "\n"


def _entry(row: tuple[Any, ...]) -> Entry:
    return Entry._make((*row[:4], json.loads(row[4]), row[5]))


def verified(found: Iterable[Entry], head: str = "") -> tuple[int, str]:
    """How many entries there are, and the last hash. Raises HubError, which names the first wrong entry; with `head`
    also if no entry has this hash: the log was cut off, or written anew."""
    number, chain, seen = 0, START, not head
    for entry in found:
        expected = _hash(chain, number + 1, entry.time, entry.who, entry.what, entry.data)
        if entry.number != number + 1 or entry.chain != expected:
            raise HubError(
                f"audit log, entry {number + 1}: expected hash {expected[:16]}…, got entry {entry.number} with "
                f"{entry.chain[:16]}…; it was changed, or entries before it were removed"
            )
        number, chain = entry.number, entry.chain
        seen = seen or chain == head
    if not seen:
        raise HubError(f"audit log: expected an entry with hash {head[:16]}…, got none; its end was removed")
    return number, chain
