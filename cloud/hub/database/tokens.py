"""Tokens of people and of new devices: shown once, stored as digests, with a scope and a time at which they end.

A token is `hub_ID_SECRET` with 256 random bits, which nobody can guess: a digest without salt is enough.
"""

from __future__ import annotations

import hmac
import json
import re
import secrets
from collections.abc import Mapping
from hashlib import blake2b
from types import MappingProxyType
from typing import NamedTuple

from cloud.hub.database.engine import Cursor
from cloud.hub.errors import HubError

__all__ = ["SCOPES", "Token", "add", "by_id", "known", "listed", "revoke", "spend"]

SCOPES: Mapping[str, str] = MappingProxyType(
    {
        "operator": "start, pause, resume and abort rollouts, block devices, and everything below",
        "viewer": "read devices, rollouts, telemetry and the audit log",
        "device": "enrol one new device",
    }
)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
_WORDS = re.compile(r"hub_([0-9a-f]{12})_([A-Za-z0-9_-]{43})")


class Token(NamedTuple):
    """What is stored of a token. expires: seconds since 1970, None: never. uses: how often it may still be used, -1:
    any number. labels: attributes that a device gets which enrols with it."""

    id: str
    name: str
    scope: str
    digest: str
    created: float
    expires: float | None
    uses: int
    labels: Mapping[str, str]


def add(cursor: Cursor, name: str, scope: str, now: float, seconds: float | None, labels: Mapping[str, str]) -> str:
    """Make a token and return it; it cannot be read again. Raises HubError for a name that is taken, or is not of up to
    64 letters, digits and ._@-"""
    if scope not in SCOPES:
        raise HubError(f"scope: expected one of {', '.join(SCOPES)}, got {scope!r}")
    if not _NAME.fullmatch(name):
        raise HubError(f"name: expected up to 64 letters, digits and ._@-, got {name!r}")
    if cursor.one("SELECT id FROM tokens WHERE name = ?", name):
        raise HubError(f"{name!r} has a token already; revoke it first, or choose another name")
    identity, secret = secrets.token_hex(6), secrets.token_urlsafe(32)
    uses, ends = 1 if scope == "device" else -1, None if seconds is None else now + seconds
    words = json.dumps(dict(labels), sort_keys=True)
    row = (identity, name, scope, _digest(secret), now, ends, uses, words)
    cursor.run("INSERT INTO tokens VALUES (?, ?, ?, ?, ?, ?, ?, ?)", *row)
    return f"hub_{identity}_{secret}"


def _digest(secret: str) -> str:
    return blake2b(secret.encode(), digest_size=32, person=b"msedge-hub-token").hexdigest()


def known(cursor: Cursor, words: str, now: float) -> Token | None:
    """The token that this text is; None for another text, a revoked token, and one that has ended."""
    match = _WORDS.fullmatch(words)
    row = cursor.one("SELECT * FROM tokens WHERE id = ?", match[1]) if match else None
    if match is None or row is None or not hmac.compare_digest(_digest(match[2]), row[3]):
        return None
    return _alive(row, now)


def by_id(cursor: Cursor, identity: str, now: float) -> Token | None:
    """The token with this id; None for a revoked one, and one that has ended."""
    row = cursor.one("SELECT * FROM tokens WHERE id = ?", identity)
    return _alive(row, now) if row else None


def _alive(row: tuple[object, ...], now: float) -> Token | None:
    found = _token(row)
    return found if found.expires is None or now < found.expires else None


def spend(cursor: Cursor, token: Token) -> bool:
    """Use a token once; False if it was used up meanwhile."""
    return token.uses < 0 or cursor.run("UPDATE tokens SET uses = uses - 1 WHERE id = ? AND uses > 0", token.id) == 1


def revoke(cursor: Cursor, name: str) -> None:
    """Remove a token. Raises HubError if there is none of that name."""
    if not cursor.run("DELETE FROM tokens WHERE name = ?", name):
        raise HubError(f"{name!r}: no such token; msedge hub token list shows all")


def listed(cursor: Cursor) -> list[Token]:
    """All tokens, by name."""
    return [_token(row) for row in cursor.rows("SELECT * FROM tokens ORDER BY name")]


def _token(row: tuple[object, ...]) -> Token:
    return Token._make((*row[:7], json.loads(str(row[7]))))
