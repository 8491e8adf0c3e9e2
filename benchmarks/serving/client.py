"""`msedge serve` as a separate process, and an HTTP client on raw bytes that is fast enough to load it fully."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from lite_runtime.errors import MsedgeError
from lite_runtime.graph import Array

__all__ = ["Connection", "Reply", "Server", "infer", "outputs", "request", "serving"]

STARTING = 60.0
"""Seconds a server may take until it prints its address."""
_ADDRESS = re.compile(r'"address": "http://[^"]*:(\d+)"')
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.I)


class Reply(NamedTuple):
    """A response. `head`: the status line and header fields, unparsed."""

    status: int
    head: bytes
    body: bytes

    def field(self, name: str) -> str | None:
        """A header field's value."""
        found = re.search(rb"\r\n" + re.escape(name.encode()) + rb": *([^\r]*)", self.head, re.I)
        return found[1].decode("latin-1") if found is not None else None


class Connection(asyncio.Protocol):
    """A connection for sequential requests."""

    def __init__(self) -> None:
        self.served = 0
        """Number of replies received."""
        self.lost = False
        self._came, self._head, self._end = bytearray(), b"", 0
        self._done: Callable[[Reply | None], None] | None = None

    @classmethod
    async def open(cls, port: int) -> Connection:
        """Raises OSError."""
        loop = asyncio.get_running_loop()
        return (await loop.create_connection(cls, "127.0.0.1", port))[1]

    def ask(self, data: bytes, done: Callable[[Reply | None], None]) -> None:
        """Send a request; `done` gets its reply, or None if the server closed without one."""
        assert self._done is None
        self._done = done
        if self.lost:
            self.connection_lost(None)
        else:
            self.transport.write(data)

    async def answer(self, data: bytes) -> Reply | None:
        """The same, as a coroutine."""
        future: asyncio.Future[Reply | None] = asyncio.get_running_loop().create_future()
        self.ask(data, lambda reply: None if future.done() else future.set_result(reply))
        return await future

    def close(self) -> None:
        """Close the connection as well-behaved clients do."""
        self.transport.close()

    def reset(self) -> None:
        """Abort the connection, as when a client crashes."""
        self.transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        self._came += data
        if not self._head:
            end = self._came.find(b"\r\n\r\n") + 4
            if end < 4:
                return
            self._head = bytes(self._came[:end])
            length = _LENGTH.search(self._head)
            self._end = end + (int(length[1]) if length is not None else 0)
        if len(self._came) < self._end:
            return
        reply = Reply(int(self._head[9:12]), self._head, bytes(self._came[len(self._head) : self._end]))
        if self._done is None or len(self._came) > self._end:
            raise MsedgeError(f"the server sent more than one reply to a request: {bytes(self._came[:300])!r}")
        done, self._done, self._head = self._done, None, b""
        self._came.clear()
        self.served += 1
        done(reply)

    def connection_lost(self, error: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        self.lost = True
        done, self._done = self._done, None
        if done is not None:
            done(None)


def request(
    path: str, body: bytes, fields: Mapping[str, str | int] | None = None, *, method: str = "POST", length: bool = True
) -> bytes:
    """The bytes of a request; without `length` the header fields say how its body is framed."""
    told: dict[str, str | int] = {"Host": "127.0.0.1", **(fields or {})}
    if length:
        told["Content-Length"] = len(body)
    lines = "".join(f"{name}: {value}\r\n" for name, value in told.items())
    return f"{method} {path} HTTP/1.1\r\n{lines}\r\n".encode("latin-1") + body


def infer(name: str, x: Array, *, binary: bool = True, **more: Any) -> tuple[bytes, dict[str, str | int]]:
    """Body and header fields of an inference request with float32 rows; more: further members of the request's JSON."""
    tensor: dict[str, Any] = {"name": name, "shape": list(x.shape), "datatype": "FP32"}
    if not binary:
        return json.dumps({"inputs": [{**tensor, "data": x.ravel().tolist()}], **more}).encode(), {}
    tensor["parameters"] = {"binary_data_size": x.nbytes}
    more = {**more, "parameters": {"binary_data_output": True, **more.get("parameters", {})}}
    head = json.dumps({"inputs": [tensor], **more}).encode()
    return head + x.tobytes(), {"Inference-Header-Content-Length": len(head)}


def outputs(body: bytes, header: str | None) -> tuple[dict[str, Any], Array]:
    """A reply's JSON and its one float32 output. header: its Inference-Header-Content-Length."""
    if header is None:
        found = json.loads(body)
        (output,) = found["outputs"]
        return found, np.array(output["data"], np.float32).reshape(output["shape"])
    found = json.loads(body[: int(header)])
    (output,) = found["outputs"]
    return found, np.frombuffer(body, np.float32, offset=int(header)).reshape(output["shape"])


class Server:
    """A running server. `port`: where it listens on 127.0.0.1."""

    def __init__(self, process: subprocess.Popen[str], port: int, told: list[str], listener: threading.Thread) -> None:
        self.process, self.port = process, port
        self._told, self._listener = told, listener

    @property
    def resident(self) -> int:
        """Its resident memory in bytes."""
        with open(f"/proc/{self.process.pid}/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    @property
    def seconds(self) -> float:
        """Seconds of CPU time it has used."""
        with open(f"/proc/{self.process.pid}/stat", encoding="ascii") as file:
            words = file.read().rpartition(")")[2].split()
        return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")

    @property
    def sockets(self) -> int:
        """Number of its open sockets."""
        folder, found = f"/proc/{self.process.pid}/fd", 0
        for name in os.listdir(folder):
            with contextlib.suppress(OSError):
                found += os.readlink(f"{folder}/{name}").startswith("socket:")
        return found

    @property
    def status(self) -> dict[str, Any]:
        """/status.json."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/status.json", timeout=30) as reply:
            found: dict[str, Any] = json.load(reply)
        return found

    def terminate(self) -> None:
        """SIGTERM."""
        self.process.send_signal(signal.SIGTERM)

    def wait(self, seconds: float = 60.0) -> tuple[int, str]:
        """Its exit code and everything it wrote to stderr, after it has ended."""
        code = self.process.wait(seconds)
        self._listener.join(5.0)
        return code, "".join(self._told)


@contextlib.contextmanager
def serving(words: Sequence[str]) -> Iterator[Server]:
    """Run `msedge serve` with these arguments; the block starts when it is ready, and it is ended after the block.

    Raises MsedgeError if it does not start.
    """
    command = [sys.executable, "-m", "edge.cli", "serve", *words, "--port", "0", "--json"]
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "NO_COLOR": "1", "PYTHONPATH": os.pathsep.join([os.getcwd(), *sys.path])}
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder, env=environment
        )
        assert process.stdout is not None and process.stderr is not None
        told: list[str] = []
        listener = threading.Thread(target=told.extend, args=(process.stderr,), daemon=True)
        listener.start()
        late = threading.Timer(STARTING, process.kill)
        late.start()
        try:
            address = next(filter(None, map(_ADDRESS.search, process.stdout)), None)
            late.cancel()
            if address is None:
                process.wait()
                listener.join(5.0)
                raise MsedgeError(f"msedge serve {' '.join(words)} did not start: {''.join(told)[-2000:]}")
            yield Server(process, int(address[1]), told, listener)
        finally:
            late.cancel()
            if process.poll() is None:
                process.kill()
                process.wait()
            listener.join(5.0)
            process.stdout.close()
            process.stderr.close()
