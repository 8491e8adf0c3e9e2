"""What devices tell, added up by application, version, day and name.

Every batch counts once, and every device little: of a sketch or a histogram at most `VOTES` values a batch, the others
scaled down. Who lies can shift a distribution by its share of the devices, and not by what it claims to have seen.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from cloud.hub.database.engine import Cursor
from lite_runtime.updates.sketch import Sketch
from lite_runtime.updates.telemetry import Batch, Part, unpacked

__all__ = ["MOST_NAMES", "NOISY", "VOTES", "Summary", "prune", "store", "summaries", "sums"]

VOTES = 1000.0
NOISY = 100.0
"""Noisy shares are cut off here: a liar among n devices shifts a mean by a hundred n-ths, as honest noise may too."""
MOST_NAMES = 512
"""Rows of a version and a day: devices choose the names, and none may fill the disk with them."""
_DAY = 86_400.0
_AT = "WHERE application = ? AND version = ? AND day = ?"
_QUANTILES = (0.01, 0.1, 0.5, 0.9, 0.99)


class Summary(NamedTuple):
    """One row, for people. kind: counter, sketch, classes or private. data: in JSON's types."""

    application: str
    version: str
    day: int
    name: str
    kind: str
    data: Mapping[str, Any]


def store(cursor: Cursor, device: str, batch: Batch, known: Collection[tuple[str, str]], now: float) -> bool:
    """Add a batch up, and remember its serial; False, and nothing changes, for one that was taken before. known: the
    applications and versions that the device has; parts of others are left out."""
    words = "UPDATE devices SET batch = ? WHERE id = ? AND batch < ?"
    if not cursor.run(words, batch.serial, device, batch.serial):
        return False
    day = int(now // _DAY)
    names: dict[tuple[str, str, int], set[str]] = {}
    for part in batch.parts:
        if (part.application, part.version) in known:
            at = (part.application, part.version, day)
            if at not in names:
                names[at] = {row[0] for row in cursor.rows(f"SELECT name FROM telemetry {_AT}", *at)}
            _add_part(cursor, part, at, names[at], batch)
    return True


def _add_part(cursor: Cursor, part: Part, at: tuple[str, str, int], names: set[str], batch: Batch) -> None:
    """names: of the rows that are there; one more than MOST_NAMES is left out, whoever chose it."""

    def add(name: str, change: Any) -> None:
        if name in names or len(names) < MOST_NAMES:
            names.add(name)
            _add(cursor, at, name, change)

    for name, number in part.counters.items():
        add(f"counter:{name}", lambda old, number=number: {"number": old.get("number", 0) + number})
    for name, bins in part.sketches.items():
        add(f"sketch:{name}", lambda old, bins=bins: _sketched(old, unpacked(bins)))
    for name, counts in part.classes.items():
        kind = "private" if batch.epsilon else "classes"
        add(f"{kind}:{name}", lambda old, counts=counts: _classed(old, counts, batch))


def _add(cursor: Cursor, at: tuple[str, str, int], name: str, change: Any) -> None:
    row = cursor.one(f"SELECT data FROM telemetry {_AT} AND name = ?", *at, name)
    words = json.dumps(change(json.loads(row[0]) if row else {}), separators=(",", ":"))
    if row:
        cursor.run(f"UPDATE telemetry SET data = ? {_AT} AND name = ?", words, *at, name)
    else:
        cursor.run("INSERT INTO telemetry VALUES (?, ?, ?, ?, ?)", *at, name, words)


def _sketched(old: Mapping[str, Any], new: Sketch) -> dict[str, Any]:
    found = _sketch(old)
    found.merge(new, min(1.0, VOTES / max(new.count, 1.0)))
    sides = {"positive": found.positive, "negative": found.negative}
    return {"zero": found.zero, "batches": old.get("batches", 0) + 1, **sides}


def _sketch(data: Mapping[str, Any]) -> Sketch:
    sides = ({int(at): count for at, count in data.get(side, {}).items()} for side in ("positive", "negative"))
    return Sketch(data.get("zero", 0.0), *sides)


def _classed(old: Mapping[str, Any], counts: Mapping[str, float], batch: Batch) -> dict[str, Any]:
    """Sums of counts, or of noisy shares: noise is no reason to scale, but a value far beyond it is cut off."""
    sums = dict(old.get("sums", {}))
    whole = sum(max(value, 0.0) for value in counts.values())
    scale = 1.0 if batch.epsilon else min(1.0, VOTES / max(whole, 1.0))
    bound = NOISY if batch.epsilon else VOTES
    for label, value in counts.items():
        if label in sums or len(sums) < 1024:
            sums[label] = sums.get(label, 0.0) + min(max(value * scale, -bound if batch.epsilon else 0.0), bound)
    account = {"epsilon": max(batch.epsilon, old.get("epsilon", 0.0)), "delta": max(batch.delta, old.get("delta", 0.0))}
    return {"sums": sums, "batches": old.get("batches", 0) + 1, **(account if batch.epsilon else {})}


def summaries(cursor: Cursor, application: str, since: int = 0, most: int = 1000) -> list[Summary]:
    """What is known of an application from a day (since 1970) on, the newest first."""
    words = "SELECT * FROM telemetry WHERE application = ? AND day >= ? ORDER BY day DESC, version, name LIMIT ?"
    return [_summary(*row) for row in cursor.rows(words, application, since, most)]


def _summary(application: str, version: str, day: int, name: str, words: str) -> Summary:
    kind, _, plain = name.partition(":")
    data: dict[str, Any] = json.loads(words)
    if kind == "sketch":
        found = _sketch(data)
        quantiles = {f"p{100 * share:g}": found.quantile(share) for share in _QUANTILES}
        data = {"count": found.count, "batches": data["batches"], **quantiles}
    elif kind == "private":
        data = {**data, "shares": {label: value / data["batches"] for label, value in data.pop("sums").items()}}
    return Summary(application, version, day, plain, kind, data)


def sums(cursor: Cursor, application: str, version: str) -> dict[str, dict[str, Any]]:
    """All days of a version added up, for a program: `sketches` and `classes` by name, as they are stored. What is
    private has noise, and is left out."""
    words = "SELECT name, data FROM telemetry WHERE application = ? AND version = ? ORDER BY day"
    sketches: dict[str, Sketch] = {}
    classes: dict[str, dict[str, float]] = {}
    for name, raw in cursor.rows(words, application, version):
        kind, _, plain = name.partition(":")
        data = json.loads(raw)
        if kind == "sketch":
            sketches.setdefault(plain, Sketch()).merge(_sketch(data))
        elif kind == "classes":
            counts = classes.setdefault(plain, {})
            for label, count in data["sums"].items():
                counts[label] = counts.get(label, 0.0) + count
    rows = {name: {"zero": one.zero, "positive": one.positive, "negative": one.negative}
            for name, one in sketches.items()}  # fmt: skip
    return {"sketches": rows, "classes": classes}


def prune(cursor: Cursor, before: float) -> int:
    """Remove days before a time; returns how many rows."""
    return cursor.run("DELETE FROM telemetry WHERE day < ?", int(before // _DAY))
