"""How a device asks its hub for a federated task, and what the hub answers.

As in Google's system (Bonawitz et al., "Towards Federated Learning at Scale: System Design", MLSys 2019, section 2): a
device that is idle, charging and on an unmetered network offers itself for its populations; the hub gives it a task, or
says when to come back. The messages of the task follow over HTTP (`federated.transport.checkin`).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from lite_runtime.frozen import NamedTuple
from lite_runtime.updates import fields
from lite_runtime.updates.fields import flag, name, real, record, rows, table, text, whole

__all__ = ["MAX_BYTES", "Answer", "Member", "Offer", "read_answer", "read_offer", "written"]

MAX_BYTES = 1 << 16
_LARGE = 1 << 53
_NONE: Mapping[str, Any] = MappingProxyType({})


class Member(NamedTuple):
    """What a device has for one population: the digest of the bundle that it would train, how many examples, and their
    SHA-256 (hex, "": not told), by which a release says later what it was learned from."""

    bundle: str = ""
    examples: int = 0
    data: str = ""


class Offer(NamedTuple):
    """A device would work now. plans: versions of the federated messages that it understands. populations: by name,
    which is that of an application."""

    plans: tuple[int, ...]
    idle: bool = False
    charging: bool = False
    metered: bool = False
    attributes: Mapping[str, str] = _NONE
    populations: Mapping[str, Member] = _NONE


class Answer(NamedTuple):
    """again: seconds until the device comes back, where there is no task. task: its id, "" for none; the device asks
    below /v1/tasks/ID from then on. population: which of its own the task is about. why: there is none, in words."""

    again: float
    task: str = ""
    population: str = ""
    why: str = ""


_DIGEST = text(64)
_MEMBER = record(Member, bundle=_DIGEST, examples=whole(0, _LARGE), data=_DIGEST)
_OFFER = record(
    Offer,
    plans=rows(whole(0, 1 << 31), 64),
    idle=flag,
    charging=flag,
    metered=flag,
    attributes=table(text(256), 64),
    populations=table(_MEMBER, 64),
)
_ANSWER = record(Answer, again=real(0, 1e7), task=text(64), population=name(empty=True), why=text(500))


def read_offer(raw: bytes) -> Offer:
    """The offer that these bytes say. Raises ProtocolError."""
    return fields.read(raw, "offer", _OFFER, MAX_BYTES)  # type: ignore[no-any-return]


def read_answer(raw: bytes) -> Answer:
    """The answer that these bytes say. Raises ProtocolError."""
    return fields.read(raw, "answer", _ANSWER, MAX_BYTES)  # type: ignore[no-any-return]


def written(message: Offer | Answer) -> bytes:
    """The JSON of a message."""
    return fields.written(message)
