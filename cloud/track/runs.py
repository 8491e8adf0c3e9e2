"""The data types of a store's records."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["LOST_AFTER", "STATES", "Artifact", "Event", "Histogram", "Run", "Series"]

STATES = ("running", "finished", "failed", "stopped", "lost")
""""lost" is not stored: it is a running one without heartbeats."""

LOST_AFTER = 60.0
"""Seconds without a heartbeat (there is one every five) after which a run counts as lost."""


@dataclass(frozen=True)
class Run:
    """One run. Times in seconds since 1970; `parent` is the run that it continues; `data`, `model` and `plan_digest`
    are content digests in hex, "" if not known; `state` is one of STATES."""

    id: str
    name: str
    state: str
    created: float
    ended: float | None
    heartbeat: float
    host: str
    process: int
    parent: str
    config: Mapping[str, Any]
    environment: Mapping[str, Any]
    git: Mapping[str, Any]
    seed: int | None
    data: str
    model: str
    plan_digest: str
    plan: Mapping[str, Any] | None
    error: str

    @property
    def seconds(self) -> float:
        """Its duration, until now if it is running; for a lost run, until its last heartbeat."""
        until = self.ended if self.ended is not None else self.heartbeat if self.state == "lost" else time.time()
        return until - self.created


@dataclass(frozen=True)
class Series:
    """A scalar over steps."""

    steps: tuple[int, ...]
    values: tuple[float, ...]
    times: tuple[float, ...]

    def __len__(self) -> int:
        return len(self.steps)


@dataclass(frozen=True)
class Histogram:
    """The distribution of values at a step: `counts[i]` between `edges[i]` and `edges[i + 1]`; `norm` is Euclidean."""

    step: int
    edges: tuple[float, ...]
    counts: tuple[int, ...]
    mean: float
    norm: float


@dataclass(frozen=True)
class Artifact:
    """A file that a run wrote. `digest`: see `cloud.track.digests.digest_of_file`; for a bundle, its own digest.
    `source`: the digest of what it was made from, "" if that is the run itself."""

    kind: str
    path: str
    digest: str
    bytes: int
    time: float
    source: str = ""


@dataclass(frozen=True)
class Event:
    """Something that happened: "checkpoint", "resumed", "warning" …"""

    time: float
    kind: str
    text: str


def state_now(state: str, heartbeat: float, host: str, process: int, here: str) -> str:
    """The state to show for a stored one; `here` is this host's name."""
    if state != "running":
        return state
    if time.time() - heartbeat > LOST_AFTER or (host == here and not _alive(process)):
        return "lost"
    return state


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
