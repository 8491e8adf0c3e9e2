"""Run a server with given settings until a signal stops it."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import gc
import logging
import os
import resource
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Protocol

from edge.gateway.access.addresses import is_loopback
from edge.gateway.errors import GatewayError
from edge.gateway.gateway import Gateway
from edge.gateway.http.server import HttpServer
from edge.gateway.operate.logs import Forward
from edge.gateway.operate.settings import Settings
from edge.gateway.operate.tls import Certificates

__all__ = ["exposures", "serve"]

OTHERS = 128
"""Open files in addition to connections."""
SWITCH = 2e-4
"""Python's switch interval in seconds: short, so that a finished batch is noticed soon."""


class _Server(Protocol):
    async def drain(self, seconds: float) -> bool: ...
    async def stop(self) -> None: ...


async def serve(settings: Settings, ready: Callable[..., None]) -> bool:
    """Serve until SIGTERM or SIGINT; `ready` is called with the address, and with that of gRPC, HOST:PORT, if there is
    one. Returns whether all accepted requests were answered.

    Raises GatewayError if the server cannot start.
    """
    loop = asyncio.get_running_loop()
    leaving = asyncio.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, leaving.set)
    sys.setswitchinterval(SWITCH)
    _make_room(settings.limits.connections * (2 if settings.grpc.port >= 0 else 1))
    gateway = Gateway(settings)
    logging.captureWarnings(True)
    logging.getLogger().addHandler(Forward(gateway.log))
    server = HttpServer(gateway)
    servers: list[_Server] = [server]
    certificates = Certificates(settings.tls) if settings.tls.certificate else None
    if certificates is not None:
        gateway.watch(certificates.refresh)
        gateway.expiry = lambda: certificates.expires
    loop.add_signal_handler(signal.SIGHUP, gateway.refresh)
    begun = loop.create_task(gateway.start())
    try:
        context = certificates.context if certificates is not None else None
        host, port = await server.start(settings.host, settings.port, context)
        scheme = "https" if certificates is not None else "http"
        addresses = [f"{scheme}://{_joined(host, port)}"]
        if settings.grpc.port >= 0:
            from edge.gateway.grpc.server import GrpcServer

            remote = GrpcServer(gateway)
            addresses.append(_joined(*await remote.start(settings.host, settings.grpc.port, certificates)))
            servers.append(remote)
        await _first(begun, leaving)
        gateway.check_named()
        for why in exposures(settings):
            gateway.log.event("warning", why)
        gateway.log.event("info", "serving", **dict(zip(("address", "grpc"), addresses, strict=False)))
        ready(*addresses)
        gc.collect()
        gc.freeze()  # objects that live as long as the server need not be scanned by the garbage collector
        await leaving.wait()
        gateway.log.event("info", "draining", under_way=gateway.under_way)
        answered = all(await asyncio.gather(*(one.drain(settings.drain) for one in (gateway, *servers))))
        gateway.log.event("info", "stopped", answered_all=answered)
        return answered
    finally:
        begun.cancel()
        for one in servers:
            await one.stop()
        await gateway.stop()


def exposures(settings: Settings) -> Iterator[str]:
    """What strangers may do with these settings, as far as an operator may not have meant it."""
    access = settings.access
    public = not (settings.host == "localhost" or is_loopback(settings.host))
    secret = bool(access.tokens or access.issuer or settings.tls.client_ca)
    if public and not secret:
        yield f"everybody who can reach {settings.host} may use the models; set access.tokens or tls.client_ca"
    if public and (access.tokens or access.issuer) and not settings.tls.certificate:
        yield "tokens are sent without encryption; set tls.certificate, unless a proxy in front encrypts"
    if settings.personal.store and not secret:
        yield "every client may ask as any device of personal.store; set access.tokens"


def _joined(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _make_room(connections: int) -> None:
    """Raise the limit of open files to allow this many connections, and grow the process's file table now: if it grows
    while requests are served, the kernel waits for all processors, 8 to 50 ms within one accept4."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + OTHERS if hard == resource.RLIM_INFINITY else min(connections + OTHERS, hard)
    with contextlib.suppress(OSError, ValueError):
        if soft != resource.RLIM_INFINITY and soft < wanted:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        os.close(fcntl.fcntl(sys.stderr.fileno(), fcntl.F_DUPFD, wanted - 1))


async def _first(begun: asyncio.Task[None], leaving: asyncio.Event) -> None:
    """Wait until the gateway has started, or a signal stops it."""
    waiting = asyncio.ensure_future(leaving.wait())
    await asyncio.wait([begun, waiting], return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    if begun.done():
        begun.result()
    elif not leaving.is_set():
        raise GatewayError(500, "the gateway did not start")
