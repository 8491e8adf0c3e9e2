"""How a fleet does, in numbers, from what is in memory."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from cloud.hub.server.fleet import Known
from lite_runtime.updates.checkin import OUTCOMES

__all__ = ["LATE", "health", "seen_of", "update_of"]

_BAD = frozenset(kind for kind, verdict in OUTCOMES.items() if verdict == "bad")
LATE = 3.0
"""Intervals without a check-in after which a device is late: it comes after one and a half, and may fail once."""


def seen_of(device: Known, now: float, interval: float) -> str:
    """Whether a device was seen lately ("current"), is "late", or was "never" seen. interval: seconds between two
    check-ins."""
    return "never" if not device.seen else "current" if now - device.seen <= LATE * interval else "late"


def update_of(device: Known) -> str:
    """ "failed" if the last update of one of its applications did, else ""."""
    ends = (one.outcome.kind for one in device.applications.values() if one.outcome is not None)
    return "failed" if any(kind in _BAD for kind in ends) else ""


def health(devices: Iterable[Known], now: float, interval: float) -> dict[str, Any]:
    """Numbers of devices that may come, as `seen_of` and `update_of` say; by application, how many run a version on
    trial, and how their last update ended."""
    seen = {"current": 0, "late": 0, "never": 0}
    trial: dict[str, int] = {}
    ended: dict[str, dict[str, int]] = {}
    failed = 0
    for device in devices:
        if device.state != "active":
            continue
        seen[seen_of(device, now, interval)] += 1
        bad = False
        for name, one in device.applications.items():
            if one.trial:
                trial[name] = trial.get(name, 0) + 1
            if one.outcome is not None:
                counts, kind = ended.setdefault(name, {}), one.outcome.kind
                counts[kind] = counts.get(kind, 0) + 1
                bad = bad or kind in _BAD
        failed += bad
    return {**seen, "failed": failed, "trial": trial, "outcomes": ended, "interval": interval}
