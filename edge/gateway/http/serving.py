"""From settings to a server that answers, until it is told to go."""

from __future__ import annotations

import asyncio
import gc
import signal
import sys
from collections.abc import Callable

from edge.gateway.errors import GatewayError
from edge.gateway.gateway import Gateway
from edge.gateway.http.server import HttpServer
from edge.gateway.operate.settings import Settings
from edge.gateway.operate.tls import Certificates

__all__ = ["serve"]

SWITCH = 2e-4
"""Seconds until a thread that waits for the interpreter's lock is given it: a batch that is done is noticed soon."""


async def serve(settings: Settings, ready: Callable[[str], None]) -> bool:
    """Serve until SIGTERM or SIGINT; `ready` is told the address. Whether everything taken on was answered.

    Raises GatewayError where it cannot begin.
    """
    loop = asyncio.get_running_loop()
    leaving = asyncio.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, leaving.set)
    sys.setswitchinterval(SWITCH)
    gateway = Gateway(settings)
    server = HttpServer(gateway)
    certificates = Certificates(settings.tls) if settings.tls.certificate else None
    if certificates is not None:
        gateway.watch(certificates.refresh)
    loop.add_signal_handler(signal.SIGHUP, gateway.refresh)
    begun = loop.create_task(gateway.start())
    try:
        context = certificates.context if certificates is not None else None
        host, port = await server.start(settings.host, settings.port, context)
        scheme = "https" if certificates is not None else "http"
        await _first(begun, leaving)
        ready(f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}")
        gc.collect()
        gc.freeze()  # what lives as long as the server need not be looked at again and again
        await leaving.wait()
        gateway.log.event("info", "draining", under_way=gateway.under_way)
        drained, answered = await asyncio.gather(gateway.drain(settings.drain), server.drain(settings.drain))
        gateway.log.event("info", "stopped", answered_all=drained and answered)
        return drained and answered
    finally:
        begun.cancel()
        await server.stop()
        await gateway.stop()


async def _first(begun: asyncio.Task[None], leaving: asyncio.Event) -> None:
    """Wait until the gateway has begun, or is told to go."""
    waiting = asyncio.ensure_future(leaving.wait())
    await asyncio.wait([begun, waiting], return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    if begun.done():
        begun.result()
    elif not leaving.is_set():
        raise GatewayError(500, "the gateway did not begin")
