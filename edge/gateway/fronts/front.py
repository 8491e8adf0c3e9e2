"""A front: a process that accepts connections, reads requests, and writes replies. `fronts` starts it.

It has one thread and no models. The process that computes tells it to end; without that one it ends by itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import socket
import sys
from typing import Any

import orjson

from edge.gateway.errors import GatewayError
from edge.gateway.fronts.channel import LEFT, SLACK, Channel, map_memory
from edge.gateway.fronts.desk import RemoteDesk
from edge.gateway.fronts.splice import Splice
from edge.gateway.http.lane import Lanes
from edge.gateway.operate.settings import Limits, Tls
from edge.gateway.operate.tls import Certificates
from edge.gateway.protocol.numbers import prepare

__all__ = ["Front", "main"]

SWEEP = 1.0
"""Seconds between looks for silent clients, and for new certificates."""
BACKLOG = 1024
GRACE = 0.5
"""Seconds that clients have to read their last replies once nobody computes any more."""


class Front:
    """What the process does; `config` is what `fronts.Fronts` wrote."""

    def __init__(self, config: dict[str, Any]) -> None:
        self._config = config
        self._limits, tls = Limits(**config["limits"]), Tls(**config["tls"])
        self._certificates = Certificates(tls) if tls.certificate else None
        self._leaving, self._lost = asyncio.Event(), asyncio.Event()
        self._spliced: set[Splice] = set()

    async def run(self) -> None:
        """Serve until told to end, or left alone."""
        loop, config = asyncio.get_running_loop(), self._config
        desk = RemoteDesk(self._limits, self._leaving.set)
        there, back = map_memory(config["memory"])
        desk.channel = channel = Channel(there, back, desk.take, self._end, most=self._limits.reply + SLACK)
        await loop.create_unix_connection(lambda: channel, sock=socket.socket(fileno=config["channel"]))
        self._lanes = Lanes(desk, self._limits, self._pass_on, lambda: len(self._spliced))
        context = self._certificates.context if self._certificates is not None else None
        servers = [
            await loop.create_server(self._lanes, sock=socket.socket(fileno=number), ssl=context, backlog=BACKLOG)
            for number in config["sockets"]
        ]
        sweeper = loop.create_task(self._sweep())
        gc.collect()
        gc.freeze()
        await self._leaving.wait()
        for server in servers:
            server.close()
        await self._leave(desk, channel)
        sweeper.cancel()

    def _end(self) -> None:
        """Nobody computes any more: nothing can be answered."""
        self._lost.set()
        self._leaving.set()

    def _pass_on(self, peer: str) -> asyncio.Protocol:
        return Splice(self._config["path"], peer, self._spliced)

    async def _leave(self, desk: RemoteDesk, channel: Channel) -> None:
        """Let what is under way be answered, say so, and serve who is late until nobody computes any more."""
        self._lanes.leave()
        while desk.busy and not self._lost.is_set():
            await asyncio.sleep(0.01)
        channel.send(LEFT, 0)
        await self._lost.wait()
        end = asyncio.get_running_loop().time() + GRACE
        while (self._lanes.open or self._spliced) and asyncio.get_running_loop().time() < end:
            await asyncio.sleep(0.01)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP)
            self._lanes.sweep(SWEEP)
            if self._certificates is not None:
                with contextlib.suppress(GatewayError):  # the process that computes looks too, and has a log
                    self._certificates.refresh()


async def _serve(config: dict[str, Any]) -> None:
    prepare()
    await Front(config).run()


def main() -> None:
    """Be a front, as the one argument says."""
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, signal.SIG_IGN)  # who ends it is the process that computes, once all is answered
    asyncio.run(_serve(orjson.loads(sys.argv[1])))
    sys.stderr.flush()
    os._exit(0)  # connections that are still open end with the process


if __name__ == "__main__":
    main()
