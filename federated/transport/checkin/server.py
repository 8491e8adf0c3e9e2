"""The server's end of check-in: a desk behind HTTP, in a thread of its own, and a federation's exchange over it."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Event

from federated.errors import FederatedError
from federated.server.replies import Failure
from federated.transport.addresses import host_and_port, is_here
from federated.transport.checkin.desk import Desk, node_of
from federated.transport.checkin.tokens import Tokens
from federated.transport.checkin.window import PATHS, Asked, Window, refused
from lite_runtime.errors import MissingExtraError

try:
    from aiohttp import web
except ModuleNotFoundError as error:
    raise MissingExtraError(error.name or "aiohttp", "serve", "devices check in at a server made with it") from error

__all__ = ["CheckInExchange", "Listening", "listen"]

_ALLOWED = {
    "Access-Control-Allow-Methods": "GET, POST",
    "Access-Control-Allow-Headers": "authorization, content-type",
    "Access-Control-Expose-Headers": "msedge-ticket",
    "Access-Control-Max-Age": "600",
    "Vary": "Origin",
}


@dataclass(frozen=True)
class Listening:
    """Where and for whom to listen.

    `address`: HOST:PORT, with port 0 for a free one. `tokens`: the file of `checkin.tokens`. `certificate` and `key`:
    PEM files; without them only this machine's own addresses. `origins`: of pages whose scripts may check in, such as
    https://example.org. `most`: bytes of a reply. `linger`: seconds after a run within which devices that are still
    there are told that it is over. `heartbeat`: seconds between two signs of life that devices are asked for.
    """

    address: str
    tokens: str
    certificate: str = ""
    key: str = ""
    origins: Sequence[str] = ()
    most: int = 1 << 28
    linger: float = 10.0
    heartbeat: float = 10.0


class CheckInExchange:
    """Messages over a desk (`federated.server.gathering.Exchange`)."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    def nodes(self) -> Collection[int]:
        """Devices that gave a sign of life lately."""
        return set(self._desk.present())

    def send(self, kind: str, messages: Mapping[int, bytes]) -> dict[str, int]:
        """Let messages wait for their nodes."""
        return self._desk.give(messages)

    def poll(self, tickets: Collection[str]) -> Iterator[tuple[str, bytes | Failure]]:
        """The replies that have arrived."""
        return self._desk.take(tickets)

    def now(self) -> float:
        """Seconds of the machine's monotonic clock."""
        return time.monotonic()

    def wait(self, seconds: float) -> None:
        """Sleep."""
        time.sleep(seconds)


@contextmanager
def listen(where: Listening, told: Callable[[str], None] = lambda url: None) -> Iterator[CheckInExchange]:
    """Devices can check in until the end of the block; then those that are waiting are told that the run is over.
    `told` is called with the URL. Raises FederatedError for an address, a certificate or tokens that cannot be used."""
    server = _Server(where)
    ready = Event()
    with ThreadPoolExecutor(1, "check-in") as pool:
        serving = pool.submit(asyncio.run, server.serve(ready))
        try:
            ready.wait()
            if not server.url:
                serving.result()
            told(server.url)
            yield CheckInExchange(server.desk)
        finally:
            server.stop()


class _Server:
    def __init__(self, where: Listening) -> None:
        self._where, self._tokens = where, Tokens(where.tokens)
        if (found := host_and_port(where.address)) is None:
            raise FederatedError(f"expected HOST:PORT to listen on, got {where.address!r}")
        self._host, self._port = found
        self._tls = _tls(where, self._host)
        self.url = ""
        self._window = Window(where.heartbeat, where.most)
        self.desk = self._window.desk
        self._loop: asyncio.AbstractEventLoop | None = None
        self._over: asyncio.Event | None = None

    async def serve(self, ready: Event) -> None:
        """Answer until `stop`, and then until the devices that wait know it. `ready` is set once `url` is known, or
        cannot be."""
        try:
            await self._serve(ready)
        finally:
            ready.set()

    async def _serve(self, ready: Event) -> None:
        self._loop, self._over = asyncio.get_running_loop(), asyncio.Event()
        self._window.begin()
        app = web.Application(client_max_size=self._where.most, middlewares=[self._outermost])
        app.add_routes(
            [web.route(way, f"/v1{path}", self._for_devices(asked)) for (way, path), asked in PATHS.items()]
        )
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await runner.setup()
        try:
            try:
                await web.TCPSite(runner, self._host or None, self._port, ssl_context=self._tls).start()
            except OSError as problem:
                raise FederatedError(
                    f"{self._where.address}: cannot listen there: {problem.strerror}; choose another port"
                ) from problem
            name = f"[{self._host}]" if ":" in self._host else self._host or "localhost"
            self.url = f"http{'s' if self._tls else ''}://{name}:{runner.addresses[0][1]}"
            ready.set()
            await self._over.wait()
            until = self._loop.time() + self._where.linger
            while self.desk.present() and self._loop.time() < until:
                await asyncio.sleep(0.05)
        finally:
            await runner.cleanup()

    def stop(self) -> None:
        """From another thread: the run is over."""
        if self._loop is not None and self._over is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._end)

    def _end(self) -> None:
        if self._over is not None:
            self._over.set()
        self._window.end()

    @web.middleware
    async def _outermost(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Answers a browser's question whether a page may ask, and says errors as JSON."""
        origin = request.headers.get("Origin", "")
        if origin and origin not in self._where.origins:
            response: web.StreamResponse = refused(403, f"pages of {origin} may not check in; see --origin")
        elif request.method == "OPTIONS":
            response = web.Response(status=204)
        else:
            try:
                response = await handler(request)
            except web.HTTPException as found:
                response = refused(found.status, found.reason)
        if origin in self._where.origins:
            response.headers.update(_ALLOWED)
            response.headers["Access-Control-Allow-Origin"] = origin
        return response

    def _for_devices(self, handler: Asked) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def asked(request: web.Request) -> web.StreamResponse:
            scheme, _, token = request.headers.get("Authorization", "").partition(" ")
            device = self._tokens.device(token.strip()) if scheme.lower() == "bearer" else None
            if device is None:
                return refused(401, "expected the token of a device of this run, as: Authorization: Bearer TOKEN")
            self.desk.seen(node_of(device))
            return await handler(self._window, request, device)

        return asked


def _tls(where: Listening, host: str) -> ssl.SSLContext | None:
    """Raises FederatedError for files that cannot be read, and without any where others could listen in."""
    if bool(where.certificate) != bool(where.key):
        raise FederatedError("TLS: expected a certificate and its key, got one of them; give both")
    if not where.certificate:
        if not is_here(host):
            raise FederatedError(
                f"{where.address}: expected a certificate and a key for an address that is not this machine's own, got "
                "none; tokens and models would be readable on the way"
            )
        return None
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        made.load_cert_chain(where.certificate, where.key)
    except (OSError, ssl.SSLError) as error:
        raise FederatedError(
            f"TLS: expected PEM files, a certificate and its key, got {where.certificate}, {where.key}: {error}"
        ) from error
    return made
