"""A cache of validated request headers: most clients send the same JSON repeatedly."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import orjson

from edge.gateway.ports import Ports
from edge.gateway.protocol.layout import Layout

__all__ = ["Known"]

_HEADERS = 256
"""Number of headers in one generation of the cache."""
_LONGEST = 4096
"""Longer headers, in bytes, are not cached."""
_MODELS = 16
"""Number of model signatures for which one header is cached."""
_STARTS = (b'{"id":"', b'{"id": "')

_Found: TypeAlias = tuple[str, dict[int, Layout]]
"""The signature that a header names, and its layouts by the identity of the ports it was validated against."""


class Known:
    """Layouts of headers without data in the JSON, by the header's bytes and the signature's ports.

    There are two generations: a layout that is used moves to the young one, and once that is full, the old one is
    dropped. An `id` at the beginning, where clients put it, is cut out first, so that requests which differ only in it
    share one entry. A layout is found only by exactly the bytes and the ports with which it was validated, so no entry
    can be wrong.
    """

    __slots__ = ("_old", "_young")

    def __init__(self) -> None:
        self._young: dict[bytes, _Found] = {}
        self._old: dict[bytes, _Found] = {}

    def get(self, header: bytes, ports: Callable[[str], Ports]) -> tuple[Layout, str] | None:
        """The layout of a header for the model with these ports, and the request's id; None if not cached."""
        if len(header) > _LONGEST:
            return None
        key, name = _cut(header)
        found = self._young.get(key)
        if found is None:
            found = self._old.get(key)
            if found is None:
                return None
            self._keep(key, found)
        layout = found[1].get(id(ports(found[0])))
        return None if layout is None else (layout, name)

    def put(self, header: bytes, layout: Layout) -> None:
        """Cache a layout, unless it contains data of the request or its header is too long."""
        if len(header) > _LONGEST or any(part.data is not None for part in layout.parts):
            return
        key, name = _cut(header)
        if name != layout.id or (name and orjson.loads(key)["id"]):  # the id is elsewhere, or given twice
            return
        _, found = self._young.get(key) or self._old.get(key) or ("", {})
        # A layout refers to its ports, so no other ports can have the same identity while it is cached.
        kept = {} if len(found) >= _MODELS else found
        self._keep(key, (layout.signature, {**kept, id(layout.ports): layout}))

    def _keep(self, key: bytes, found: _Found) -> None:
        if len(self._young) >= _HEADERS:
            self._old, self._young = self._young, {}
        self._young[key] = found


def _cut(header: bytes) -> tuple[bytes, str]:
    """The header without a plain `id` at the beginning, and the id."""
    if not header.startswith(_STARTS):
        return header, ""
    start = 7 if header[6] == 34 else 8
    end = header.find(b'"', start)
    name = header[start:end]
    if end < 0 or b"\\" in name or not name.isascii() or not name.decode("ascii").isprintable():
        return header, ""
    return header[:start] + header[end:], name.decode("ascii")
