"""`python -m benchmarks.serving.siege [--seconds 60] [--memory 512]`: the gateway under all attacks at once.

`msedge serve` runs in a control group with that many MiB of memory, if this user may create one. Attackers, in a
process of their own and without valid tokens unless said, keep up

    stalled    bodies of 64 MiB that stop after their first piece, from several addresses
    holding    the same with a valid token: bodies that arrive too slowly
    deaf       valid requests for large replies that are never read
    crumbs     bodies in chunks of one byte
    idle       connections that say nothing, more than the limit
    guesses    wrong tokens, from the address of the good clients too

while the versions of a model are replaced every second, a registry stops answering, and good clients send requests
whose answers are checked. Health is asked ten times a second. At the end the server gets SIGTERM under load.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import http.server
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.serving.client import Connection, Reply, infer, outputs, request
from benchmarks.serving.soak import WIDTH, scaled
from edge.gateway.access import tokens
from lite_runtime.graph import Array

__all__ = ["Siege", "main"]

GROUP = Path("/sys/fs/cgroup/memory")
STALLED, HOLDING, DEAF, CRUMBS, IDLE, GUESSES = 20, 8, 8, 2, 5000, 4
"""How many attackers of each kind there are at once."""
GOOD = 16
"""Good clients, each with one request at a time and a pause of PAUSE seconds after it."""
PAUSE = 0.02


@dataclass
class Siege:
    """The results. Times in seconds, memory in MiB."""

    limit: int = 0
    good: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    wrong: int = 0
    swaps: int = 0
    health: list[float] = field(default_factory=list)
    unhealthy: int = 0
    largest: float = 0.0
    exit_code: int = 0
    evicted: dict[str, float] = field(default_factory=dict)
    refused: dict[str, int] = field(default_factory=dict)

    def summary(self) -> dict[str, Any]:
        """The figures that count."""
        asked = self.good + sum(self.failed.values())
        known = sorted(self.health) or [0.0]
        return {
            **{key: value for key, value in vars(self).items() if key != "health"},
            "success": self.good / max(1, asked),
            "health_p99_ms": round(1000 * known[int(0.99 * (len(known) - 1))], 1),
            "health_max_ms": round(1000 * known[-1], 1),
            "healthy": len(self.health),
        }


def main(given: Sequence[str] | None = None) -> int:
    """Run the siege and print its figures as JSON; 0 if the gateway held."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serving.siege", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--memory", type=int, default=512, help="MiB")
    parser.add_argument("--attack", nargs=2, metavar=("PORT", "TOKEN"), help=argparse.SUPPRESS)
    words = parser.parse_args(given)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if words.attack:
        asyncio.run(attack(int(words.attack[0]), words.attack[1]))
        return 0
    found = asyncio.run(siege(words.seconds, words.memory)).summary()
    print(json.dumps(found, indent=2))
    held = found["success"] >= 0.999 and found["health_p99_ms"] <= 100 and not found["wrong"] and not found["unhealthy"]
    return 0 if held and found["exit_code"] in (0, 1) else 1


async def siege(seconds: float, memory: int) -> Siege:
    """The whole siege."""
    found = Siege(limit=memory)
    with tempfile.TemporaryDirectory() as folder, _registry() as registry, contextlib.ExitStack() as stack:
        place = Path(folder)
        for version in (1, 2):
            _publish(place, version)
        shown = tokens.add(place / "tokens.json", "good", ["infer", "manage", "metrics"])
        port = _free_port()
        process = stack.enter_context(_serving(place, registry.url, port, memory))
        await _until_ready(port)
        attackers = subprocess.Popen([sys.executable, "-m", __spec__.name, "--attack", str(port), shown])
        stack.callback(attackers.wait)
        stack.callback(attackers.kill)
        stop = asyncio.Event()
        jobs = [asyncio.create_task(_good(found, port, shown, stop, seed)) for seed in range(GOOD)]
        jobs += [asyncio.create_task(each(found, place, port, process.pid, stop)) for each in (_swap, _health, _watch)]
        await asyncio.sleep(seconds / 2)
        registry.stop()
        await asyncio.sleep(seconds / 2)
        await _account(found, port, shown)
        stop.set()
        await asyncio.gather(*jobs)
        process.send_signal(signal.SIGTERM)
        found.exit_code = await asyncio.to_thread(process.wait, 60)
    return found


# -- the server --------------------------------------------------------------------------------------------------------


def _publish(place: Path, version: int) -> None:
    target = place / "models" / "m" / str(version)
    target.mkdir(parents=True, exist_ok=True)
    (target / ".new").write_bytes(scaled(float(version)))
    (target / ".new").rename(target / "model.mslite")


@contextlib.contextmanager
def _serving(place: Path, registry: str, port: int, memory: int) -> Any:
    program = [
        sys.executable, "-m", "edge.cli", "serve", str(place / "models"), registry, "--port", str(port),
        "--access-tokens", str(place / "tokens.json"), "--access-management", "token", "--repository-poll", "0.5",
        "--repository-cache", str(place / "cache"), "--drain", "5",
    ]  # fmt: skip
    group = _group(memory)

    def enter() -> None:
        if group is not None:
            (group / "cgroup.procs").write_text(str(os.getpid()))

    with open(place / "log", "wb") as log, subprocess.Popen(program, stderr=log, preexec_fn=enter) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()
            if group is not None:
                with contextlib.suppress(OSError):
                    group.rmdir()


def _group(memory: int) -> Path | None:
    """A new control group with that limit; None if this user may not create one."""
    group = GROUP / f"msedge-siege-{os.getpid()}"
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text(str(memory << 20))
    except OSError:
        print("no control group: the limit is not enforced", file=sys.stderr)
        return None
    return group


class _Registry(http.server.ThreadingHTTPServer):
    """An empty registry; after `stop`, it accepts connections and says nothing."""

    silent = False

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/index.json"

    def stop(self) -> None:
        self.silent = True


@contextlib.contextmanager
def _registry() -> Any:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if server.silent:
                time.sleep(30)
                return
            body = b'{"models": []}'
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *given: Any) -> None:
            return

    with _Registry(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


async def _until_ready(port: int) -> None:
    for _ in range(600):
        with contextlib.suppress(OSError):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET /v2/health/ready HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
            if b" 200 " in await reader.readline():
                writer.close()
                return
            writer.close()
        await asyncio.sleep(0.2)
    raise TimeoutError("the server was not ready within two minutes")


# -- the good ones -----------------------------------------------------------------------------------------------------


async def _good(found: Siege, port: int, shown: str, stop: asyncio.Event, seed: int) -> None:
    """A client that behaves: every answer is checked."""
    rng, connection = np.random.default_rng(seed), None
    while not stop.is_set():
        rows = int(rng.integers(1, 9)) * (200 if rng.random() < 0.05 else 1)
        x = rng.integers(-1000, 1000, (rows, WIDTH)).astype(np.float32)
        body, fields = infer("x", x)
        data = request("/v2/models/m/infer", body, {**fields, "Authorization": f"Bearer {shown}"})
        reply, why = None, ""
        for _ in range(2):  # as HTTP libraries do: a kept connection that the server has closed is opened again
            try:
                async with asyncio.timeout(30):
                    connection = connection or await Connection.open(port)
                    reply = await connection.answer(data)
            except (OSError, TimeoutError) as error:
                why = type(error).__name__
            if reply is not None:
                break
            connection = None
        if reply is not None and reply.status == 200:
            found.good += 1
            found.wrong += not _right(reply, x)
        else:
            found.failed[why or "closed" if reply is None else str(reply.status)] += 1
        await asyncio.sleep(PAUSE)
    if connection is not None:
        connection.close()


def _right(reply: Reply, x: Array) -> bool:
    about, y = outputs(reply.body, reply.field("Inference-Header-Content-Length"))
    return bool(np.array_equal(y.reshape(x.shape), x * int(about["model_version"])))


async def _swap(found: Siege, place: Path, port: int, pid: int, stop: asyncio.Event) -> None:
    """Publish a new version every second."""
    version = 2
    while not stop.is_set():
        await asyncio.sleep(1)
        version += 1
        await asyncio.to_thread(_publish, place, version)
        found.swaps += 1


async def _health(found: Siege, place: Path, port: int, pid: int, stop: asyncio.Event) -> None:
    """Ask for the server's health ten times a second, each time over a new connection, as orchestrators do."""
    while not stop.is_set():
        begun = time.perf_counter()
        try:
            async with asyncio.timeout(10):
                reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=("127.0.0.9", 0))
                writer.write(b"GET /v2/health/live HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
                healthy = b" 200 " in await reader.readline()
                writer.close()
        except (OSError, TimeoutError):
            healthy = False
        if healthy:
            found.health.append(time.perf_counter() - begun)
        else:
            found.unhealthy += 1
        await asyncio.sleep(0.1)


async def _watch(found: Siege, place: Path, port: int, pid: int, stop: asyncio.Event) -> None:
    """The largest resident memory."""
    while not stop.is_set():
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        found.largest = max(found.largest, round(pages * resource.getpagesize() / 2**20, 1))
        await asyncio.sleep(0.1)


async def _account(found: Siege, port: int, shown: str) -> None:
    """Who gave way, and who was refused, by the server's own metrics."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"GET /metrics HTTP/1.1\r\nHost: a\r\nConnection: close\r\nAuthorization: Bearer {shown}\r\n\r\n"
    writer.write(head.encode())
    for line in (await reader.read()).decode().splitlines():
        name, _, value = line.rpartition(" ")
        if name.startswith("msedge_evicted_total{"):
            found.evicted[name.split('"')[1]] = float(value)
        elif name.startswith("msedge_refused_total{"):
            found.refused[name[21:-1]] = int(float(value))
    writer.close()


# -- the attackers -----------------------------------------------------------------------------------------------------

Attacker = Callable[[int, str, str], Awaitable[None]]


async def attack(port: int, shown: str) -> None:
    """All attackers, until the process is ended."""
    kinds: list[tuple[Attacker, int, str]] = [
        (_stalled, STALLED, ""), (_stalled, HOLDING, shown), (_deaf, DEAF, shown), (_crumbs, CRUMBS, shown),
        (_idle, 1, ""), (_guess, GUESSES, ""),
    ]  # fmt: skip
    await asyncio.gather(*(
        _for_ever(kind, port, token, f"127.0.{at}.{i + 1}")
        for at, (kind, count, token) in enumerate(kinds, 1) for i in range(count)
    ))  # fmt: skip


async def _for_ever(kind: Attacker, port: int, shown: str, address: str) -> None:
    while True:
        with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
            await kind(port, shown, address)
        await asyncio.sleep(0.05)


def _head(shown: str, *lines: str) -> bytes:
    told = [*lines, *([f"Authorization: Bearer {shown}"] if shown else [])]
    return "\r\n".join(("POST /v2/models/m/infer HTTP/1.1", "Host: a", *told, "", "")).encode()


async def _stalled(port: int, shown: str, address: str) -> None:
    """A body of 64 MiB: a MiB of it at once, then nothing more."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(address, 0))
    size = 64 << 20 if not shown else 16 << 20
    writer.write(_head(shown, f"Content-Length: {size}", "Inference-Header-Content-Length: 0"))
    writer.write(bytes(1 << 20))
    await asyncio.wait_for(reader.read(1), 60)
    writer.close()


async def _deaf(port: int, shown: str, address: str) -> None:
    """A request for 4 MiB that is never read."""
    _, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(address, 0), limit=1 << 10)
    x = np.zeros((4000, WIDTH), np.float32)
    head = {"inputs": [{"name": "x", "shape": list(x.shape), "datatype": "FP32",
                        "parameters": {"binary_data_size": x.nbytes}}]}  # fmt: skip
    words = json.dumps(head).encode()
    lines = (f"Content-Length: {len(words) + x.nbytes}", f"Inference-Header-Content-Length: {len(words)}")
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    for _ in range(16):
        writer.write(_head(shown, *lines) + words + x.tobytes())
        await asyncio.sleep(0.1)
    await asyncio.sleep(20)
    writer.close()


async def _crumbs(port: int, shown: str, address: str) -> None:
    """A body in chunks of one byte."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(address, 0))
    writer.write(_head(shown, "Transfer-Encoding: chunked"))
    for _ in range(100):
        writer.write(b"1\r\n \r\n" * 10_000)
        await writer.drain()
    await asyncio.wait_for(reader.read(1), 5)
    writer.close()


async def _idle(port: int, shown: str, address: str) -> None:
    """More connections than the server allows, from many addresses, which say nothing for ten seconds."""
    opened = []
    for i in range(IDLE):
        with contextlib.suppress(OSError):
            opened.append(await asyncio.open_connection(
                "127.0.0.1", port, local_addr=(f"127.1.{i % 200}.{1 + i // 200}", 0)
            ))  # fmt: skip
        if i % 50 == 0:
            await asyncio.sleep(0.01)
    await asyncio.sleep(10)
    for _, writer in opened:
        writer.close()


async def _guess(port: int, shown: str, address: str) -> None:
    """A wrong token, from the good clients' own address."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(_head(f"msedge_{os.urandom(6).hex()}_guess", "Content-Length: 2") + b"{}")
    await asyncio.wait_for(reader.readline(), 5)
    writer.close()


if __name__ == "__main__":
    sys.exit(main())
