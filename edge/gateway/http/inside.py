"""A gateway in a thread of a process that also does other things: for the demo and tests."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from edge.gateway.gateway import Gateway
from edge.gateway.http.server import HttpServer
from edge.gateway.operate.logs import Log
from edge.gateway.operate.settings import Settings

__all__ = ["Running", "running"]


class Running(NamedTuple):
    """A listening gateway; the other objects may be used only on the thread of `loop`."""

    address: str
    port: int
    gateway: Gateway
    server: HttpServer
    loop: asyncio.AbstractEventLoop


@contextmanager
def running(settings: Settings, log: Log | None = None) -> Iterator[Running]:
    """Serve in a thread until the block ends. Raises the exceptions of starting and stopping."""
    begun = threading.Event()
    found: list[tuple[Running, asyncio.Event]] = []
    failures: list[BaseException] = []

    async def serve() -> None:
        gateway = Gateway(settings, log)
        server = HttpServer(gateway)
        host, port = await server.start(settings.host, settings.port)
        stop = asyncio.Event()
        try:
            await gateway.start()
            there = Running(f"http://{host}:{port}", port, gateway, server, asyncio.get_running_loop())
            found.append((there, stop))
            begun.set()
            await stop.wait()
        finally:
            await server.stop()
            await gateway.stop()

    def body() -> None:
        try:
            asyncio.run(serve())
        except BaseException as error:  # thread: passed on to the caller
            failures.append(error)
        finally:
            begun.set()

    thread = threading.Thread(target=body, name="gateway")
    thread.start()
    begun.wait()
    if failures:
        raise failures[0]
    there, stop = found[0]
    try:
        yield there
    finally:
        there.loop.call_soon_threadsafe(stop.set)
        thread.join()
    if failures:
        raise failures[0]
