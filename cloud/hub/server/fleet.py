"""Devices and rollouts in memory. A report gives assignments, and changes that the database has to store first.

Nothing here waits, reads a clock or a disk. What could not be stored must not stay here either: `Fleet` is then made
again from the database.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from cloud.hub.database import devices, rollouts
from cloud.hub.database.devices import Device
from cloud.hub.database.engine import Cursor
from cloud.hub.database.writing import Change
from cloud.hub.errors import HubError
from cloud.hub.rollouts.plan import Plan
from cloud.hub.rollouts.precedence import assignment, report
from cloud.hub.rollouts.rollout import Event, Rollout
from lite_runtime.updates import checkin, fields
from lite_runtime.updates.checkin import Application, Assignment, Report

__all__ = ["Fleet", "Known", "Seen", "read_stored"]

_ABSENT = Application()
_STORED = 16 * checkin.MAX_BYTES
"""Bytes of a report as the database has it: all fields are written, and text in ASCII."""


def read_stored(words: str) -> Report | None:
    """A device's last report; None if there is none, or it cannot be read, as after a change of its limits: the next
    one is on its way, and no device may keep a hub from starting."""
    try:
        return checkin.read_report(words.encode(), most=_STORED) if words else None
    except fields.ProtocolError:
        return None


class Known:
    """What is kept in memory of a device: see `Device`. applications: the last reported ones. said: what it says of
    itself, as cohorts ask for it."""

    __slots__ = ("applications", "batch", "certified", "id", "key", "labels", "received", "said", "seen", "state")

    def __init__(self, device: Device) -> None:
        self.id, self.key, self.state, self.labels = device.id, device.key, device.state, dict(device.labels)
        self.seen, self.received, self.batch, self.certified = (
            device.seen,
            device.received,
            device.batch,
            device.certified,
        )
        self.applications: Mapping[str, Application] = {}
        self.said: Mapping[str, str] = {}
        if (told := read_stored(device.report)) is not None:
            self.take(told)

    def take(self, told: Report) -> None:
        """Remember a report."""
        self.applications = told.applications
        self.said = {**told.attributes, "target": told.target, "runtime": told.runtime}

    @property
    def attributes(self) -> dict[str, str]:
        """What cohorts ask about: what the device says, then what people have said of it."""
        return {**self.said, **self.labels, "device": self.id}


class Seen(NamedTuple):
    """A check-in. changes: to be stored before the answer. news: whether a rollout has learned something. open: whether
    one waits for this device's result."""

    applications: Mapping[str, Assignment]
    changes: list[Change]
    news: bool
    open: bool


class Fleet:
    """All devices and rollouts, as a database has them."""

    def __init__(self, cursor: Cursor) -> None:
        self.devices = {device.id: Known(device) for device in devices.all_of(cursor)}
        self.rollouts: dict[str, Rollout] = {}
        self._next: dict[str, int] = {}
        self._by_application: dict[str, list[Rollout]] = {}
        for identity, (rollout, number) in rollouts.load(cursor).items():
            self._next[identity] = number
            self._put(rollout)

    def _put(self, rollout: Rollout) -> None:
        self.rollouts[rollout.id] = rollout
        same = self._by_application.setdefault(rollout.plan.application, [])
        same.append(rollout)
        same.sort(key=lambda one: one.order)

    def take(self, rollout: Rollout, event: Event) -> Change:
        """Apply an event. Raises HubError if the rollout's state does not allow it."""
        rollout.apply(event)
        if event.kind == "rebased":
            self._by_application[rollout.plan.application].sort(key=lambda one: one.order)
        number = self._next.get(rollout.id, 0)
        self._next[rollout.id] = number + 1
        return rollouts.ADD, rollouts.row(rollout.id, number, event)

    # -- devices

    def check_in(self, known: Known, told: Report, now: float, room: int) -> Seen:
        """Take a report in. room: how many events of the device may be stored now."""
        fresh = sorted(event for event in told.events if event.serial > known.received)[:room]
        changes: list[Change] = [(devices.EVENT, _row(known.id, event, now)) for event in fresh]
        if fresh:
            known.received = fresh[-1].serial
        known.seen = now
        known.take(told)
        words = checkin.written(told._replace(events=())).decode()
        changes.append((devices.SEEN, (now, words, known.received, known.id)))
        attributes = known.attributes
        assigned: dict[str, Assignment] = {}
        before, waits = len(changes), False
        for application, same in self._by_application.items():
            there = told.applications.get(application, _ABSENT)
            changes += [self.take(*one) for one in report(same, known.id, attributes, there, now)]
            answer = assignment(same, known.id)
            if answer is not None:
                assigned[application] = answer
                waits = waits or answer.urgent or self._waits(answer, known.id, now)
        return Seen(assigned, changes, len(changes) > before, waits)

    def _waits(self, answer: Assignment, device: str, now: float) -> bool:
        rollout = self.rollouts[answer.rollout]
        member = rollout.members[device]
        return not member.verdict and now - member.since < rollout.plan.patience

    def versions_of(self, known: Known) -> set[tuple[str, str]]:
        """Applications and versions that a device has, or had when a rollout began: what it may tell of."""
        found = {(name, version) for name, one in known.applications.items() for version in (one.version, one.trial)}
        for rollout in self.rollouts.values():
            if (member := rollout.members.get(known.id)) is not None:
                found |= {(rollout.plan.application, version) for version in (rollout.plan.version, member.before)}
        return found

    # -- rollouts

    def start(self, plan: Plan, by: str, now: float) -> tuple[Rollout, Change]:
        """A new rollout. Raises HubError if one of this version of the application is under way."""
        for other in self._by_application.get(plan.application, ()):
            if other.plan.version == plan.version and other.status in ("running", "paused"):
                raise HubError(
                    f"rollout {other.id} of {plan.application} {plan.version} is {other.status}; abort it first"
                )
        made = Rollout(f"{plan.application}-{plan.version}-{secrets.token_hex(3)}"[-64:], ())
        change = self.take(made, Event("started", now, by=by, data=msgspec.to_builtins(plan)))
        self._put(made)
        return made, change

    def decide(self, now: float) -> list[tuple[Rollout, Event, Change]]:
        """What rollouts decide by themselves at this time."""
        made: list[tuple[Rollout, Event, Change]] = []
        for rollout in self.rollouts.values():
            while (event := rollout.decision(now)) is not None:
                made.append((rollout, event, self.take(rollout, event)))
        return made

    def find(self, identity: str) -> Rollout:
        """The rollout with this id, or the only one whose id begins so. Raises HubError."""
        found = [one for one in self.rollouts.values() if one.id.startswith(identity)]
        if identity in self.rollouts or len(found) == 1:
            return self.rollouts.get(identity) or found[0]
        shown = ", ".join(sorted(self.rollouts)[:5]) or "none yet"
        raise HubError(f"expected the id of a rollout, got {identity!r:.80}; there are {shown}")

    def summary(self) -> dict[str, Any]:
        """Numbers of devices by state and by application and version."""
        states: dict[str, int] = {}
        versions: dict[str, dict[str, int]] = {}
        for device in list(self.devices.values()):
            states[device.state] = states.get(device.state, 0) + 1
            for name, one in device.applications.items():
                counts = versions.setdefault(name, {})
                counts[one.version] = counts.get(one.version, 0) + 1
        return {"devices": len(self.devices), "states": states, "versions": versions}


def _row(device: str, event: checkin.Event, now: float) -> Sequence[Any]:
    return device, event.serial, event.time, now, event.kind, event.application, event.version, event.text
