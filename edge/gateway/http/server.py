"""The listening socket: connections start on the fast path and are handed over to aiohttp if necessary."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl

from aiohttp import web

from edge.gateway.errors import GatewayError
from edge.gateway.gateway import Gateway
from edge.gateway.http.app import JsonHandler, behind_http, make_app
from edge.gateway.http.crowd import Crowd
from edge.gateway.http.heads import FIELD, FIELDS
from edge.gateway.http.lane import Lanes

__all__ = ["HttpServer"]

GRACE = 0.3
"""Seconds that idle connections stay open when the server shuts down: requests sent at that moment get a reply (503)
instead of a closed connection."""
SWEEP = 1.0
"""Seconds between checks for idle clients."""
BACKLOG = 1024
LINGER = 1.0
"""Seconds that handlers have to finish after `drain`."""
_SILENT = logging.getLogger("msedge.http")
_SILENT.disabled = True


class HttpServer:
    """A gateway's HTTP; all methods on the event loop."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._limits = gateway.settings.limits
        self._socket: asyncio.Server | None = None

    async def start(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> tuple[str, int]:
        """Start to listen; returns the address. Raises GatewayError if the address cannot be used."""
        self._runner = web.AppRunner(
            make_app(self._gateway), handler_cancellation=True, access_log=None, shutdown_timeout=LINGER
        )
        await self._runner.setup()
        server = self._runner.server
        assert server is not None
        server.request_handler = behind_http(self._gateway, server.request_handler)
        self._server = server
        gateway = self._gateway
        self._crowd = Crowd(self._limits, gateway.peers.trusted)
        gateway.idle_evicted = lambda: self._crowd.evicted
        self._lanes = Lanes(gateway, self._limits, self._crowd, gateway.room, self._other)
        loop = asyncio.get_running_loop()
        try:
            self._socket = await loop.create_server(
                self._lanes, host, port, ssl=tls, backlog=BACKLOG,
                ssl_handshake_timeout=self._limits.header_seconds if tls is not None else None,
            )  # fmt: skip
        except (OSError, UnicodeError) as error:
            await self._runner.cleanup()
            why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            raise GatewayError(500, f"cannot listen at {host}:{port}: {why}; choose another --port or --host") from None
        self._sweeper = asyncio.create_task(self._sweep())
        found: socket.socket = self._socket.sockets[0]
        name = found.getsockname()
        return name[0], name[1]

    async def drain(self, seconds: float) -> bool:
        """Accept no more connections, answer current requests, close idle connections; returns whether all requests
        were answered in time, and all replies taken."""
        assert self._socket is not None
        self._socket.close()
        end = asyncio.get_running_loop().time() + seconds
        self._lanes.leaving = True
        await asyncio.sleep(min(GRACE, seconds))
        self._lanes.leave()
        self._server.pre_shutdown()
        while (self._gateway.under_way or self._unsent()) and asyncio.get_running_loop().time() < end:
            await asyncio.sleep(0.01)
        if cut := self._unsent():
            self._gateway.log.event("warning", "replies were cut off", connections=len(cut), bytes=sum(cut))
        return not self._gateway.under_way and not cut

    def _unsent(self) -> list[int]:
        """Bytes of replies that clients have not taken, by connection."""
        return [member.unsent for member in self._crowd.members() if member.unsent]

    async def stop(self) -> None:
        """Close all connections; does nothing if the server was never started."""
        if self._socket is None:
            return
        self._socket.close()
        self._sweeper.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._sweeper
        for lane in self._lanes.open:
            lane.leave()
        await self._runner.cleanup()
        for lane in self._lanes.open:
            lane.abort()

    def _other(self) -> JsonHandler:
        limits = self._limits
        return JsonHandler(
            self._server,
            loop=asyncio.get_running_loop(),
            access_log=_SILENT,
            keepalive_timeout=limits.idle_seconds,
            lingering_time=1.0,
            max_line_size=FIELD,
            max_field_size=FIELD,
            max_headers=FIELDS,
            auto_decompress=False,
            crowd=self._crowd,
        )

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP)
            self._lanes.sweep(SWEEP)
            for other in self._crowd.members():
                if isinstance(other, JsonHandler):
                    other.sweep(SWEEP, self._limits.body_seconds, self._limits.header_seconds)
