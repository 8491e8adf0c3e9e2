"""Connections that a front passes on: bytes to and fro between a client and the process that computes.

A connection passed on begins with a byte, how long the client's address is, and the address: who may manage a server
depends on it. The socket where that is read lies in a folder that nobody else may enter.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

__all__ = ["Doorway", "Splice"]


class Splice(asyncio.Protocol):
    """The client's end, in the front: what follows the lane's protocol on a connection. In `opened` while it lasts."""

    def __init__(self, path: str, peer: str, opened: set[Splice]) -> None:
        address = peer.encode()[:255]
        self._held = [bytes((len(address),)), address]
        """What is not sent on yet, as there is no connection."""
        self._path, self._opened = path, opened
        self._onward: asyncio.Transport | None = None
        self._opening: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client's connection is passed on."""
        assert isinstance(transport, asyncio.Transport)
        self.client = transport
        transport.pause_reading()
        self._opened.add(self)
        self._opening = asyncio.get_running_loop().create_task(self._open())

    async def _open(self) -> None:
        try:
            onward, _ = await asyncio.get_running_loop().create_unix_connection(lambda: _Back(self), self._path)
        except OSError:
            self.client.close()
            return
        if self.client.is_closing():
            onward.close()
            return
        self._onward = onward
        onward.write(b"".join(self._held))
        self._held.clear()
        self.client.resume_reading()

    def data_received(self, data: bytes) -> None:
        """From the client."""
        if self._onward is None:
            self._held.append(data)
        else:
            self._onward.write(data)

    def connection_lost(self, error: Exception | None) -> None:
        """The client has left."""
        self._opened.discard(self)
        if self._onward is not None:
            self._onward.close()

    def pause_writing(self) -> None:
        """The client does not read what it is sent."""
        if self._onward is not None:
            self._onward.pause_reading()

    def resume_writing(self) -> None:
        """It does again."""
        if self._onward is not None:
            self._onward.resume_reading()


class _Back(asyncio.Protocol):
    """The other end, in the front."""

    def __init__(self, splice: Splice) -> None:
        self._client = splice.client

    def data_received(self, data: bytes) -> None:
        self._client.write(data)

    def connection_lost(self, error: Exception | None) -> None:
        self._client.close()

    def pause_writing(self) -> None:
        if not self._client.is_closing():
            self._client.pause_reading()

    def resume_writing(self) -> None:
        if not self._client.is_closing():
            self._client.resume_reading()


class Doorway(asyncio.BufferedProtocol):
    """Where such a connection comes in: reads the client's address, no byte more, and makes it an ordinary one.

    `then(peer)` makes the protocol that goes on.
    """

    def __init__(self, then: Callable[[str], asyncio.BaseProtocol]) -> None:
        self._then = then
        self._address = bytearray(1)
        self._filled, self._begun = 0, False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Somebody has come."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def get_buffer(self, hint: int) -> memoryview:
        """What of the address is missing."""
        return memoryview(self._address)[self._filled :]

    def buffer_updated(self, count: int) -> None:
        """Some of it has come."""
        self._filled += count
        if not self._begun:
            self._begun, self._address, self._filled = True, bytearray(self._address[0]), 0
        if self._filled == len(self._address):
            following = self._then(self._address.decode(errors="replace"))
            self._transport.set_protocol(following)
            following.connection_made(self._transport)
