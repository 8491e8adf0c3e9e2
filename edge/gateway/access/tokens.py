"""Tokens of clients: shown once when they are created, stored as hashes, each with a name, scopes and an expiry time.

A token is `msedge_ID_SECRET`: ID identifies its entry in the file, SECRET is 256 random bits. The file holds only a
salted BLAKE2b-256 of the secret. Slow hashes (scrypt, Argon2) are for passwords, which can be guessed; 2^256 secrets
cannot, so a slow hash would only add work that any client could cause.
"""

from __future__ import annotations

import contextlib
import fcntl
import hmac
import json
import os
import re
import secrets
import stat
import time
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from hashlib import blake2b
from math import inf, isfinite
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta, Struct, to_builtins

from edge.gateway.errors import GatewayError
from federated.tables import Reader
from lite_runtime._files import write_atomically

__all__ = ["SCOPES", "Token", "add", "listed", "matches", "parse", "revoke"]

SCOPES: Mapping[str, str] = {
    "infer": "run models, and read their metadata",
    "manage": "load and unload models",
    "metrics": "read metrics and the status page",
    "memory": "register and use shared memory, from the same machine",
}
PREFIX = "msedge_"
DAY = 86_400.0
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
_Scope = Annotated[str, Meta(pattern=rf"\A(?:{'|'.join(SCOPES)})\Z", description=f"one of {', '.join(SCOPES)}")]
_LARGEST = 16 << 20
"""Most bytes of a file of tokens: about 50,000 tokens."""


def _hex(size: int) -> str:
    return rf"\A[0-9a-f]{{{2 * size}}}\Z"


_Patterns = Annotated[
    tuple[Annotated[str, Meta(min_length=1, max_length=256, description="a name or a pattern")], ...],
    Meta(description="a list of names or patterns"),
]
_Time = Annotated[float, Meta(gt=-1e12, lt=1e12, description="seconds since 1970")]


class Token(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A token's entry in the file. created, expires: seconds since 1970; expires None: never. salt, digest: hex.

    models, devices: what it may ask for, as names or patterns with * and ?; rate: requests per second, None: any.
    """

    id: Annotated[str, Meta(pattern=_hex(6), description="12 hexadecimal digits")]
    name: Annotated[str, Meta(pattern=rf"\A{_NAME.pattern}\Z", description="up to 64 letters, digits and ._@-")]
    scopes: Annotated[tuple[_Scope, ...], Meta(min_length=1, description="a list of at least one scope")]
    created: _Time
    expires: _Time | None
    salt: Annotated[str, Meta(pattern=_hex(16), description="32 hexadecimal digits")]
    digest: Annotated[str, Meta(pattern=_hex(32), description="64 hexadecimal digits")]
    models: _Patterns = ("*",)
    devices: _Patterns = ()
    rate: Annotated[float, Meta(gt=0, lt=1e9, description="requests per second")] | None = None

    @property
    def end(self) -> float:
        """When it expires."""
        return inf if self.expires is None else self.expires


class _File(Struct):
    format: Literal[1]
    tokens: tuple[Token, ...]


_READ = Reader(partial(GatewayError, 500), "`msedge token add` creates one", lambda value: "another value")


def add(
    path: str | os.PathLike[str],
    name: str,
    scopes: Iterable[str],
    *,
    days: float | None = None,
    models: Iterable[str] = ("*",),
    devices: Iterable[str] = (),
    rate: float | None = None,
) -> str:
    """Create a token, write its hash into the file (created if necessary, readable only by its owner), and return it;
    it cannot be read again later. days: until it expires; None: never. models, devices, rate: see `Token`.

    Raises GatewayError for a name in use, for unknown scopes, and for an invalid file.
    """
    wanted = tuple(dict.fromkeys(scopes))
    if not wanted or not set(wanted) <= set(SCOPES):
        raise GatewayError(400, f"scope: expected some of {', '.join(SCOPES)}, got {', '.join(wanted) or 'none'}")
    if not _NAME.fullmatch(name):
        raise GatewayError(400, f"name: expected up to 64 letters, digits and ._@-, got {name!r}")
    if days is not None and not (isfinite(days) and days > 0):
        raise GatewayError(400, f"days: expected more than 0, got {days!r}")
    if rate is not None and not 0 < rate < 1e9:
        raise GatewayError(400, f"rate: expected more than 0 requests per second, got {rate!r}")
    with _locked(path):
        tokens = listed(path) if os.path.exists(path) else ()
        if any(token.name == name for token in tokens):
            raise GatewayError(400, f"{name!r} has a token already; revoke it first, or choose another name")
        identity, secret, salt = secrets.token_hex(6), secrets.token_urlsafe(32), secrets.token_bytes(16)
        now = time.time()
        ends = None if days is None else now + days * DAY
        digest = _digest(secret, salt).hex()
        made = Token(
            identity, name, wanted, now, ends, salt.hex(), digest, tuple(models), tuple(devices), rate
        )  # fmt: skip
        _write(path, (*tokens, made))
    return f"{PREFIX}{identity}_{secret}"


def revoke(path: str | os.PathLike[str], name: str) -> None:
    """Remove a token from the file. Raises GatewayError if no token has that name."""
    with _locked(path):
        tokens = listed(path)
        kept = tuple(token for token in tokens if token.name != name)
        if len(kept) == len(tokens):
            raise GatewayError(404, f"{name!r}: no such token; there are {', '.join(t.name for t in tokens) or 'none'}")
        _write(path, kept)


def listed(path: str | os.PathLike[str]) -> tuple[Token, ...]:
    """The tokens in a file. Raises GatewayError if it cannot be read, is invalid, or is writable by others."""
    shown = os.fspath(path)
    try:
        with open(path, "rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            data = file.read(_LARGEST + 1)
    except OSError as error:
        fix = "`msedge token add NAME` creates it"
        raise GatewayError(500, f"cannot read {shown!r}: {error.strerror}; {fix}") from error
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise GatewayError(500, f"{shown!r} is writable by other users, who could add tokens: chmod go-w {shown}")
    if len(data) > _LARGEST:
        raise GatewayError(500, f"{shown!r}: expected at most {_LARGEST} bytes of tokens, got more")
    return parse(data, shown)


def parse(data: bytes, shown: str = "tokens") -> tuple[Token, ...]:
    """The tokens in a file's bytes. Raises GatewayError, naming the entry, for anything that `add` does not write."""
    try:
        words = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise GatewayError(500, f"{shown!r}: expected JSON as `msedge token add` writes it: {error}") from error
    tokens = _READ.read(_File, words, f"{shown!r}: ").tokens
    for what in ("id", "name"):
        if len({getattr(token, what) for token in tokens}) != len(tokens):
            raise GatewayError(500, f"{shown!r}: expected every token to have a different {what}")
    return tokens


def matches(token: Token, secret: str) -> bool:
    """Whether this is the token's secret, compared in constant time."""
    return hmac.compare_digest(_digest(secret, bytes.fromhex(token.salt)), bytes.fromhex(token.digest))


def _digest(secret: str, salt: bytes) -> bytes:
    return blake2b(secret.encode("utf-8", "replace"), digest_size=32, salt=salt, person=b"msedge-token").digest()


def _write(path: str | os.PathLike[str], tokens: Iterable[Token]) -> None:
    words = {"format": 1, "tokens": [to_builtins(token) for token in tokens]}
    new = not os.path.exists(path)
    write_atomically(path, json.dumps(words, indent=1).encode() + b"\n", _Unwritten)
    if new:
        os.chmod(path, 0o600)


class _Unwritten(GatewayError):
    def __init__(self, text: str) -> None:
        super().__init__(500, text)


@contextlib.contextmanager
def _locked(path: str | os.PathLike[str]) -> Iterator[None]:
    """Hold a lock against other processes that add or revoke tokens. It is on the folder, as the file is replaced."""
    folder = Path(path).resolve().parent
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise GatewayError(500, f"cannot open {str(folder)!r}: {error.strerror}; create the folder first") from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
