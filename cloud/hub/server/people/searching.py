"""Devices by what is known of them, a page at a time: from memory, so that ten thousand take no database.

A search is words, all of which have to fit: KEY=PATTERN as in a cohort (`region=north*`, `ring=0`), any other word as a
part of any value. Beside attributes there are `device`, `state`, an application's name with its version (`keys=2.1`),
`seen` and `update` as `health` says; with `rollout=ID` only devices that were given its version come, and have
`verdict`: good, bad, neutral or open.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from fnmatch import translate
from heapq import nsmallest
from typing import NamedTuple

from cloud.hub.rollouts.rollout import Member, Rollout
from cloud.hub.server.fleet import Known
from cloud.hub.server.people.health import seen_of, update_of

__all__ = ["Found", "search"]

Fits = Callable[[str], object]


class Found(NamedTuple):
    """ids: of one page, rising. total: how many devices fit, on all pages. more: whether there is a next page."""

    ids: tuple[str, ...]
    total: int
    more: bool


class _Search:
    """What one search asks. Values are looked up by key, since all of a device's would take longer."""

    def __init__(self, words: str, rollouts: Mapping[str, Rollout], now: float, interval: float) -> None:
        keyed: dict[str, list[str]] = {}
        self._plain: list[str] = []
        for word in words.split():
            key, mark, pattern = word.partition("=")
            if mark:
                keyed.setdefault(key, []).append(pattern)
            else:
                self._plain.append(word.casefold())
        self._now, self._interval = now, interval
        asked = keyed.pop("rollout", None)
        self._members = None if asked is None else _members(rollouts, asked)
        self._keyed = [(key, [re.compile(translate(one)).match for one in all_]) for key, all_ in keyed.items()]

    def fits(self, device: Known) -> bool:
        """Whether a device is meant."""
        if self._members is not None and device.id not in self._members:
            return False
        for key, patterns in self._keyed:
            value = self._value(device, key)
            if value is None or not any(fits(value) for fits in patterns):
                return False
        return not self._plain or self._has(device)

    def _has(self, device: Known) -> bool:
        versions = (one.trial or one.version for one in device.applications.values())
        values = (device.id, device.state, *device.labels.values(), *device.said.values(), *versions)
        text = "\n".join(values).casefold()
        return all(word in text for word in self._plain)

    def _value(self, device: Known, key: str) -> str | None:
        """Of one key; attributes are those of `Known.attributes`."""
        if key in ("device", "state"):
            return device.id if key == "device" else device.state
        if key == "verdict" and self._members is not None:
            return self._members[device.id].verdict or "open"
        if key == "seen":
            return seen_of(device, self._now, self._interval)
        if key == "update":
            return update_of(device)
        if key in device.labels or key in device.said:
            return device.labels[key] if key in device.labels else device.said[key]
        there = device.applications.get(key)
        return None if there is None else there.trial or there.version


def _members(rollouts: Mapping[str, Rollout], asked: Iterable[str]) -> Mapping[str, Member]:
    found = [rollouts[name].members for name in asked if name in rollouts]
    return found[0] if len(found) == 1 else {device: one for part in found for device, one in list(part.items())}


def search(
    devices: Iterable[Known], rollouts: Mapping[str, Rollout], words: str, after: str, most: int, now: float,
    interval: float,
) -> Found:  # fmt: skip
    """The first `most` devices that fit, of those with ids above `after`. rollouts: by id. now: seconds since 1970.
    interval: seconds between two check-ins."""
    asked = _Search(words, rollouts, now, interval)
    ids = [device.id for device in devices if not words or asked.fits(device)]
    rest = nsmallest(most + 1, (one for one in ids if one > after))
    return Found(tuple(rest[:most]), len(ids), len(rest) > most)
