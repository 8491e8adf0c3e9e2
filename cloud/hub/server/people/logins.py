"""Who is logged in on a page: a browser keeps a secret of its own, and not the token.

The secret is 256 random bits in a cookie that scripts cannot read. It is good for twelve hours, until it is given back,
or until its token ends or is revoked. The hub keeps its digest in memory: after a restart people log in again.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from hashlib import sha256
from typing import NamedTuple

__all__ = ["LASTS", "Logins"]

LASTS = 12 * 3600.0
"""Seconds for which a login is good."""
_MOST = 16
"""Logins of one token at a time; the oldest one ends."""


class _Login(NamedTuple):
    token: str
    ends: float


class Logins:
    """clock: seconds since 1970."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._open: dict[str, _Login] = {}

    def begin(self, token: str) -> str:
        """The secret of a new login by the token with this id."""
        now = self._clock()
        self._open = {digest: one for digest, one in self._open.items() if one.ends > now}
        same = [digest for digest, one in self._open.items() if one.token == token]
        for digest in same[: max(0, len(same) + 1 - _MOST)]:
            del self._open[digest]
        secret = secrets.token_urlsafe(32)
        self._open[_digest(secret)] = _Login(token, now + LASTS)
        return secret

    def token(self, secret: str) -> str:
        """The id of the token that a login is by; "" for another text, and for a login that has ended."""
        found = self._open.get(_digest(secret))
        return found.token if found is not None and found.ends > self._clock() else ""

    def end(self, secret: str) -> None:
        """Log out."""
        self._open.pop(_digest(secret), None)


def _digest(secret: str) -> str:
    return sha256(secret.encode("utf-8", "replace")).hexdigest()
