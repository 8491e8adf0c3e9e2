"""A hub that serves, from start to stop.

Connections that send no request are closed after a while, and there is a most of them: a flood of idle ones must not
take the sockets of the others. A stop answers what is under way, stores what waits, and only then ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from cloud.hub.database.opening import opened
from cloud.hub.errors import HubError
from cloud.hub.server.app import Devices
from cloud.hub.server.files import Files
from cloud.hub.server.hub import Hub
from cloud.hub.server.loops import Loops
from cloud.hub.server.observing import Observer, reader_for
from cloud.hub.server.operators import Operators
from cloud.hub.server.people import pages
from cloud.hub.server.people.gate import Gate
from cloud.hub.server.people.releases import Shelves
from cloud.hub.server.settings import Settings
from cloud.hub.server.tasks import Tasks
from cloud.hub.storage import storage_at
from federated.transport.addresses import host_and_port, is_here

__all__ = ["serve", "serving"]

IDLE = 75.0
"""Seconds after which a connection without a request is closed."""
MOST = 20_000
"""Connections at once."""
GRACE = 10.0
"""Seconds for requests that are under way when the hub stops."""
HANDSHAKE = 15.0
"""Seconds for the handshake of TLS: until its end a connection is not among those that are counted."""
_BACKLOG = 2048


class _Connection(RequestHandler):
    """One connection, with the time of its last request."""

    def __init__(self, crowd: set[_Connection], server: web.Server, **options: Any) -> None:
        super().__init__(server, **options)
        self._crowd = crowd
        self.heard = self._loop.time()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if len(self._crowd) >= MOST:
            self.force_close()
            transport.close()
            return
        self._crowd.add(self)

    def connection_lost(self, exc: BaseException | None) -> None:
        super().connection_lost(exc)
        self._crowd.discard(self)

    def idle(self, now: float) -> bool:
        """Whether no request is under way, and none has been for a while."""
        if self._current_request is not None:
            self.heard = now
        return now - self.heard > IDLE


@contextlib.asynccontextmanager
async def serving(settings: Settings, folder: Path) -> AsyncIterator[tuple[Hub, str]]:
    """A hub that answers until the end of the block, and its URL. folder: where its authority is. Raises HubError for
    an address, files or a database that cannot be used."""
    host, port, tls = _where(settings)
    storage = storage_at(settings.repository) if settings.repository else None
    reader = reader_for(settings.collector) if settings.collector else None
    database = opened(settings.database)
    try:
        hub = Hub(settings, database, folder)
    except BaseException:
        database.close()
        raise
    observer = Observer(reader, lambda: hub.fleet) if reader is not None else None
    try:
        if tls is not None and settings.clients:
            tls.verify_mode = ssl.CERT_OPTIONAL  # whoever enrols has none yet
            tls.load_verify_locations(cadata=hub.authority.pem)
        devices = Devices(hub, observer)
        app = web.Application(middlewares=[devices.outermost], client_max_size=1 << 20)
        app.on_response_prepare.append(_guarded)
        gate = Gate(hub)
        tasks = Tasks(hub, devices, gate.guard)
        app.add_routes([*devices.routes(), *gate.routes(), *Operators(hub, storage, gate).routes(), *pages.routes()])
        app.add_routes([*tasks.routes(), *Loops(hub, gate.guard).routes(), *Shelves(hub, storage, gate).routes()])
        if storage is not None:
            app.add_routes(Files(devices, storage).routes())
        async with _listening(app, hub, tasks, host, port, tls) as url:
            yield hub, url
    finally:
        if observer is not None:
            await asyncio.to_thread(observer.close)
        await hub.close()


async def _guarded(request: web.Request, response: web.StreamResponse) -> None:
    """No browser keeps an answer that does not say so, or takes it for another type than it has."""
    response.headers.setdefault("Cache-Control", "no-store")
    response.headers.setdefault("X-Content-Type-Options", "nosniff")


@contextlib.asynccontextmanager
async def _listening(
    app: web.Application, hub: Hub, tasks: Tasks, host: str, port: int, tls: ssl.SSLContext | None
) -> AsyncIterator[str]:
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=GRACE)
    await runner.setup()
    server, crowd = runner.server, set[_Connection]()
    assert server is not None
    loop = asyncio.get_running_loop()

    def connection() -> _Connection:
        return _Connection(
            crowd, server, loop=loop, access_log=None, keepalive_timeout=IDLE, auto_decompress=False, lingering_time=1.0
        )  # fmt: skip

    try:
        limit = None if tls is None else HANDSHAKE
        found = await loop.create_server(
            connection, host or None, port, ssl=tls, backlog=_BACKLOG, ssl_handshake_timeout=limit
        )
    except (OSError, UnicodeError) as problem:
        await runner.cleanup()
        why = problem.strerror if isinstance(problem, OSError) else str(problem)
        raise HubError(f"{hub.settings.address}: cannot listen there: {why}; choose another address") from problem
    work = [asyncio.ensure_future(one) for one in (hub.work(), tasks.work(), _sweep(crowd))]
    try:
        first: socket.socket = found.sockets[0]
        name = f"[{host}]" if ":" in host else host or "localhost"
        yield f"http{'s' if tls else ''}://{name}:{first.getsockname()[1]}"
    finally:
        found.close()
        hub.leave()
        tasks.leave()
        for task in work:
            task.cancel()
        await asyncio.gather(*work, return_exceptions=True)
        await runner.cleanup()


async def _sweep(crowd: set[_Connection]) -> None:
    while True:
        await asyncio.sleep(IDLE / 15)
        now = asyncio.get_running_loop().time()
        for connection in [one for one in crowd if one.idle(now)]:
            connection.force_close()
            if connection.transport is not None:
                connection.transport.close()


async def serve(settings: Settings, folder: Path, told: Callable[[Hub, str], None]) -> None:
    """Serve until SIGTERM or SIGINT. `told` is called when the hub can be reached."""
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    async with serving(settings, folder) as (hub, url):
        told(hub, url)
        await ended.wait()


def _where(settings: Settings) -> tuple[str, int, ssl.SSLContext | None]:
    """Host, port and TLS. Raises HubError, also where others could listen in."""
    found = host_and_port(settings.address)
    if found is None:
        raise HubError(f"address: expected HOST:PORT, got {settings.address!r}")
    if bool(settings.certificate) != bool(settings.key):
        raise HubError("TLS: expected a certificate and its key, got one of them; give both")
    if settings.certificate:
        return *found, _tls(settings)
    if settings.clients:
        raise HubError("clients: expected a certificate and a key of the hub, got none; devices show theirs over TLS")
    if not is_here(found[0]):
        raise HubError(
            f"{settings.address}: expected a certificate and a key for an address that is not this machine's own, got "
            "none; tokens would be readable on the way"
        )
    return *found, None


def _tls(settings: Settings) -> ssl.SSLContext:
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.minimum_version = ssl.TLSVersion.TLSv1_2
    made.set_alpn_protocols(["http/1.1"])
    made.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    try:
        made.load_cert_chain(settings.certificate, settings.key, password=_no_password)
    except (OSError, ValueError) as problem:
        where = f"{settings.certificate!r} and {settings.key!r}"
        raise HubError(f"TLS: expected PEM files, a certificate and its key, in {where}: {problem}") from problem
    return made


def _no_password() -> str:
    raise ValueError("the key has a password, which cannot be entered; store it without one (openssl pkey)")
