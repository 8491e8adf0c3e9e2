"""`python -m benchmarks.serving.soak`: a long test of all features at once, with every answer checked.

`msedge serve` over a folder of models, in a separate process. Clients send requests in all forms (JSON and binary,
chunked and gzip, one connection for many requests or one for each), with a label, a version or neither, and some
disconnect in the middle of a request. At the same time the versions of one model (y = version · x) are hot-swapped
every two seconds, both by load requests and by the server's polling of the folder; a tenth of its requests goes to the
canary; another model has a shadow; four more share memory for two under a limit. At the end the server gets SIGTERM
while requests are in flight. An answer is right if its numbers are, and if it comes from a version that was loaded
between sending and receiving.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import json
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from benchmarks.serving.client import Connection, Reply, Server, infer, outputs, request, serving
from benchmarks.serving.ledger import CANARY, STABLE, Ledger
from lite_runtime import bundle
from lite_runtime.errors import MsedgeError
from lite_runtime.graph import Array, Graph, Node, Value

__all__ = ["Figures", "main", "scaled", "soak"]

WIDTH, MOST = 16, 1000
"""The width of a row of x, and its largest integer: products with version numbers are exact."""
SLEEPY, PADDING = ("sleepy0", "sleepy1", "sleepy2", "sleepy3"), 1 << 19
KINDS = {"swap": 60, "shaded": 18, "deep": 18, "sleepy": 4}
"""Of a hundred requests, how many go to each model."""
LEAVERS = 0.03
"""Share of clients that disconnect at a random point of their request."""
ENDING = 0.5
"""Seconds of requests before SIGTERM, after a pause in which all activity must end."""
UNREAD = 0.05
"""A request sent at most so many seconds before SIGTERM may still be unread when the server closes idle connections."""


@dataclass
class Figures:
    """The results."""

    requests: int = 0
    seconds: float = 0.0
    swaps: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    unexplained: list[str] = field(default_factory=list)
    """Wrong answers, and failures for which there is no reason."""
    canary: list[int] = field(default_factory=lambda: [0, 0])
    """Answers to requests that named no version, while nothing was swapped: those of the canary, and all."""
    shadow: dict[str, Any] = field(default_factory=dict)
    evictions: int = 0
    memory: dict[str, int] = field(default_factory=dict)
    """Bytes of the server's memory at the start, after a fifth of the requests, and at their end."""
    sockets: tuple[int, int] = (0, 0)
    """Sockets of the server before the first request, and after all clients disconnected."""
    under_way: int = -1
    """Requests that the server reported as in flight at that time."""
    code: int = -1
    """Its exit code."""
    faults: str = ""
    """Tracebacks in its log."""

    @property
    def share(self) -> float:
        """The canary's share."""
        return self.canary[0] / max(1, self.canary[1])

    @property
    def problems(self) -> list[str]:
        """Violations of the gateway's guarantees."""
        band = 4 * (0.09 / max(1, self.canary[1])) ** 0.5
        checks = {
            f"{len(self.unexplained)} wrong or unexplained, such as {self.unexplained[:1]}": not self.unexplained,
            f"the canary's share is {self.share:.3f}": abs(self.share - 0.1) <= band + 0.005,
            f"the shadow: {self.shadow}": bool(self.shadow.get("compared")) and not self.shadow.get("failed"),
            "no model was unloaded to save memory": self.evictions > 0,
            f"memory grew: {self.memory}": self.memory["end"] <= 1.1 * self.memory["early"] + (16 << 20),
            f"{self.sockets[1]} sockets stayed open": self.sockets[1] <= self.sockets[0],
            f"{self.under_way} requests are still in flight": not self.under_way,
            f"the server exited with {self.code}": not self.code,
            f"the server logged {self.faults[:500]}": not self.faults,
        }
        return [text for text, holds in checks.items() if not holds]


def scaled(factor: float, padding: int = 0) -> bytes:
    """A model of y = factor · x, for rows."""
    ports = Value("x", "float32", ("n", WIDTH)), Value("y", "float32", ("n", WIDTH))
    graph = Graph((ports[0],), (ports[1],), (Node("Mul", ("x", "k"), ("y",)),), {"k": np.array([factor], np.float32)})
    return bundle.write(None, {"predict": graph}, metadata={"padding": "x" * padding})


def _deep() -> tuple[bytes, Array]:
    """y = (x A) B: the bundle and the product of A and B, with small integers, so that results are exact."""
    rng = np.random.default_rng(1)
    a, b = (rng.integers(-2, 3, shape).astype(np.float32) for shape in ((WIDTH, 256), (256, WIDTH)))
    ports = Value("x", "float32", ("n", WIDTH)), Value("y", "float32", ("n", WIDTH))
    nodes = Node("MatMul", ("x", "a"), ("h",)), Node("MatMul", ("h", "b"), ("y",))
    return bundle.write(None, {"predict": Graph((ports[0],), (ports[1],), nodes, {"a": a, "b": b})}), a @ b


def _put(path: Path, data: bytes) -> None:
    """Replace a file safely: write a temporary one, then rename it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}")
    beside.write_bytes(data)
    beside.rename(path)


class Asked(NamedTuple):
    """A request: its model, role or version, and input."""

    model: str
    role: str
    x: Array
    data: bytes
    keep: bool


class Soak:
    """The models, the clients, and the figures."""

    def __init__(self, root: Path, seed: int) -> None:
        self.root, self.random, self.ledger, self.figures = root, random.Random(seed), Ledger(), Figures()
        self.ended = float("inf")
        """When SIGTERM was sent."""
        self.left = 0
        """Number of requests still to send."""
        deep, self._product = _deep()
        _put(root / "deep.mslite", deep)
        for version, factor in ((1, 3.0), (2, 5.0)):
            _put(root / f"shaded/{version}/model.mslite", scaled(factor))
        _put(
            root / "shaded/config.toml",
            b'versions = [1, 2]\nlabels = {stable = 1}\nshadow = {version = "2", fraction = 0.2}\npinned = true\n',
        )
        for i, name in enumerate(SLEEPY):
            _put(root / f"{name}.mslite", scaled(10.0 + i, PADDING))
        self._write(1)
        self._write(2)
        self.ledger.loaded = {1: 0.0, 2: 0.0}

    def words(self) -> list[str]:
        """The server's configuration. A model is counted with about twice the size of its file."""
        cap = 2 * 5 * PADDING // 2
        return [
            str(self.root), "--threads", "1", "--repository-poll", "0.7", "--repository-memory", str(cap),
            "--repository-pinned", "deep",
        ]  # fmt: skip

    # -- versions that come and go -------------------------------------------------------------------------------------

    def _write(self, version: int) -> None:
        self.ledger.written[version] = perf_counter()
        _put(self.root / f"swap/{version}/model.mslite", scaled(version))
        config = f"""versions = {{latest = 2}}\nlabels = {{stable = {max(1, version - 1)}, canary = "latest"}}
split = {{stable = 0.9, canary = 0.1}}\npinned = true\n"""
        _put(self.root / "swap/config.toml", config.encode())
        for old in (self.root / "swap").glob("[0-9]*"):
            if int(old.name) < version - 3:
                (old / "model.mslite").unlink()
                old.rmdir()

    async def swap(self, port: int, every: float) -> None:
        """Hot-swap versions until cancelled."""
        connection = await Connection.open(port)
        try:
            while True:
                await asyncio.sleep(every)
                version = self.ledger.newest + 1
                self._write(version)
                reply = await connection.answer(request("/v2/repository/models/swap/load", b"{}"))
                self.ledger.loaded[version] = perf_counter()
                self.figures.swaps += 1
                if reply is None or reply.status != 200:
                    self.figures.unexplained.append(f"load of version {version}: {reply}"[:500])
        finally:
            connection.close()

    # -- clients -------------------------------------------------------------------------------------------------------

    def _ask(self) -> Asked:
        """A random request."""
        draw = self.random
        model = draw.choices(list(KINDS), list(KINDS.values()))[0]
        model = draw.choice(SLEEPY) if model == "sleepy" else model
        x = np.array([[draw.randint(-MOST, MOST) for _ in range(WIDTH)] for _ in range(draw.choice((1, 1, 1, 2, 5)))])
        x = x.astype(np.float32)
        body, fields = infer("x", x, binary=draw.random() < 0.5)
        path, role = f"/v2/models/{model}", ""
        if model == "swap" and draw.random() < 0.3:
            role = draw.choice((STABLE, CANARY, str(self.ledger.newest - draw.randrange(3))))
            if not role.isdecimal() and draw.random() < 0.5:
                fields["X-Msedge-Label"] = role
            else:
                path += f"/versions/{role}"
        if draw.random() < 0.1:
            fields["X-Request-ID"] = f"client-{draw.getrandbits(64):x}"
        if draw.random() < 0.1:
            body, fields["Content-Encoding"] = gzip.compress(body, 1), "gzip"
        if draw.random() < 0.1:
            fields["Accept-Encoding"] = "gzip"
        keep = draw.random() < 0.9
        if not keep:
            fields["Connection"] = "close"
        chunked = draw.random() < 0.1
        if chunked:
            fields["Transfer-Encoding"] = "chunked"
            cut = draw.randrange(1, len(body))
            body = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (body[:cut], body[cut:], b""))
        return Asked(model, role, x, request(f"{path}/infer", body, fields, length=not chunked), keep)

    async def client(self, port: int) -> None:
        """Send requests while some are left, or until the server stops listening."""
        connection: Connection | None = None
        while self.left > 0:
            self.left -= 1
            if connection is None or connection.lost:
                try:
                    connection = await Connection.open(port)
                except OSError as error:
                    self._note("refused once it had ended" if perf_counter() > self.ended else "", repr(error))
                    return
            asked = self._ask()
            self.figures.requests += 1
            if self.random.random() < LEAVERS:
                await self._leave(connection, asked)
                connection = None
                continue
            sent = perf_counter()
            reply = await connection.answer(asked.data)
            got = perf_counter()
            outcome = self._judged(asked, reply, sent, got)
            story = "" if outcome else f"sent {sent - self.ended:+.4f}, got {got - self.ended:+.4f}: {asked} {reply}"
            self._note(outcome, story[:1000])
            if not asked.keep:
                connection.close()
                connection = None
        if connection is not None:
            connection.close()

    async def _leave(self, connection: Connection, asked: Asked) -> None:
        """Disconnect at a random point of the request, or while it is being answered."""
        cut = self.random.randrange(1, 2 * len(asked.data))
        connection.ask(asked.data[:cut], lambda reply: None)
        if cut >= len(asked.data):
            await asyncio.sleep(self.random.random() * 2e-3)
        connection.reset() if self.random.random() < 0.5 else connection.close()
        self._note("left", "")

    def _note(self, outcome: str, otherwise: str) -> None:
        """Count an outcome; "" is one that must not happen."""
        if outcome:
            self.figures.outcomes[outcome] += 1
        else:
            self.figures.unexplained.append(otherwise)

    # -- what is right -------------------------------------------------------------------------------------------------

    def _judged(self, asked: Asked, reply: Reply | None, sent: float, got: float) -> str:
        """The name of an outcome; "" for an error."""
        if reply is None:
            if got < self.ended or sent < self.ended - UNREAD:
                return ""
            return "closed while draining, sent " + ("after SIGTERM" if sent >= self.ended else "just before SIGTERM")
        if reply.status == 200:
            return "right" if self._right(asked, reply, sent, got) else ""
        later = reply.field("retry-after") is not None
        if reply.status == 503 and later and b"shutting down" in reply.body:
            return "503 while draining" if got > self.ended else ""
        if reply.status == 503 and later and asked.model in SLEEPY:
            return "503 memory limit reached"
        numbered = asked.role.isdecimal() and not self.ledger.must(int(asked.role), sent, got)
        if numbered and (reply.status == 404 or (reply.status == 503 and b"being loaded" in reply.body)):
            return f"{reply.status} for a version not yet or no longer loaded"
        return ""

    def _right(self, asked: Asked, reply: Reply, sent: float, got: float) -> bool:
        body = gzip.decompress(reply.body) if reply.field("content-encoding") == "gzip" else reply.body
        document, y = outputs(body, reply.field("inference-header-content-length"))
        version = int(document["model_version"])
        if asked.model == "deep":
            return np.array_equal(y, asked.x @ self._product)
        if asked.model != "swap":
            factor = 3.0 if asked.model == "shaded" else 10.0 + SLEEPY.index(asked.model)
            return version == 1 and np.array_equal(y, asked.x * np.float32(factor))
        canary = self.ledger.settled(sent, got)
        if canary is not None and not asked.role:
            self.figures.canary[0] += version == canary
            self.figures.canary[1] += 1
        return self.ledger.may(version, asked.role, sent, got) and np.array_equal(y, asked.x * np.float32(version))


async def _run(soak: Soak, server: Server, requests: int, every: float, clients: int) -> None:
    """The whole test, up to SIGTERM and the last answer."""
    figures, port, begun = soak.figures, server.port, perf_counter()

    async def press(count: int) -> None:
        soak.left = count
        swapping = asyncio.create_task(soak.swap(port, every))
        await asyncio.gather(*(soak.client(port) for _ in range(clients)))
        swapping.cancel()
        await asyncio.wait([swapping])
        if not swapping.cancelled():
            swapping.result()

    figures.sockets = server.sockets, 0
    figures.memory["start"] = server.resident
    await press(requests // 5)
    figures.memory["early"] = server.resident
    await press(requests - requests // 5)
    figures.seconds = perf_counter() - begun
    figures.memory["end"] = server.resident
    await asyncio.sleep(1.0)
    figures.sockets = figures.sockets[0], server.sockets
    status = await asyncio.to_thread(lambda: server.status)
    figures.under_way = status["in_flight"]
    figures.shadow = next(m["shadow"] for m in status["models"] if m["shadow"] is not None) or {}

    def end() -> None:
        soak.ended = perf_counter()
        server.terminate()

    asyncio.get_running_loop().call_later(ENDING, end)
    soak.left = 1 << 60
    await asyncio.gather(*(soak.client(port) for _ in range(clients)))


def soak(requests: int, *, every: float = 2.0, clients: int = 32, seed: int = 0) -> Figures:
    """Start a server, load it, stop it. every: seconds between hot-swaps of versions."""
    with tempfile.TemporaryDirectory() as folder:
        made = Soak(Path(folder), seed)
        with serving(made.words()) as server:
            asyncio.run(_run(made, server, requests, every, clients))
            figures = made.figures
            figures.code, log = server.wait()
    figures.evictions = log.count("to save memory")
    at = max(log.find("Traceback"), log.find("internal server error"))
    figures.faults = log[at : at + 4000] if at >= 0 else ""
    return figures


def main(argv: Sequence[str] | None = None) -> int:
    """Run and print; exit code 1 if there are violations."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serving.soak", description=__doc__)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--every", type=float, default=2.0, help="seconds between hot-swaps of versions")
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write the figures there")
    args = parser.parse_args(argv)
    if args.requests < 100:
        raise MsedgeError(f"--requests: expected at least 100, got {args.requests}")
    found = soak(args.requests, every=args.every, clients=args.clients, seed=args.seed)
    print(f"{found.requests} requests in {found.seconds:.0f} s, {found.swaps} hot-swaps of versions")
    print("\n".join(f"  {count:7}  {outcome}" for outcome, count in found.outcomes.most_common()))
    print(f"canary {found.share:.4f} of {found.canary[1]}; shadow {found.shadow}; {found.evictions} evictions")
    print("memory, MiB: " + ", ".join(f"{when} {held >> 20}" for when, held in found.memory.items()))
    print(f"sockets before and after: {found.sockets}; exit code {found.code}")
    print("\n".join(["problems:", *found.problems]) if found.problems else "problems: none")
    if args.json:
        args.json.write_text(json.dumps({**vars(found), "problems": found.problems}, indent=1))
    return int(bool(found.problems))


if __name__ == "__main__":
    sys.exit(main())
