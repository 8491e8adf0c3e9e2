"""Sessions of devices: a challenge, the signature of it, a token. Nothing is stored, so that a restart loses nothing.

A challenge carries the time at which it ends and a code that only this process can make (RFC 2104); it is good for one
device and one answer, and after a restart for none. A session's token carries its device, its end and such a code by a
key that the database keeps. A device that is blocked is refused whatever its token says.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable
from hashlib import sha256

from lite_runtime.bundle.keys import library
from lite_runtime.updates.enrolment import Greeting, session_text

__all__ = ["ANSWER", "Sessions", "signed_by"]

ANSWER = 60.0
"""Seconds in which a challenge has to be answered."""
_MOST = 100_000


def signed_by(key: str, signature: str, text: bytes) -> bool:
    """Whether the owner of an Ed25519 key (hex) made this signature (hex). Raises MissingExtraError."""
    ed25519, _ = library()
    from cryptography.exceptions import InvalidSignature

    try:
        ed25519.Ed25519PublicKey.from_public_bytes(bytes.fromhex(key)).verify(bytes.fromhex(signature), text)
    except (InvalidSignature, ValueError):
        return False
    return True


class Sessions:
    """hub: the hub's id, which signatures name. key: 32 secret bytes. seconds: for which a session is good. clock:
    seconds since 1970."""

    def __init__(self, hub: str, key: bytes, seconds: float, clock: Callable[[], float]) -> None:
        self._hub, self._key, self.seconds, self._clock = hub, key, seconds, clock
        self._own = secrets.token_bytes(32)
        self._used: dict[str, float] = {}

    def challenge(self, device: str) -> str:
        """A new challenge for a device."""
        words = f"{self._clock() + ANSWER:.0f}.{secrets.token_hex(16)}"
        return f"{words}.{_code(self._own, device, words)}"

    def answered(self, greeting: Greeting, key: str) -> str:
        """Why the answer to a challenge does not count; "" if it does, once. key: the device's."""
        words, _, code = greeting.challenge.rpartition(".")
        if not _same(code, _code(self._own, greeting.device, words)):
            return "the challenge is not this hub's, or was another device's; ask for a new one"
        now, end = self._clock(), float(words.partition(".")[0])
        if now > end or greeting.challenge in self._used:
            return "the challenge was used, or is too old; ask for a new one"
        if not signed_by(key, greeting.signature, session_text(self._hub, greeting.device, greeting.challenge)):
            return "the signature is not that of the device's key"
        if len(self._used) >= _MOST:
            self._used = {one: until for one, until in self._used.items() if until >= now}
            if len(self._used) >= _MOST:
                return "too many sessions were opened within a minute; try again"
        self._used[greeting.challenge] = end
        return ""

    def token(self, device: str) -> str:
        """A token that is good for `seconds` from now on."""
        words = f"{device}.{self._clock() + self.seconds:.0f}"
        return f"{words}.{_code(self._key, words)}"

    def device(self, token: str) -> tuple[str, float] | None:
        """Whose token this is, and for how many seconds it is still good; None for a wrong or an old one."""
        words, _, code = token.rpartition(".")
        if not _same(code, _code(self._key, words)):
            return None
        device, _, end = words.rpartition(".")
        left = float(end) - self._clock()
        return (device, left) if left > 0 else None


def _same(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode("utf-8", "replace"), other.encode())


def _code(key: bytes, *parts: str) -> str:
    return hmac.new(key, "\0".join(parts).encode("utf-8", "replace"), sha256).hexdigest()
