"""The parser for the heads of requests on the fast path: one form, parsed strictly; aiohttp parses everything else.

A head is accepted only if every parser of HTTP/1.1 (RFC 9112) would read it in the same way: POST to an infer path in
plain letters, one Host, one Content-Length with digits only, no transfer coding, no expectation, no upgrade, no folded
lines, no space before a colon. So no request is split at different places by this parser and by aiohttp.
"""

from __future__ import annotations

import re
from typing import NamedTuple

__all__ = ["FIELD", "FIELDS", "LONGEST", "Head", "Heads"]

LONGEST = 16 << 10
"""Largest head in bytes that the fast path waits for."""
FIELD, FIELDS = 8190, 64
"""Most bytes of a field's value, and most fields, that are accepted; aiohttp refuses what exceeds them."""
REMEMBERED = 1 << 10
"""Largest head in bytes that is cached."""

_LINE = re.compile(
    rb"POST /v2/models/([A-Za-z0-9_][A-Za-z0-9_.\-]{0,254})"
    rb"(?:/versions/([A-Za-z0-9_][A-Za-z0-9_.\-]{0,63}))?/infer HTTP/1\.1\r\n"
)
_FIELD = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]{1,64}):([\t -~\x80-\xff]*)\r\n")
_DIGITS = re.compile(rb"[0-9]{1,15}")
_ELSEWHERE = frozenset((b"transfer-encoding", b"expect", b"upgrade", b"content-encoding", b"te", b"trailer", b"origin"))
"""Fields that change how a body is read or what is answered (CORS); aiohttp handles them."""


class Head(NamedTuple):
    """A parsed head. `fields`: the other header fields, by name in lower case."""

    model: str
    version: str
    length: int
    keep: bool
    fields: dict[str, str]


class Heads:
    """Parses heads and caches the results, because clients send the same bytes repeatedly."""

    def __init__(self, most: int = 1024) -> None:
        self._most = most
        self._known: dict[bytes, Head | None] = {}

    def read(self, head: bytes) -> Head | None:
        """Parse a whole head, including its empty line; None if aiohttp has to handle it."""
        try:
            return self._known[head]
        except KeyError:
            found = _read(head)
            if len(head) <= REMEMBERED:
                if len(self._known) >= self._most:
                    self._known.clear()
                self._known[head] = found
            return found


def _read(head: bytes) -> Head | None:
    line = _LINE.match(head)
    if line is None:
        return None
    fields: dict[bytes, bytes] = {}
    at, end = line.end(), len(head) - 2
    while at < end:
        found = _FIELD.match(head, at)
        if found is None:
            return None
        name = found[1].lower()
        if name in fields or name in _ELSEWHERE or len(found[2]) > FIELD or len(fields) == FIELDS:
            return None
        fields[name] = found[2].strip(b" \t")
        at = found.end()
    length = fields.pop(b"content-length", b"")
    if at != end or b"host" not in fields or not _DIGITS.fullmatch(length):
        return None
    connection = fields.pop(b"connection", b"keep-alive").lower()
    if connection not in (b"keep-alive", b"close"):
        return None
    texts = {name.decode("ascii"): value.decode("latin-1") for name, value in fields.items()}
    version = (line[2] or b"").decode("ascii")
    return Head(line[1].decode("ascii"), version, int(length), connection == b"keep-alive", texts)
