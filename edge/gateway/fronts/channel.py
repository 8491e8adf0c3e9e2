"""What goes between a front and the process that computes: messages over a pair of sockets, payloads beside them.

A message is `HEAD`, a short text of JSON, and a payload: in the ring of shared memory where it fits there, else behind
the text. Every message says how far its sender has read the other ring. Messages of one turn of the event loop share
writes.
"""

from __future__ import annotations

import asyncio
import fcntl
import mmap
import os
from collections.abc import Callable, Sequence
from struct import Struct

from edge.gateway.fronts.ring import Reader, Writer

__all__ = ["ANSWER", "ASK", "CANCEL", "LEAVE", "LEFT", "SLACK", "Channel", "make_memory", "map_memory"]

ASK, CANCEL, ANSWER, LEAVE, LEFT = range(5)
"""An inference is asked for; nobody waits for it any more; what came of it; take no more connections; none are taken,
and everybody is answered."""
RING = 8 << 20
"""Bytes of the ring in each direction; pages of it exist once they are written."""
INLINE = 2048
"""Bytes up to which a payload goes with its message: copying that much through a socket costs nothing that counts."""
ROOM = 1 << 16
SLACK = 1 << 20
"""Bytes of a message beside a request's or a reply's largest body."""
TOGETHER = 8
"""Of the messages of a turn of the event loop, the first of so many is sent at once, as the other process could be at
work on it; the rest with the next such, or when the turn is over. Waiting with the first too cost one client 40 µs."""

HEAD = Struct("<IIIqqq")
"""Kind, number of the request, bytes of JSON, bytes of payload, its place in the ring (-1: behind the JSON), bytes of
the other ring that are read."""


def make_memory() -> int:
    """A file descriptor of memory for two rings, that lives as long as somebody holds it and keeps its size."""
    made = os.memfd_create("msedge-front", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(made, 2 * RING)
    fcntl.fcntl(made, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    return made


def map_memory(descriptor: int) -> tuple[memoryview, memoryview]:
    """Its two rings: towards the process that computes, and back. The descriptor is closed."""
    whole = memoryview(mmap.mmap(descriptor, 2 * RING))
    os.close(descriptor)
    return whole[:RING], whole[RING:]


class Channel(asyncio.BufferedProtocol):
    """One end. `take(kind, number, text, payload)` is called for every message, `lost()` once at the end; an end whose
    other side says what cannot be is closed."""

    def __init__(
        self,
        written: memoryview,
        read: memoryview,
        take: Callable[[int, int, bytes, bytes], None],
        lost: Callable[[], None],
        *,
        most: int,
    ) -> None:
        """written, read: rings. most: bytes of text and payload that a message may have."""
        self._writer, self._reader = Writer(written), Reader(read)
        self._take, self._lost, self._most = take, lost, most
        self._out: list[bytes | memoryview] = []
        self._messages = 0
        self._buffer = memoryview(bytearray(ROOM))
        self._filled = 0
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is there."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        """The other process has ended, or this one closed."""
        self._transport = None
        self._out.clear()
        self._lost()

    def close(self) -> None:
        """Say nothing more."""
        if self._transport is not None:
            self._transport.abort()

    def send(self, kind: int, number: int, text: bytes = b"", parts: Sequence[bytes | memoryview] = ()) -> None:
        """Send a message. parts: the payload, which stays as it is until the loop's turn is over."""
        if self._transport is None:
            return
        total = sum(map(len, parts))
        place = self._writer.put(parts, total) if total > INLINE else -1
        self._out += HEAD.pack(kind, number, len(text), total, place, self._reader.done), text
        if place < 0:
            self._out += parts
        self._messages += 1
        if self._messages == 1:
            self._loop.call_soon(self._flush)
        if self._messages % TOGETHER == 1:
            self._write()

    def _flush(self) -> None:
        self._write()
        self._messages = 0

    def _write(self) -> None:
        if self._transport is not None and self._out:
            self._transport.write(b"".join(self._out))
        self._out.clear()

    def get_buffer(self, hint: int) -> memoryview:
        """Where the next bytes go."""
        return self._buffer[self._filled :]

    def buffer_updated(self, count: int) -> None:
        """Bytes have come."""
        self._filled += count
        try:
            at, need = self._messages_in(self._filled)
        except ValueError:
            self.close()
            return
        rest = self._buffer[at : self._filled]
        if max(need, ROOM) != len(self._buffer):
            self._buffer = memoryview(bytearray(max(need, ROOM)))
        self._buffer[: len(rest)] = bytes(rest)
        self._filled = len(rest)

    def _messages_in(self, end: int) -> tuple[int, int]:
        """Take the whole messages up to `end`: where the next begins, and how many bytes that will have."""
        at, buffer = 0, self._buffer
        while end - at >= HEAD.size:
            kind, number, length, total, place, read = HEAD.unpack_from(buffer, at)
            if total < 0 or length + total > self._most:
                raise ValueError(f"expected at most {self._most} bytes, got {length} and {total}")
            text = at + HEAD.size
            behind = text + length
            if place < 0:
                behind += total
            if behind > end:
                return at, behind - at
            self._writer.freed(read)
            payload = self._reader.get(place, total) if place >= 0 else bytes(buffer[behind - total : behind])
            self._take(kind, number, bytes(buffer[text : text + length]), payload)
            at = behind
        return at, HEAD.size
