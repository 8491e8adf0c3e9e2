"""`python -m benchmarks.serving.overload`: a gateway under three times the load that it can handle.

For each model: `msedge serve` in a separate process; its capacity, measured by clients that wait for each reply before
the next request; then an open-loop Poisson arrival process, with a deadline for each request; then capacity again,
because a machine's speed varies. Every answer is compared with ONNX Runtime's.

A request counts as accepted unless it was refused with 429 or 503; one that was accepted and then answered with 504 is
a failure of the gateway, and counts among the accepted ones with its whole time. The client shares the machine with the
server: its CPU use, and how late it sent requests by its own clock, are in the table.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import json
import random
import sys
import tempfile
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import perf_counter, process_time
from typing import Any, NamedTuple

import numpy as np

from benchmarks.serving.client import Connection, Reply, Server, infer, outputs, request, serving
from lite_runtime.errors import MsedgeError
from lite_runtime.graph import Array

__all__ = [
    "CONNECTIONS",
    "MODELS",
    "SAMPLES",
    "Figures",
    "Flood",
    "Plan",
    "Questions",
    "Subject",
    "main",
    "measure",
    "served",
]

SAMPLES = 16
"""Number of different requests for a model."""
AGREE = 1e-3
"""Allowed difference of answers from ONNX Runtime's, relative to its largest number."""
CONNECTIONS = 900
"""Connections of the open loop, all opened before it begins (systems allow a process 1,024 files); if none is left for
a request, the measurement ends."""


class Subject(NamedTuple):
    """A model under load: its builder (ONNX IR), rows per request, requests in flight when its capacity is measured,
    the deadline in seconds."""

    make: Callable[[], Any]
    rows: int
    clients: int
    deadline: float


def _mlp() -> Any:
    from cloud.zoo import mlp

    return mlp(256, 10, (4096,) * 4)


def _resnet() -> Any:
    from cloud.zoo import resnet8

    return resnet8((3, 32, 32), 10, filters=(32, 64, 128))


MODELS: Mapping[str, Subject] = {
    "mlp": Subject(_mlp, 4, 32, 0.25),
    "resnet8": Subject(_resnet, 8, 16, 0.1),
}
"""A wide MLP, limited by reading its 200 MB of weights, so that its capacity depends on batching; and ResNet-8 of twice
the width, limited by arithmetic, so that a client on the same machine can send three times its capacity: for the
ordinary ResNet-8 that would be 450 MB per second."""


class Plan(NamedTuple):
    """factor: the arrival rate as a multiple of capacity. seconds: duration of the overload; capacity: seconds of each
    of the two measurements of capacity. threads: of the server's runtime."""

    factor: float = 3.0
    seconds: float = 60.0
    capacity: float = 8.0
    threads: int = 1


@dataclass
class Figures:
    """The results: times in seconds, memory in bytes, capacity and goodput in rows per second."""

    model: str
    rows: int
    deadline: float
    capacity: tuple[float, float] = (0.0, 0.0)
    """Capacity before and after."""
    offered: float = 0.0
    goodput: float = 0.0
    """Right answers within the deadline, by the client's clock."""
    ratio: float = 0.0
    """Goodput as a fraction of the mean capacity."""
    statuses: dict[int, int] = field(default_factory=dict)
    accepted: dict[str, float] = field(default_factory=dict)
    """p50, p99 and maximum time of requests that were not refused."""
    refused: dict[str, float] = field(default_factory=dict)
    """The same for refused requests, from passing the request's last byte to the system until the reply is read."""
    untold: int = 0
    """Refusals without Retry-After."""
    wrong: int = 0
    lost: int = 0
    """Connections that were closed without a reply."""
    memory: dict[str, int] = field(default_factory=dict)
    late: dict[str, float] = field(default_factory=dict)
    """How much later than scheduled the client sent requests."""
    client: float = 0.0
    """CPU use of the client, as a fraction of one processor."""
    server: float = 0.0

    @property
    def problems(self) -> list[str]:
        """Violations of the gateway's guarantees; memory at the end is compared with that after ten seconds."""
        flat = self.memory["end"] <= 1.05 * self.memory["early"] + (8 << 20)
        checks = {
            f"goodput is {self.ratio:.2f} of capacity": self.ratio >= 0.9,
            f"99 of 100 accepted are answered within {1e3 * self.accepted['p99']:.0f} ms": self.accepted["p99"]
            <= self.deadline,
            f"99 of 100 refusals take {1e3 * self.refused['p99']:.1f} ms": self.refused["p99"] < 5e-3,
            f"{self.untold} refusals had no Retry-After": not self.untold,
            f"{self.wrong} answers were wrong": not self.wrong,
            f"{self.lost} connections were lost": not self.lost,
            f"memory grew to {self.memory['end'] >> 20} MiB": flat,
            f"statuses {self.statuses}": set(self.statuses) <= {200, 429, 504},
        }
        return [text for text, holds in checks.items() if not holds]


class Questions:
    """Requests for a model and their right answers."""

    def __init__(self, subject: Subject, onnx: Path, path: str, deadline: float) -> None:
        import onnxruntime

        session = onnxruntime.InferenceSession(str(onnx), providers=["CPUExecutionProvider"])
        (given,) = session.get_inputs()
        self._path, rng = path, np.random.default_rng(6)
        shape = (subject.rows, *given.shape[1:])
        self._inputs = [rng.standard_normal(shape, np.float32) for _ in range(SAMPLES)]
        self._name: str = given.name
        self._expected: list[Array] = [session.run(None, {given.name: x})[0] for x in self._inputs]
        self._largest = max(float(np.abs(y).max()) for y in self._expected)
        self.patient = [self._request(x) for x in self._inputs]
        self.urgent = [self._request(x, parameters={"timeout": round(1e6 * deadline)}) for x in self._inputs]

    def right(self, which: int, reply: Reply) -> bool:
        """Whether a reply with status 200 is the right answer to the request with that number."""
        _, found = outputs(reply.body, reply.field("inference-header-content-length"))
        return bool(np.abs(found - self._expected[which]).max() <= AGREE * self._largest)

    def _request(self, x: Array, **more: Any) -> bytes:
        body, fields = infer(self._name, x, **more)
        return request(self._path, body, fields)


async def closed(port: int, questions: Questions, clients: int, rows: int, seconds: float) -> float:
    """Rows per second for this number of clients that wait for their replies; the first fifth of the time is not
    counted. Raises MsedgeError for anything but right answers."""
    begun = perf_counter()
    first, last = begun + 0.2 * seconds, begun + seconds
    answered = 0

    async def client(number: int) -> None:
        nonlocal answered
        connection, which = await Connection.open(port), number
        try:
            while perf_counter() < last:
                which = (which + 1) % SAMPLES
                reply = await connection.answer(questions.patient[which])
                if reply is None or reply.status != 200 or not questions.right(which, reply):
                    raise MsedgeError(f"a wrong answer without overload: {reply}"[:500])
                answered += first <= perf_counter() <= last
        finally:
            connection.close()

    await asyncio.gather(*(client(number) for number in range(clients)))
    return answered * rows / (last - first)


class Flood:
    """An open loop: requests by a Poisson clock, each over a separate connection that was opened before."""

    def __init__(self, port: int, questions: Questions, deadline: float) -> None:
        self._port, self._questions, self._deadline = port, questions, deadline
        self._idle: deque[Connection] = deque()
        self._under_way = 0
        self.accepted: list[float] = []
        self.refused: list[float] = []
        self.late: list[float] = []
        self.statuses: Counter[int] = Counter()
        self.good = self.untold = self.wrong = self.lost = 0

    async def open(self, connections: int) -> None:
        """Open connections."""
        self._idle += [await Connection.open(self._port) for _ in range(connections)]

    async def run(self, rate: float, seconds: float) -> None:
        """So many requests a second; returns when all of them are answered."""
        draw = random.Random(6)
        begun = perf_counter()
        at, end = begun, begun + seconds
        while at < end:
            wait = at - perf_counter()
            if wait > 0:
                await asyncio.sleep(wait)
            now = perf_counter()
            while at <= now:
                self._send(draw.randrange(SAMPLES))
                self.late.append(perf_counter() - at)
                at += draw.expovariate(rate)
            await asyncio.sleep(0)
        while self._under_way:
            await asyncio.sleep(0.01)

    def close(self) -> None:
        """Close the connections."""
        for connection in self._idle:
            connection.close()

    def _send(self, which: int) -> None:
        if not self._idle:
            raise MsedgeError(
                f"{self._under_way} requests are in flight and all connections are in use: the client is too slow"
            )
        connection = self._idle.popleft()
        self._under_way += 1
        sent = perf_counter()
        connection.ask(self._questions.urgent[which], lambda reply: self._answered(connection, which, sent, reply))

    def _answered(self, connection: Connection, which: int, sent: float, reply: Reply | None) -> None:
        took = perf_counter() - sent
        self._under_way -= 1
        if reply is None:
            self.lost += 1
            return
        self._idle.append(connection)
        self.statuses[reply.status] += 1
        if reply.status in (429, 503):
            self.refused.append(took)
            self.untold += reply.field("retry-after") is None
            return
        self.accepted.append(took)
        if reply.status == 200:
            right = self._questions.right(which, reply)
            self.wrong += not right
            self.good += right and took <= self._deadline


async def _measured(server: Server, subject: Subject, questions: Questions, plan: Plan, figures: Figures) -> None:
    port = server.port

    async def capacity() -> float:
        return await closed(port, questions, subject.clients, subject.rows, plan.capacity)

    before = await capacity()
    flood = Flood(port, questions, subject.deadline)
    await flood.open(CONNECTIONS)
    figures.memory["start"] = server.resident
    gc.collect()
    gc.freeze()
    clocks = perf_counter(), process_time(), server.seconds
    early = asyncio.get_running_loop().call_later(
        min(10.0, plan.seconds / 3), lambda: figures.memory.update(early=server.resident)
    )
    await flood.run(plan.factor * before / subject.rows, plan.seconds)
    early.cancel()
    elapsed = perf_counter() - clocks[0]
    figures.memory["end"] = server.resident
    figures.client = (process_time() - clocks[1]) / elapsed
    figures.server = (server.seconds - clocks[2]) / elapsed
    flood.close()
    figures.capacity = before, await capacity()
    figures.offered = plan.factor * before
    figures.goodput = flood.good * subject.rows / plan.seconds
    figures.ratio = 2 * figures.goodput / sum(figures.capacity)
    figures.statuses = dict(flood.statuses)
    figures.accepted, figures.refused, figures.late = map(_spread, (flood.accepted, flood.refused, flood.late))
    figures.untold, figures.wrong, figures.lost = flood.untold, flood.wrong, flood.lost


def _spread(times: Sequence[float]) -> dict[str, float]:
    if not times:
        return {"p50": 0.0, "p99": 0.0, "most": 0.0}
    p50, p99 = np.percentile(times, [50, 99])
    return {"p50": float(p50), "p99": float(p99), "most": max(times)}


def measure(name: str, subject: Subject, plan: Plan) -> Figures:
    """A model under load, by a server of its own. Raises MsedgeError where that cannot be done."""
    figures = Figures(name, subject.rows, subject.deadline)
    with served(name, subject, plan.threads) as (server, questions):
        asyncio.run(_measured(server, subject, questions, plan, figures))
    return figures


@contextlib.contextmanager
def served(name: str, subject: Subject, threads: int) -> Iterator[tuple[Server, Questions]]:
    """A model's server and what to ask it. Raises MsedgeError where the server does not end well."""
    import onnx_ir as ir

    import msedge

    with tempfile.TemporaryDirectory() as folder:
        onnx, bundle = Path(folder) / "model.onnx", Path(folder) / "model.mslite"
        made = subject.make()
        ir.save(made, onnx)
        msedge.convert(onnx, output=bundle)
        questions = Questions(subject, onnx, f"/v2/models/{name}/infer", subject.deadline)
        with serving([f"{name}={bundle}", "--threads", str(threads)]) as server:
            yield server, questions
            server.terminate()
            code, log = server.wait()
            if code or "Traceback" in log:
                raise MsedgeError(f"the server ended with {code} and said: {log[-2000:]}")


def table(found: Sequence[Figures]) -> str:
    """The figures, as Markdown."""
    lines = ["| | " + " | ".join(f.model for f in found) + " |", "|---|" + "---|" * len(found)]
    rows: Mapping[str, Callable[[Figures], str]] = {
        "rows per request": lambda f: str(f.rows),
        "deadline, ms": lambda f: f"{1e3 * f.deadline:.0f}",
        "capacity before, after, rows/s": lambda f: f"{f.capacity[0]:.0f}, {f.capacity[1]:.0f}",
        "offered, rows/s": lambda f: f"{f.offered:.0f}",
        "goodput, rows/s": lambda f: f"{f.goodput:.0f}",
        "goodput / capacity": lambda f: f"{f.ratio:.3f}",
        "accepted: p50, p99, longest, ms": lambda f: _milliseconds(f.accepted),
        "refused: p50, p99, longest, ms": lambda f: _milliseconds(f.refused),
        "replies": lambda f: ", ".join(f"{n} × {status}" for status, n in sorted(f.statuses.items())),
        "memory at start, early, end, MiB": lambda f: ", ".join(
            str(f.memory[when] >> 20) for when in ("start", "early", "end")
        ),
        "client delay: p50, p99, longest, ms": lambda f: _milliseconds(f.late),
        "processor cores used by client, server": lambda f: f"{f.client:.2f}, {f.server:.2f}",
        "falls short": lambda f: "; ".join(f.problems) or "nothing",
    }
    lines += [f"| {name} | " + " | ".join(of(f) for f in found) + " |" for name, of in rows.items()]
    return "\n".join(lines)


def _milliseconds(times: Mapping[str, float]) -> str:
    return ", ".join(f"{1e3 * times[name]:.2f}" for name in ("p50", "p99", "most"))


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; exit code 1 if there are violations."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serving.overload", description=__doc__)
    parser.add_argument("--models", default=",".join(MODELS), help="of " + ", ".join(MODELS))
    parser.add_argument("--factor", type=float, default=3.0, help="arrivals, as a multiple of capacity")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--capacity", type=float, default=8.0, help="seconds of each capacity measurement")
    parser.add_argument("--threads", type=int, default=1, help="threads of the server's runtime")
    parser.add_argument("--json", type=Path, help="write the figures there")
    args = parser.parse_args(argv)
    plan = Plan(args.factor, args.seconds, args.capacity, args.threads)
    found = [measure(name, MODELS[name], plan) for name in args.models.split(",")]
    print(table(found))
    if args.json:
        args.json.write_text(json.dumps([asdict(figures) for figures in found], indent=1))
    return int(any(figures.problems for figures in found))


if __name__ == "__main__":
    sys.exit(main())
