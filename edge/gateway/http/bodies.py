"""Request bodies that aiohttp reads, with limits on bytes and seconds that also hold for decompression."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable
from typing import Any

import orjson
from aiohttp import web

from edge.gateway.errors import GatewayError
from edge.gateway.operate.room import TEXT, Held

__all__ = ["object_in", "read_body"]

PIECE = 1 << 18
"""Bytes to decompress at a time."""


class _Inflater:
    """Decompresses gzip (RFC 1952) or deflate (RFC 1950, or raw RFC 1951, which some clients send)."""

    def __init__(self, coding: str, limit: int) -> None:
        self._gzip, self._limit = coding == "gzip", limit
        self._stream: Any = None
        self.made = bytearray()

    def feed(self, data: bytes) -> None:
        """Decompress more bytes. Raises GatewayError for corrupt data and for a result beyond the limit."""
        try:
            while data:
                if self._stream is None:
                    self._stream = zlib.decompressobj(self._bits(data[0]))
                self.made += self._stream.decompress(data, PIECE)
                if len(self.made) > self._limit:
                    raise _too_large(self._limit, "decompressed ")
                data = self._stream.unconsumed_tail
                if self._stream.eof and self._stream.unused_data:
                    raise GatewayError(400, "more data after the end of the compressed body; send one stream")
        except zlib.error as error:
            raise GatewayError(400, f"the body does not match Content-Encoding: {error}") from None

    def end(self) -> bytearray:
        """The decompressed body. Raises GatewayError for a truncated stream."""
        if self._stream is None or not self._stream.eof:
            raise GatewayError(400, "the compressed body is truncated")
        return self.made

    def _bits(self, first: int) -> int:
        if self._gzip:
            return 16 + zlib.MAX_WBITS
        return zlib.MAX_WBITS if first & 15 == 8 else -zlib.MAX_WBITS


class _Plain:
    def __init__(self, limit: int) -> None:
        self.made = bytearray()

    def feed(self, data: bytes) -> None:
        self.made += data

    def end(self) -> bytearray:
        return self.made


_CODINGS: dict[str, Callable[[int], _Inflater | _Plain]] = {
    "": _Plain,
    "identity": _Plain,
    "gzip": lambda limit: _Inflater("gzip", limit),
    "x-gzip": lambda limit: _Inflater("gzip", limit),
    "deflate": lambda limit: _Inflater("deflate", limit),
}


async def read_body(request: web.Request, limit: int, seconds: float, held: Held) -> bytearray:
    """A request's body, decompressed. Raises GatewayError: 413 beyond `limit` bytes, 415 for an unknown encoding, 408
    if it takes longer than `seconds` or `held` was evicted, 400 for a corrupt body, 503 if `held` gets no memory."""
    coding = request.headers.get("Content-Encoding", "").strip().lower()
    if coding not in _CODINGS:
        known = ", ".join(filter(None, _CODINGS))
        raise GatewayError(415, f"Content-Encoding: expected one of {known}, got {coding[:40]!r}")
    declared = request.content_length or 0
    if declared > limit:
        raise _too_large(limit)
    weight = 1 if "Inference-Header-Content-Length" in request.headers else TEXT
    held.reach(weight * declared)
    decoder, came = _CODINGS[coding](limit), 0
    held.wait()
    try:
        async with asyncio.timeout(seconds) as deadline:
            held.on_evict(lambda: deadline.reschedule(asyncio.get_running_loop().time()))
            while piece := await request.content.readany():
                came += len(piece)
                held.done = came
                if came > limit:
                    raise _too_large(limit)
                decoder.feed(piece)
                held.reach(max(held.size, weight * len(decoder.made)))
    except TimeoutError:
        raise GatewayError(408, f"the body was not received within {seconds:g} s") from None
    except web.RequestPayloadError as error:
        raise GatewayError(400, f"the body cannot be read: {error}") from None
    held.waits = False
    return decoder.end()


async def object_in(request: web.Request, limit: int, seconds: float, held: Held) -> dict[str, Any]:
    """The JSON object in a body; {} for an empty one. Raises GatewayError."""
    body = await read_body(request, limit, seconds, held)
    if not body.strip():
        return {}
    try:
        found = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise GatewayError(400, f"the body is not valid JSON: {error}") from None
    if not isinstance(found, dict):
        raise GatewayError(400, f"the body: expected a JSON object, got {type(found).__name__}")
    return found


def _too_large(limit: int, what: str = "") -> GatewayError:
    return GatewayError(413, f"the {what}body is larger than {limit} bytes, the server's setting limits.body")
