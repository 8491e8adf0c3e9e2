"""The fast path: plain infer requests are served from the socket to the reply without a task or a future.

A connection starts here and stays while `heads` accepts its requests. At the first other request it is handed over to
aiohttp, with all bytes received so far, and stays there. ResNet-8 over one to 64 connections: 1.4 times as many
requests per second as a minimal aiohttp handler that calls the model directly.

Bytes are received into a buffer of the connection, large bodies into a separate buffer; the inputs of a model are
views of these buffers. Reading continues while a request is answered, so that a disconnect is noticed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from email.utils import formatdate
from http import HTTPStatus
from typing import TYPE_CHECKING

import numpy as np

from edge.gateway.errors import GatewayError
from edge.gateway.exchange import Answer, Ask, Desk
from edge.gateway.http.crowd import Crowd
from edge.gateway.http.heads import LONGEST, Head, Heads
from edge.gateway.operate.room import TEXT, Held, Room
from edge.gateway.operate.settings import Limits
from edge.gateway.operate.tls import certificate_name

if TYPE_CHECKING:
    from edge.gateway.http.app import JsonHandler

__all__ = ["Lane", "Lanes"]

ROOM = LONGEST
"""Bytes of a connection's buffer; larger requests get a separate buffer for their body."""
ALIGNED = 64
"""Alignment of tensors in bytes: kernels are fastest at the start of a cache line."""
SLACK = 4096
"""Bytes of the next requests that a client may send directly after a large body."""
LARGE = 64 << 10
"""Bytes of a reply that count in the memory budget until the client has taken them."""

_STATUS = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}
_STATUS[499] = b"HTTP/1.1 499 Client Closed Request\r\n"
_JSON = b"Content-Type: application/json\r\n"
_BINARY = b"Content-Type: application/octet-stream\r\nInference-Header-Content-Length: %d\r\n"


_LATE = Answer(408, [b'{"error":"the request exceeded limits.header_seconds or limits.body_seconds"}'], None, ())


_EMPTY = memoryview(b"")


def _busy(why: str) -> Answer:
    return Answer(503, [b'{"error":"%s; try again later"}' % why.encode()], None, (("Retry-After", "1"),))


def _ahead(head: Head) -> int:
    """Bytes before the first tensor according to the head; the value is validated later."""
    text = head.fields.get("inference-header-content-length", "")
    return int(text) if text.isdecimal() and len(text) < 16 else 0


class Lanes:
    """The shared state of the fast path's connections.

    `other()` makes aiohttp's protocol for a connection that is handed over; room: the memory budget.
    """

    def __init__(self, desk: Desk, limits: Limits, crowd: Crowd, room: Room, other: Callable[[], JsonHandler]) -> None:
        self.desk, self.limits, self.crowd, self.room, self.other = desk, limits, crowd, room, other
        self.heads = Heads()
        self.leaving = False
        """Whether connections are closed after their next reply."""
        self._second, self._stamp = 0, b""

    def __call__(self) -> asyncio.BufferedProtocol:
        """The protocol of a new connection."""
        return Lane(self)

    @property
    def open(self) -> list[Lane]:
        """The fast path's connections."""
        return [member for member in self.crowd.members() if isinstance(member, Lane)]

    def stamp(self) -> bytes:
        """The header fields of every reply (RFC 9110, 6.6.1 and 10.2.4)."""
        now = int(time.time())
        if now != self._second:
            self._second, self._stamp = now, b"Server: msedge\r\nDate: %s\r\n" % formatdate(now, usegmt=True).encode()
        return self._stamp

    def sweep(self, seconds: float) -> None:
        """Close connections that have been idle for too long; called every `seconds`."""
        for lane in self.open:
            lane.sweep(seconds)

    def leave(self) -> None:
        """Close idle connections now, others after their reply."""
        self.leaving = True
        for lane in self.open:
            lane.leave()


class Lane(asyncio.BufferedProtocol):
    """One connection."""

    def __init__(self, lanes: Lanes) -> None:
        self._lanes = lanes
        self._buffer = bytearray(ROOM)
        self._view = memoryview(self._buffer)
        self._filled = 0
        self._body: memoryview | None = None
        """The buffer of a large body, which receives the data."""
        self._held: Held | None = None
        """Its memory, or that of a large reply that the client has not taken."""
        self._head: Head | None = None
        self._start = 0
        """Where the body begins in the buffer."""
        self._need = 0
        """Bytes in `_body`, or in the buffer, of the complete request."""
        self._busy = self._advancing = self._paused = self._full = False
        self._cancel: Callable[[], None] | None = None
        self._ended = False
        """Whether the client sends nothing more."""
        self.peer, self.served, self.reserved = "", 0, False
        self._seen, self._age = (0, False, False, 0), 0.0

    @property
    def idle(self) -> bool:
        """See `crowd.Member`."""
        return not self._busy and self._head is None and not self.unsent

    @property
    def unsent(self) -> int:
        """Bytes of replies that the client has not taken."""
        return self._transport.get_write_buffer_size()

    def dismiss(self) -> None:
        """See `crowd.Member`."""
        self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has connected."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        peer = transport.get_extra_info("peername")
        self.peer = peer[0] if isinstance(peer, tuple) else ""
        certificate = transport.get_extra_info("peercert")
        self._certificate = certificate_name(certificate) if certificate else ""
        if why := self._lanes.crowd.join(self):
            self._write(_busy(why), keep=False)

    def connection_lost(self, error: Exception | None) -> None:
        """The client has disconnected: work that has not started is dropped."""
        self._lanes.crowd.leave(self)
        self._drop_body()
        if self._busy and self._cancel is not None:
            self._cancel()
        self._cancel = None

    def eof_received(self) -> bool:
        """The client sends nothing more. If it said so with its request (`Connection: close`), it is answered;
        otherwise it has left."""
        self._ended = True
        plain = self._transport.get_extra_info("sslcontext") is None  # TLS cannot end in one direction
        return plain and self._busy and self._head is not None and not self._head.keep

    def get_buffer(self, hint: int) -> memoryview:
        """The buffer for the next bytes; never empty, as asyncio does not read into an empty one."""
        return (self._view if self._body is None else self._body)[self._filled :]

    def buffer_updated(self, count: int) -> None:
        """Bytes were received."""
        self._filled += count
        if self._body is not None and self._held is not None:
            self._held.done += count
        if not self._busy:
            self._advance()
        if self._filled == len(self._view if self._body is None else self._body):
            self._transport.pause_reading()
            self._paused = True

    def pause_writing(self) -> None:
        """The client does not read its replies: no further request is processed until it does."""
        self._full = True

    def resume_writing(self) -> None:
        """The client reads again."""
        self._full = False
        self._release()
        if not self._busy:
            self._advance()
        self._read_on()

    def sweep(self, seconds: float) -> None:
        """Close the connection if it was idle for longer than its state allows."""
        now = (self.served, self._filled > 0, self._head is None, self._transport.get_write_buffer_size())
        self._age = self._age + seconds if now == self._seen else 0.0
        self._seen = now
        if self._full and self._held is not None:
            self._held.done = self._held.size - self.unsent
        if self._busy:
            return
        limits = self._lanes.limits
        if self._full or self._head is not None:
            patience = limits.body_seconds
        else:
            patience = limits.header_seconds if self._filled else limits.idle_seconds
        if self._age <= patience:
            return
        if self._full or self._transport.is_closing():
            self._transport.abort()
        elif self._filled or self._head is not None:
            self._write(_LATE, keep=False)
        else:
            self._transport.close()

    def leave(self) -> None:
        """Close the connection when nothing remains to be answered."""
        if not self._busy and not self._filled:
            self._transport.close()

    def abort(self) -> None:
        """Close at once."""
        self._transport.abort()

    def _advance(self) -> None:
        """Process the received requests, one after the other."""
        self._advancing = True
        try:
            while not (self._busy or self._full or self._transport.is_closing()):
                if self._head is None and not self._begin():
                    return
                if self._filled < self._need:
                    return
                self._serve()
        finally:
            self._advancing = False

    def _begin(self) -> bool:
        """Parse a head; False if it is not complete yet, or if aiohttp has to handle it."""
        if not self._filled:
            return False
        end = self._buffer.find(b"\r\n\r\n", 0, self._filled) + 4
        if end < 4:
            if self._filled == len(self._buffer):
                self._hand_over()
            return False
        head = self._lanes.heads.read(self._view[:end].tobytes())
        if head is None or head.length > self._lanes.limits.body:
            self._hand_over()
            return False
        if self.reserved:
            self._refuse(_busy("the limit of open connections is reached"))
            return False
        if end + head.length <= len(self._buffer):
            self._start, self._need = end, end + head.length
        elif not self._make_room(end, head):
            return False
        self._head = head
        return True

    def _make_room(self, end: int, head: Head) -> bool:
        """Allocate memory for a large body so that tensors after its JSON are aligned and can be read in place. The
        client's access and the memory budget are checked before any of it is read."""
        length, lanes = head.length, self._lanes
        ask = Ask(head.model, head.version, head.fields, _EMPTY, self.peer, self._certificate)
        refusal = lanes.desk.greet(ask)
        if refusal is None:
            self._held = lanes.room.enter(self.peer, lanes.limits.body_seconds, self._late)
            try:
                self._held.reach(length * (1 if "inference-header-content-length" in head.fields else TEXT))
            except GatewayError as error:
                refusal = lanes.desk.refusal(ask, error)
        if refusal is not None:
            self._refuse(refusal)
            return False
        assert self._held is not None, "set above"
        room = np.empty(length + SLACK + ALIGNED, np.uint8)  # not written: pages are allocated as bytes arrive
        skip = -(room.ctypes.data + _ahead(head)) % ALIGNED
        body = room[skip : skip + length + SLACK].data
        there = self._filled - end
        body[:there] = self._view[end : self._filled]
        self._body, self._filled, self._start, self._need = body, there, 0, length
        self._held.wait()
        return True

    def _late(self) -> None:
        """The memory budget has no room for a client that is so slow."""
        if self._full or self._head is None:
            self._transport.abort()
        elif not self._busy:
            self._refuse(_LATE)

    def _refuse(self, answer: Answer) -> None:
        """Answer a request whose body was not read, and close the connection."""
        self._write(answer, keep=False)
        self._drop_body()
        self._head, self._filled = None, 0

    def _drop_body(self) -> None:
        self._body = None
        self._release()

    def _release(self) -> None:
        if self._held is not None:
            self._held.release()
            self._held = None

    def _serve(self) -> None:
        head = self._head
        assert head is not None
        self._busy = True
        if self._held is not None:
            self._held.waits = False
        body = (self._view if self._body is None else self._body)[self._start : self._need]
        ask = Ask(head.model, head.version, head.fields, body, self.peer, self._certificate)
        cancel = self._lanes.desk.infer(ask, self._reply)
        if self._busy:
            self._cancel = cancel

    def _reply(self, answer: Answer) -> None:
        """Send the reply and continue with the next request."""
        head = self._head
        assert head is not None
        if not self._transport.is_closing():
            self._send(answer, keep=head.keep and not self._lanes.leaving and not self._ended)
        self.served += 1
        self._lanes.crowd.answered(self)
        source, rest = self._view if self._body is None else self._body, self._filled - self._need
        if rest:
            self._view[:rest] = bytes(source[self._need : self._filled])
        self._body = None
        if not self._full:
            self._release()
        self._head, self._filled, self._need, self._busy, self._cancel = None, rest, 0, False, None
        if self._paused:
            self._read_on()
        if rest and not self._advancing:
            self._advance()

    def _read_on(self) -> None:
        """Resume reading if there is room in the buffer."""
        if self._paused and self._filled < len(self._view if self._body is None else self._body):
            self._paused = False
            self._transport.resume_reading()

    def _send(self, answer: Answer, *, keep: bool) -> None:
        """Write a reply; what the client does not take at once counts in the memory budget instead of its body."""
        length = sum(map(len, answer.parts))
        if length < LARGE:
            self._write(answer, keep=keep)
            return
        self._release()
        held = self._lanes.room.enter(self.peer, self._lanes.limits.body_seconds, self._late)
        try:
            held.reach(length)
        except GatewayError:
            why = "clients that do not take their replies use all the memory allowed for them"
            self._write(_busy(why), keep=keep)
            return
        self._held = held
        self._write(answer, keep=keep)
        held.wait()

    def _write(self, answer: Answer, *, keep: bool) -> None:
        length = sum(map(len, answer.parts))
        kind = _JSON if answer.header_length is None else _BINARY % answer.header_length
        fields = b"".join([f"{name}: {value}\r\n".encode("latin-1") for name, value in answer.fields])
        close = b"" if keep else b"Connection: close\r\n"
        size = b"Content-Length: %d\r\n" % length
        head = b"".join((_STATUS[answer.status], self._lanes.stamp(), kind, size, fields, close, b"\r\n"))
        if length < 1 << 16:
            self._transport.write(b"".join((head, *answer.parts)))
        else:
            self._transport.writelines([head, *answer.parts])
        if not keep:
            self._transport.close()

    def _hand_over(self) -> None:
        """Hand the connection over to aiohttp, with the bytes received so far."""
        lanes, transport, came = self._lanes, self._transport, self._view[: self._filled].tobytes()
        self._filled = 0
        other = lanes.other()
        transport.set_protocol(other)
        lanes.crowd.replace(self, other)
        other.connection_made(transport)
        other.data_received(came)
