"""Rows of the store as the types of `cloud.track.runs`. A file may be damaged, so every column is checked; a wrong
value is a ValueError, TypeError or KeyError."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

from cloud.track.facts import host
from cloud.track.runs import Artifact, Event, Histogram, Run, state_now

__all__ = ["artifact_of", "document_of", "event_of", "histogram_of", "name_of", "newest_of", "point_of", "run_of"]

Columns = Sequence[Any]

_LATEST = 1e11
"""The most seconds since 1970 that can be converted to a date."""
_LARGEST = 1 << 31
"""Above every process ID."""


def name_of(row: Columns) -> str:
    """From (text,)."""
    return _text(row[0])


def point_of(row: Columns) -> tuple[int, float, float]:
    """From (step, value, time); a gap is NaN."""
    step, value, time = row
    return _whole(step), _number(value), _time(time)


def newest_of(row: Columns) -> tuple[str, float]:
    """From (name, value, step)."""
    return _text(row[0]), _number(row[1])


def histogram_of(row: Columns) -> tuple[str, Histogram]:
    """From (name, step, spread)."""
    name, step, spread = row
    said = _table(spread)
    edges, counts = tuple(map(float, said["edges"])), tuple(map(_whole, said["counts"]))
    if not counts or len(edges) != len(counts) + 1:
        raise ValueError(f"expected one more edge than counts, got {len(edges)} and {len(counts)}")
    return _text(name), Histogram(_whole(step), edges, counts, float(said["mean"]), float(said["norm"]))


def artifact_of(row: Columns) -> Artifact:
    """From (kind, path, digest, bytes, time, source)."""
    kind, path, digest, size, time, source = row
    return Artifact(_text(kind), _text(path), _text(digest), _whole(size), _time(time), _text(source))


def event_of(row: Columns) -> Event:
    """From (time, kind, text)."""
    return Event(_time(row[0]), _text(row[1]), _text(row[2]))


def run_of(row: Columns) -> Run:
    """From all columns of `runs`."""
    (made, name, state, created, ended, heartbeat, where, process, parent, config, environment, git, seed, data, model,
     plan_digest, plan, error) = row  # fmt: skip
    if not 0 <= _whole(process) < _LARGEST:
        raise ValueError(f"expected the number of a process, got {process}")
    now = state_now(_text(state), _time(heartbeat), _text(where), process, host())
    return Run(
        _text(made), _text(name), now, _time(created), None if ended is None else _time(ended), heartbeat, where,
        process, _text(parent), _table(config), _table(environment), _git(git),
        None if seed is None else _whole(seed), _text(data), _text(model), _text(plan_digest),
        None if plan == "null" else _table(plan), _text(error),
    )  # fmt: skip


def document_of(row: Columns) -> dict[str, Any]:
    """From (body,)."""
    return _table(row[0])


def _git(text: Any) -> dict[str, Any]:
    """Empty, or the result of `cloud.track.facts.git_state`."""
    found = _table(text)
    if found:
        _text(found["commit"]), _text(found["branch"]), found["dirty"]
    return found


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected a text, got {type(value).__name__}")
    return value


def _whole(value: Any) -> int:
    if type(value) is not int:
        raise TypeError(f"expected a whole number, got {value!r:.60}")
    return value


def _number(value: Any) -> float:
    if value is None:
        return math.nan
    if not isinstance(value, int | float):
        raise TypeError(f"expected a number, got {type(value).__name__}")
    return float(value)


def _time(value: Any) -> float:
    if not 0 <= _number(value) < _LATEST:
        raise ValueError(f"expected seconds since 1970, got {value!r:.60}")
    return float(value)


def _table(text: Any) -> dict[str, Any]:
    found = json.loads(_text(text))
    if not isinstance(found, dict):
        raise TypeError(f"expected a table, got {type(found).__name__}")
    return found
