"""How a device becomes known to a hub, and proves later that it is the same.

Enrolment: a token that works once, a new public key, and a signature that shows that the device has the private one.
Session: the hub names a challenge that is good for a minute and for one answer; the device signs it together with the
hub's id and its own. No clock is needed on the device, and a recorded answer opens nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from types import MappingProxyType

from lite_runtime.frozen import NamedTuple
from lite_runtime.updates import fields
from lite_runtime.updates.fields import digits, real, record, table, text

__all__ = ["MAX_BYTES", "Challenge", "Enrolled", "Enrolment", "Greeting", "Session", "read_challenge", "read_enrolled"]
__all__ += ["enrolment_text", "read_enrolment", "read_greeting", "read_session", "session_text", "written"]

MAX_BYTES = 1 << 16
_NONE: Mapping[str, str] = MappingProxyType({})


class Enrolment(NamedTuple):
    """A device asks to be known. key: its Ed25519 public key. signature: of `enrolment_text`. Both in hex."""

    token: str
    key: str
    signature: str
    attributes: Mapping[str, str] = _NONE


class Enrolled(NamedTuple):
    """The hub's answer. device: its id. hub: the hub's id. certificate: of the device's key, in PEM, for hubs that ask
    for one; authority: the certificate that has signed it."""

    device: str
    hub: str
    certificate: str = ""
    authority: str = ""


class Greeting(NamedTuple):
    """A device asks for a session: first without a challenge, then with its signature (hex) of `session_text`."""

    device: str
    challenge: str = ""
    signature: str = ""


class Challenge(NamedTuple):
    """What a device shall sign within `seconds`."""

    challenge: str
    seconds: float


class Session(NamedTuple):
    """A token for the requests of the next `seconds`. time: the hub's clock. certificate: a new one, when the device's
    expires soon; else "" ."""

    token: str
    seconds: float
    time: float
    certificate: str = ""


def enrolment_text(token: str, key: str) -> bytes:
    """What a device signs to enrol."""
    return b"msedge enrolment 1\0" + sha256(token.encode()).digest() + bytes.fromhex(key)


def session_text(hub: str, device: str, challenge: str) -> bytes:
    """What a device signs to open a session."""
    return b"msedge session 1\0" + b"\0".join(sha256(part.encode()).digest() for part in (hub, device, challenge))


_ID, _SECRET, _PEM, _SECONDS = text(64), text(512), text(1 << 14), real(0, 1e11)
_ENROLMENT = record(Enrolment, token=_SECRET, key=digits(64), signature=digits(128), attributes=table(text(256), 64))
_ENROLLED = record(Enrolled, device=_ID, hub=_ID, certificate=_PEM, authority=_PEM)
_GREETING = record(Greeting, device=_ID, challenge=_SECRET, signature=text(128))
_CHALLENGE = record(Challenge, challenge=_SECRET, seconds=_SECONDS)
_SESSION = record(Session, token=_SECRET, seconds=_SECONDS, time=_SECONDS, certificate=_PEM)


def read_enrolment(raw: bytes) -> Enrolment:
    """The message that these bytes say. Raises ProtocolError, as all of these do."""
    return fields.read(raw, "enrolment", _ENROLMENT, MAX_BYTES)  # type: ignore[no-any-return]


def read_enrolled(raw: bytes) -> Enrolled:
    """See `read_enrolment`."""
    return fields.read(raw, "enrolled", _ENROLLED, MAX_BYTES)  # type: ignore[no-any-return]


def read_greeting(raw: bytes) -> Greeting:
    """See `read_enrolment`."""
    return fields.read(raw, "greeting", _GREETING, MAX_BYTES)  # type: ignore[no-any-return]


def read_challenge(raw: bytes) -> Challenge:
    """See `read_enrolment`."""
    return fields.read(raw, "challenge", _CHALLENGE, MAX_BYTES)  # type: ignore[no-any-return]


def read_session(raw: bytes) -> Session:
    """See `read_enrolment`."""
    return fields.read(raw, "session", _SESSION, MAX_BYTES)  # type: ignore[no-any-return]


def written(message: Enrolment | Enrolled | Greeting | Challenge | Session) -> bytes:
    """The JSON of a message."""
    return fields.written(message)
