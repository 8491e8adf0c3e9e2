"""What a device says when it checks in, and what the hub answers.

A device reports what is, not what has changed: a report that is lost, or arrives twice, does no harm. Only its events
are said once: they have serial numbers that grow by one, a device keeps them until a reply says that they are stored,
and the hub leaves out those that it has.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from lite_runtime.frozen import NamedTuple
from lite_runtime.updates import fields
from lite_runtime.updates.fields import flag, name, one_of, real, record, rows, table, text, whole

__all__ = ["MAX_BYTES", "MAX_EVENTS", "OUTCOMES", "Application", "Assignment", "Event", "Measure", "Outcome", "Reply"]
__all__ += ["Report", "read_reply", "read_report", "written"]

MAX_BYTES = 1 << 18
MAX_EVENTS = 256
MAX_APPLICATIONS = 64
MAX_REASON = 500
MAX_MEASURES = 64
_LARGE = 1 << 53
_NONE: Mapping[str, Any] = MappingProxyType({})

OUTCOMES: Mapping[str, str] = MappingProxyType({
    "waits": "open",        # a condition is not met yet: battery, network, time window, free disk
    "downloads": "open",    # pieces are on their way
    "trial": "open",        # installed and tested; the application runs it on trial
    "committed": "good",    # the trial has passed
    "self-test": "bad",     # the golden sample gave another result on this machine
    "too-slow": "bad",      # more milliseconds than the release allows
    "too-large": "bad",     # more memory than the release allows
    "rolled-back": "bad",   # the application's health checks failed on trial, or it crashed
    "broken": "bad",        # a file's digest, signature or format is wrong
    "refused": "neutral",   # this device cannot run the release: target, runtime, or a channel without it
    "failed": "neutral",    # disk or network, after all attempts
    "returned": "neutral",  # the version before runs again because the hub said so
})  # fmt: skip
"""What may have become of an assignment, and how a rollout counts it: "open": not known yet; "good", "bad"; "neutral":
an end that says nothing about the version."""


class Measure(NamedTuple):
    """The mean of the newest `number` values of the version that runs; the agent chooses how far back they go."""

    number: int
    mean: float


class Outcome(NamedTuple):
    """What became of the last assignment of an application. rollout: the assignment's. kind: one of OUTCOMES."""

    version: str
    rollout: str
    kind: str
    reason: str = ""


class Application(NamedTuple):
    """One application of a device.

    version: the committed one that runs, or would run again if the trial failed; "": none. trial: the one on trial, "":
    none. measures: by name, of the version that runs (`trial` if there is one): "latency_ms" (median or mean of
    inferences), scores from 0 to 1 such as "confidence" or "accuracy". counters: whole numbers that only grow.
    """

    version: str = ""
    trial: str = ""
    outcome: Outcome | None = None
    measures: Mapping[str, Measure] = _NONE
    counters: Mapping[str, int] = _NONE


class Event(NamedTuple):
    """Something that happened once. serial: from 1, of this device. time: its clock's, seconds since 1970. kind: a
    name, one of OUTCOMES or the agent's own."""

    serial: int
    time: float
    kind: str
    application: str = ""
    version: str = ""
    text: str = ""


class Report(NamedTuple):
    """What a device is and has. target: the name in `lite_runtime.targets`. runtime: its version of msedge. free,
    memory: bytes of disk that are free, and of memory that it has; 0: not known. battery: percent, -1: none. metered:
    traffic costs. idle: nobody uses the device. applications: by name."""

    attributes: Mapping[str, str] = _NONE
    target: str = ""
    runtime: str = ""
    free: int = 0
    memory: int = 0
    battery: int = -1
    charging: bool = False
    metered: bool = False
    idle: bool = False
    applications: Mapping[str, Application] = _NONE
    events: tuple[Event, ...] = ()


class Assignment(NamedTuple):
    """What a device should run of one application. channel: the one whose list must have the version. rollout: "": the
    application's standing version. urgent: at once, without waiting for a time window or an unmetered network, since
    the version that runs is taken back."""

    version: str
    channel: str
    rollout: str = ""
    urgent: bool = False


class Reply(NamedTuple):
    """The hub's answer. again: seconds until the next check-in. session: seconds for which the session is good. time:
    the hub's clock, seconds since 1970. received: the serial of the last event that is stored. telemetry: batches of it
    are wanted. applications: by name; one that is missing stays as it is."""

    again: float
    session: float
    time: float
    received: int = 0
    telemetry: bool = False
    applications: Mapping[str, Assignment] = _NONE


_ROLLOUT = text(64)
_TIME = real(0, 1e11)

_OUTCOME = record(Outcome, version=name(), rollout=_ROLLOUT, kind=one_of(OUTCOMES), reason=text(MAX_REASON))
_MEASURE = record(Measure, number=whole(0, _LARGE), mean=real(-1e15, 1e15))
_APPLICATION = record(
    Application,
    version=name(empty=True),
    trial=name(empty=True),
    outcome=_OUTCOME,
    measures=table(_MEASURE, MAX_MEASURES),
    counters=table(whole(0, _LARGE), 256),
)
_EVENT = record(
    Event,
    serial=whole(1, _LARGE),
    time=_TIME,
    kind=name(),
    application=name(empty=True),
    version=name(empty=True),
    text=text(MAX_REASON),
)
_REPORT = record(
    Report,
    attributes=table(text(256), 64),
    target=text(64),
    runtime=text(64),
    free=whole(0, _LARGE),
    memory=whole(0, _LARGE),
    battery=whole(-1, 100),
    charging=flag,
    metered=flag,
    idle=flag,
    applications=table(_APPLICATION, MAX_APPLICATIONS),
    events=rows(_EVENT, MAX_EVENTS),
)
_ASSIGNMENT = record(Assignment, version=name(), channel=name(), rollout=_ROLLOUT, urgent=flag)
_REPLY = record(
    Reply,
    again=real(0, 1e7),
    session=real(0, 1e7),
    time=_TIME,
    received=whole(0, _LARGE),
    telemetry=flag,
    applications=table(_ASSIGNMENT, MAX_APPLICATIONS),
)


def read_report(raw: bytes, most: int = MAX_BYTES) -> Report:
    """The report that these bytes say. Raises ProtocolError, for more than `most` bytes too."""
    return fields.read(raw, "report", _REPORT, most)  # type: ignore[no-any-return]


def read_reply(raw: bytes) -> Reply:
    """The reply that these bytes say. Raises ProtocolError."""
    return fields.read(raw, "reply", _REPLY, MAX_BYTES)  # type: ignore[no-any-return]


def written(message: Report | Reply) -> bytes:
    """The JSON of a report or a reply."""
    return fields.written(message)
