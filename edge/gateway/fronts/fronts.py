"""The fronts of a gateway: their sockets, their beginning and end, and what they ask."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import ssl
import subprocess
import sys
import tempfile
from collections.abc import Coroutine
from dataclasses import asdict
from functools import partial
from typing import Any

import orjson

from edge.gateway.errors import GatewayError
from edge.gateway.exchange import Answer, Ask
from edge.gateway.fronts.channel import ANSWER, ASK, CANCEL, LEAVE, LEFT, SLACK, Channel, make_memory, map_memory
from edge.gateway.gateway import Gateway
from edge.gateway.http.server import HttpServer

__all__ = ["Counter", "Fronts"]

AGAIN = 1.0
"""Seconds until a front that ended is started again, where it did not live any longer."""
PATIENCE = 2.0
"""Seconds that a front has to end, once it was told that nobody computes any more."""


class Counter:
    """What one front asks, put before the gateway."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._asked: dict[int, Any] = {}
        self.channel: Channel | None = None
        self.left = False
        """Whether it takes no more connections, and all its clients were answered."""

    def take(self, kind: int, number: int, text: bytes, payload: bytes) -> None:
        """A message came. Raises ValueError for one that cannot be."""
        if kind == ASK and number not in self._asked:
            self._asked[number] = None
            cancel = self._gateway.infer(_ask(text, payload), partial(self._reply, number))
            if number in self._asked:
                self._asked[number] = cancel
        elif kind == CANCEL:
            cancel = self._asked.pop(number, None)
            if cancel is not None:
                cancel()
        elif kind == LEFT:
            self.left = True
        else:
            raise ValueError(f"no such message: {kind}, request {number}")

    def gone(self) -> None:
        """The front has ended, and its clients with it."""
        asked, self._asked = self._asked, {}
        for cancel in asked.values():
            cancel()

    def _reply(self, number: int, answer: Answer) -> None:
        del self._asked[number]
        assert self.channel is not None
        status, parts, length, fields = answer
        self.channel.send(ANSWER, number, orjson.dumps((status, length, fields)), parts)


def _ask(text: bytes, payload: bytes) -> Ask:
    """Raises ValueError."""
    found = orjson.loads(text)
    if type(found) is not list or [type(x) for x in found] != [str, str, dict, str]:
        raise ValueError("expected a model, a version, fields and an address")
    model, version, fields, peer = found
    if any(type(value) is not str for value in fields.values()):
        raise ValueError("expected fields to be texts")
    return Ask(model, version, fields, memoryview(payload), peer)


class Fronts:
    """In the place of `http.server.HttpServer`, where `workers` are more than one: as many processes that read, this
    one to compute. All methods on the event loop.

    Every front has listening sockets of its own (SO_REUSEPORT), between which the kernel deals out connections. They
    are kept open here, so that those of a front that died wait for the next. Whatever is no inference of the plain
    shape is passed on, byte by byte, to an HTTP server of this process at a Unix socket.
    """

    def __init__(self, gateway: Gateway) -> None:
        self._gateway, self._settings = gateway, gateway.settings
        self._behind = HttpServer(gateway)
        self._sockets: list[list[socket.socket]] = []
        self._fronts: dict[int, _Front] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._leaving = False
        self._folder = ""

    async def start(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> tuple[str, int]:
        """Listen; the address. tls: the fronts have contexts of their own. Raises GatewayError for an address that
        cannot be had."""
        self._sockets = _listening(host, port, self._settings.workers)
        self._folder = tempfile.mkdtemp(prefix="msedge-")  # nobody else may enter
        self._path = os.path.join(self._folder, "http")
        await self._behind.start_behind(self._path)
        for place in range(self._settings.workers):
            await self._begin(place)
        name = self._sockets[0][0].getsockname()
        return name[0], name[1]

    async def drain(self, seconds: float) -> bool:
        """Take no more connections, answer what is under way, close the rest; whether all was answered in time."""
        self._leaving = True
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        self._close_sockets()
        for front in self._fronts.values():
            front.channel.send(LEAVE, 0)
        answered = await self._behind.drain(seconds)
        while not self._left and loop.time() < end:
            await asyncio.sleep(0.01)
        return answered and self._left

    async def stop(self) -> None:
        """End every front, and close every connection."""
        self._leaving = True
        self._close_sockets()
        for front in self._fronts.values():
            front.channel.close()
        while self._fronts or self._tasks:
            await asyncio.sleep(0.01)
        await self._behind.stop()
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def _left(self) -> bool:
        """Whether no front owes anybody an answer."""
        return not self._gateway.under_way and all(front.counter.left for front in self._fronts.values())

    @property
    def processes(self) -> list[int]:
        """Of the fronts."""
        return [front.process.pid for front in self._fronts.values()]

    async def _begin(self, place: int) -> None:
        """Start a front."""
        ours, theirs = socket.socketpair()
        memory, loop = make_memory(), asyncio.get_running_loop()
        config = self._config(theirs.fileno(), memory, self._sockets[place])
        try:
            process = subprocess.Popen(
                [sys.executable, "-m", "edge.gateway.fronts.front", orjson.dumps(config).decode()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(config["channel"], config["memory"], *config["sockets"]),
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )
        except BaseException:
            os.close(memory)
            ours.close()
            raise
        finally:
            theirs.close()
        counter = Counter(self._gateway)
        there, back = map_memory(memory)
        most = self._settings.limits.body + SLACK
        counter.channel = channel = Channel(back, there, counter.take, lambda: self._ended(place), most=most)
        self._fronts[place] = _Front(process, channel, counter, loop.time())
        ours.setblocking(False)
        await loop.create_unix_connection(lambda: channel, sock=ours)
        if self._leaving:
            channel.send(LEAVE, 0)

    def _config(self, channel: int, memory: int, sockets: list[socket.socket]) -> dict[str, Any]:
        """What a front is told. Of connections each may have its part."""
        settings = self._settings
        limits = asdict(settings.limits)
        limits["connections"] = -(-limits["connections"] // settings.workers)
        return {
            "channel": channel,
            "memory": memory,
            "sockets": [found.fileno() for found in sockets],
            "path": self._path,
            "limits": limits,
            "tls": asdict(settings.tls),
        }

    def _ended(self, place: int) -> None:
        """A front has closed its end, or this one did."""
        front = self._fronts.pop(place)
        front.counter.gone()
        front.counter.channel = None  # nothing refers to itself: the shared memory is given back at once
        self._do(self._bury(front, place))

    async def _bury(self, front: _Front, place: int) -> None:
        loop = asyncio.get_running_loop()
        code = await loop.run_in_executor(None, _end, front.process, PATIENCE if self._leaving else 0.0)
        if self._leaving:
            return
        self._gateway.log.event("warning", "a front ended and is started again", process=front.process.pid, code=code)
        loop.call_later(max(0.0, front.begun + AGAIN - loop.time()), self._again, place)

    def _again(self, place: int) -> None:
        self._do(self._restart(place))

    async def _restart(self, place: int) -> None:
        if self._leaving:
            return
        try:
            await self._begin(place)
        except OSError as error:
            self._gateway.log.event("error", "a front cannot be started", reason=str(error))
            asyncio.get_running_loop().call_later(AGAIN, self._again, place)

    def _do(self, way: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(way)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _close_sockets(self) -> None:
        for of_front in self._sockets:
            for found in of_front:
                found.close()


class _Front:
    """A process, and what leads to it. `begun`: by the loop's clock."""

    __slots__ = ("begun", "channel", "counter", "process")

    def __init__(self, process: subprocess.Popen[bytes], channel: Channel, counter: Counter, begun: float) -> None:
        self.process, self.channel, self.counter, self.begun = process, channel, counter, begun


def _end(process: subprocess.Popen[bytes], patience: float) -> int:
    """See that a process ends, within seconds; its exit code."""
    try:
        return process.wait(patience)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def _listening(host: str, port: int, count: int) -> list[list[socket.socket]]:
    """For each of `count` fronts a socket at every address of the host, all at one port. Raises GatewayError."""
    made: list[list[socket.socket]] = [[] for _ in range(count)]
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, _, _, _, address in dict.fromkeys(found):
            with _socket(family) as alone:  # one that listens there already would share with us
                alone.bind((address[0], port, *address[2:]))
                port = alone.getsockname()[1]
            for sockets in made:
                sockets.append(_socket(family))
                sockets[-1].setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
                sockets[-1].bind((address[0], port, *address[2:]))
        for sockets in made:
            for each in sockets:
                each.listen(1024)
    except (OSError, UnicodeError) as error:
        for sockets in made:
            for each in sockets:
                each.close()
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise GatewayError(500, f"cannot listen at {host}:{port}: {why}; choose another --port or --host") from None
    return made


def _socket(family: int) -> socket.socket:
    made = socket.socket(family, socket.SOCK_STREAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if family == socket.AF_INET6:
        made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    made.setblocking(False)
    return made
