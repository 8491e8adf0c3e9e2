"""Does any client crash the gateway, hang it, make it leak, or get an undocumented answer?

    python -m tests.fuzz.http --requests 50000 --seed 1

Starts `msedge serve` as a process, with a folder of models into which broken ones are dropped all the while. Many
clients send hostile requests (`http_cases`); each looks at every reply, and asks something ordinary after every case,
which must be answered right. In the end the server must be as it was: alive, nothing under way, no connection left, its
memory about what it was once every kind of request had come, no fault of its own in its log; and it must end in order.

Exit status: 0 nothing found, 1 something found, 2 the fuzzer itself could not run.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import numpy as np

from edge.gateway.pages.operations import REFUSALS
from tests.fuzz.http_cases import EOF, HIDDEN, LEAVE, RESET, Case, bombs, case
from tests.fuzz.mutate import mutate
from tests.fuzz.seeds import seed_bundles

__all__ = ["Finding", "Reply", "Server", "Summary", "fuzz", "main", "make_models", "options", "play", "wrong_with"]

ROOT = Path(__file__).resolve().parents[2]
HEADER, BODY, IDLE = 1.0, 2.0, 5.0
"""The server's time limits in seconds for heads, bodies and further requests."""
QUIET = 0.3
"""Seconds without a reply after which a client says that it is done."""
PATIENCE = 45.0
"""Seconds after which a connection that the server should have ended is hung; far beyond its own limits, as the machine
may be busy, and beyond the 30 seconds after which a request that waits is answered 504."""
GROWTH, ENOUGH = 1.10, 10_000
"""Allowed growth of memory, in runs of this many requests."""
REST = 12.0
"""Seconds at rest before memory is looked at: an idle gateway gives it back every few seconds."""
CLIENTS = 32
STATUSES = frozenset({200, 204, 405, 417, 505, *REFUSALS})
"""Those in the OpenAPI document; 204 to a browser's preflight; and what is wrong with HTTP itself, at any address."""
FAULTS = ("internal server error", "Traceback", "never retrieved", "was destroyed", "Fatal")
"""What a server's log must not have."""


@dataclass(frozen=True)
class Finding:
    """Something wrong, at a case (-1: at none)."""

    case: int
    text: str


@dataclass
class Summary:
    """What happened. counts: replies by status, connections closed, cases by family."""

    counts: Counter[str] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)


class Reply(NamedTuple):
    """A reply of the server."""

    status: int
    fields: dict[str, str]
    body: bytes


class Server:
    """`msedge serve` as a process, its stderr in a file."""

    def __init__(self, folder: Path, log: Path, **settings: str) -> None:
        flags = [word for name, value in settings.items() for word in (f"--{name.replace('_', '-')}", value)]
        self._log = log
        with log.open("wb") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "edge.cli", "serve", str(folder), "--port", "0", "--threads", "1", "--json",
                 "--logs-format", "json", *flags],
                stdout=subprocess.PIPE, stderr=stderr, stdin=subprocess.DEVNULL, cwd=ROOT,
            )  # fmt: skip
        assert self.process.stdout is not None
        said = b""
        while not said.endswith(b"\n}\n"):
            line = self.process.stdout.readline()
            if not line:
                raise RuntimeError(f"msedge serve did not begin: {self.log[-2000:]}")
            said += line
        self.port = int(json.loads(said)["address"].rpartition(":")[2])

    @property
    def log(self) -> str:
        """What it wrote."""
        return self._log.read_text(errors="replace")

    @property
    def resident(self) -> int:
        """Bytes of memory that are its own."""
        fields = Path(f"/proc/{self.process.pid}/statm").read_text().split()
        return (int(fields[1]) - int(fields[2])) * os.sysconf("SC_PAGE_SIZE")

    @property
    def sockets(self) -> int:
        """Sockets it has open."""
        found = 0
        for entry in os.scandir(f"/proc/{self.process.pid}/fd"):
            with contextlib.suppress(OSError):
                found += os.readlink(entry.path).startswith("socket:")
        return found

    def stop(self) -> str:
        """End it as an operator does; what was wrong with that, and with its log."""
        assert self.process.stdout is not None
        self.process.stdout.close()
        if self.process.poll() is not None:
            return f"it ended by itself with {self.process.returncode}: {self.log[-2000:]}"
        self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return "it did not end within 60 s of SIGTERM"
        faults = [line for line in self.log.splitlines() if any(fault in line for fault in FAULTS)]
        if faults:
            return f"{len(faults)} faults in its log, such as {faults[0][:3000]}"
        return f"its exit code is {code}" if code else ""


def make_models(folder: Path) -> None:
    """The bundles that cases are about, and more to load and unload."""
    from tests.edge.gateway import live

    live.scaled(folder / "scaled.mslite", 2.0)
    live.scaled(folder / "victim.mslite", 3.0)
    live.simple(folder / "simple.mslite")
    live.simple_string(folder / "simple_string.mslite")
    live.numbers(folder / "numbers.mslite")


# -- a client ----------------------------------------------------------------------------------------------------------


async def _reply(reader: asyncio.StreamReader, headless: bool) -> Reply | None:
    """The next reply; None where the server has closed. Raises ValueError for what is no reply."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as error:
        if error.partial:
            raise ValueError(f"a head was cut: {error.partial[-200:]!r}") from None
        return None
    line, *lines = head[:-4].decode("latin-1").split("\r\n")
    version, _, rest = line.partition(" ")
    if version not in ("HTTP/1.1", "HTTP/1.0") or not rest[:3].isdigit():
        raise ValueError(f"no status line: {line[:200]!r}")
    status = int(rest[:3])
    if status < 200:
        return await _reply(reader, headless)
    fields = {name.lower(): value.strip() for name, _, value in (text.partition(":") for text in lines)}
    if status != 204 and "content-length" not in fields:
        raise ValueError(f"no Content-Length: {head[:300]!r}")
    length = 0 if headless else int(fields.get("content-length", "0"))
    try:
        return Reply(status, fields, await reader.readexactly(length))
    except asyncio.IncompleteReadError as error:
        raise ValueError(f"a body was cut: {len(error.partial)} bytes of {length}") from None


def wrong_with(reply: Reply, case: Case) -> str:
    """What is wrong with a reply; "" for nothing."""
    status, fields, body = reply
    if status not in STATUSES:
        return f"status {status} is in no document"
    if case.split and HIDDEN.encode() in body:
        return "a request hidden in another was answered"
    if case.headless or status == 204:
        return ""
    json_said = fields.get("content-type", "").startswith("application/json")
    try:
        if status == 200:
            end = int(fields.get("inference-header-content-length", len(body) if json_said else 0))
            if end > len(body):
                return f"a header of {end} bytes in a body of {len(body)}"
            if end:
                json.loads(body[:end])
            return ""
        found = json.loads(body)
    except ValueError as error:
        return f"status {status}: no JSON ({error}): {body[:200]!r}"
    if not json_said or not isinstance(found, dict) or list(found) != ["error"] or not isinstance(found["error"], str):
        return f"status {status}: no error in JSON: {body[:200]!r}"
    if len(body) > 20_000:
        return f"status {status}: an error of {len(body)} bytes"
    if status == 429 and "retry-after" not in fields:
        return "429 without Retry-After"
    return f"status 500: {found['error'][:500]}" if status == 500 else ""


class _Client:
    """One connection for one case."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, case: Case) -> None:
        self._reader, self._writer, self._case = reader, writer, case
        self.replies: list[Reply] = []
        self._came = asyncio.Event()

    async def run(self) -> bool:
        """Play the case; whether the server ended the connection, as it has to. Raises ValueError."""
        left = await self._play()
        if left:
            return True
        patience = PATIENCE
        if self._case.family == "deaf":
            await asyncio.sleep(BODY + 10)  # a busy machine takes seconds to write what will not be read
            patience = IDLE - 2  # were the connection still there, it would be kept for so long once replies are read
        listening = asyncio.ensure_future(self._listen())
        try:
            if not self._case.silent:
                await self._await_replies(listening)
                with contextlib.suppress(OSError):
                    self._writer.write_eof()
            done, _ = await asyncio.wait([listening], timeout=patience)
            return bool(done) and (listening.result() or True)
        finally:
            listening.cancel()

    async def _play(self) -> bool:
        """Take the steps; whether the client has left."""
        for step in self._case.steps:
            if isinstance(step, bytes):
                self._writer.write(step)
            elif isinstance(step, float):
                await asyncio.sleep(step)
            elif step == EOF:
                with contextlib.suppress(OSError):
                    self._writer.write_eof()
            elif step == LEAVE:
                self._writer.close()
                return True
            else:
                assert step == RESET
                found: socket.socket = self._writer.get_extra_info("socket")
                with contextlib.suppress(OSError):
                    found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self._writer.transport.abort()
                return True
        return False

    async def _listen(self) -> None:
        with contextlib.suppress(ConnectionError):
            while (reply := await _reply(self._reader, self._case.headless)) is not None:
                self.replies.append(reply)
                self._came.set()
                if self._case.headless:  # an answer to what could not be read as HEAD has a body
                    return

    async def _await_replies(self, listening: asyncio.Future[None]) -> None:
        while len(self.replies) < self._case.replies:
            self._came.clear()
            coming = asyncio.ensure_future(self._came.wait())
            done, _ = await asyncio.wait([listening, coming], timeout=QUIET, return_when=asyncio.FIRST_COMPLETED)
            coming.cancel()
            if not done or listening in done:
                return


async def play(case: Case, port: int, counts: Counter[str]) -> str:
    """Play a case; what was wrong."""
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError as error:
        return f"no connection: {error}"
    client = _Client(reader, writer, case)
    try:
        ended = await client.run()
    except ValueError as error:
        return str(error)
    finally:
        writer.transport.abort()
        await asyncio.sleep(0)
        counts.update(str(reply.status) for reply in client.replies)
        counts["unanswered"] += not client.replies
    if not ended:
        now = await _status(port)
        busy = {name: now.get(name) for name in ("in_flight", "queued", "lag")}
        return f"the connection hangs after {len(client.replies)} replies; the server says {busy}"
    return next(filter(None, (wrong_with(reply, case) for reply in client.replies)), "")


class _Control:
    """Asks something ordinary again and again on one connection."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._random = np.random.default_rng()
        self._writer: asyncio.StreamWriter | None = None

    async def ask(self) -> str:
        """What was wrong with the answer."""
        try:
            if self._writer is not None:
                with contextlib.suppress(OSError, ValueError):  # it may have been kept open for long enough
                    return await asyncio.wait_for(self._ask(), PATIENCE)
                self.close()
            return await asyncio.wait_for(self._ask(), PATIENCE)
        except (TimeoutError, OSError, ValueError) as error:
            self.close()
            return f"an ordinary request fails: {error!r}"

    async def _ask(self) -> str:
        if self._writer is None or self._writer.is_closing() or self._reader.at_eof():
            self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        x = self._random.random((1, 4), np.float32)
        head = (b'{"inputs":[{"name":"x","shape":[1,4],"datatype":"FP32","parameters":{"binary_data_size":16}}],'
                b'"parameters":{"binary_data_output":true}}')  # fmt: skip
        self._writer.write(
            b"POST /v2/models/scaled/infer HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n"
            b"Inference-Header-Content-Length: %d\r\n\r\n" % (len(head) + 16, len(head)) + head + x.tobytes()
        )
        reply = await _reply(self._reader, False)
        if reply is None:
            raise ConnectionResetError("closed")
        if reply.status != 200:
            return f"an ordinary request is answered {reply.status}: {reply.body[:500]!r}"
        y = np.frombuffer(reply.body[int(reply.fields["inference-header-content-length"]) :], np.float32)
        return "" if np.array_equal(y, 2 * x[0]) else f"a wrong answer: {y} for {x}"

    def close(self) -> None:
        if self._writer is not None:
            self._writer.transport.abort()
            self._writer = None


# -- the whole ---------------------------------------------------------------------------------------------------------


def _drop(folder: Path, rng: Random) -> None:
    """Put something into the folder that is no model, or no longer, or half of one."""
    target = folder / "dropped" / str(rng.choice((1, 1, 2, 0, "x", "1e3"))) / "model.mslite"
    shutil.rmtree(folder / "dropped", ignore_errors=True)
    target.parent.mkdir(parents=True)
    seeds = [data for data in seed_bundles() if len(data) < 20_000]
    way = rng.randrange(7)
    if way == 0:
        target.mkdir()
    elif way == 1:
        target.symlink_to("/etc/passwd")
    elif way == 2:
        os.mkfifo(target)
    elif way == 3:
        target.write_bytes(rng.choice(seeds))
    elif way == 4:
        target.write_bytes(rng.choice(seeds)[: rng.randrange(300)])
        (target.parent / "config.toml").write_bytes(rng.randbytes(30))
    else:
        target.write_bytes(mutate(rng, seeds))


@asynccontextmanager
async def _dropping(folder: Path, seed: int) -> AsyncIterator[None]:
    async def body() -> None:
        rng = Random(seed)
        while True:
            await asyncio.to_thread(_drop, folder, rng)
            await asyncio.sleep(0.5)

    task = asyncio.create_task(body())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _status(port: int) -> dict[str, Any]:
    """`/status.json`, as the server has it now; {} where it does not say."""
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(b"GET /status.json HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
            reply = await asyncio.wait_for(_reply(reader, False), PATIENCE)
        finally:
            writer.transport.abort()
            await asyncio.sleep(0)
    except (OSError, ValueError, TimeoutError):
        return {}
    return dict(json.loads(reply.body)) if reply is not None and reply.status == 200 else {}


async def _settled(server: Server, sockets: int) -> str:
    """Wait until the server is at rest; what it is still at."""
    end = time.monotonic() + PATIENCE
    said = ""
    while time.monotonic() < end:
        now = await _status(server.port)
        if not now:
            return "its status cannot be read"
        await asyncio.sleep(0.2)
        busy = now["in_flight"], sum(row["in_flight"] for row in now["models"])
        said = f"{busy[0]} requests under way ({busy[1]} of models), {server.sockets - sockets} connections left"
        if busy == (0, 0) and server.sockets <= sockets:
            return ""
    return said


async def _run(server: Server, secured: Server, folder: Path, told: argparse.Namespace, summary: Summary) -> None:
    coming = iter(range(told.start, told.start + told.requests))
    findings, counts = summary.findings, summary.counts

    async def client(indices: Any) -> None:
        control = _Control(server.port)
        for index in indices:
            made = case(told.seed, index)
            if made.silent:  # longer than the server keeps an idle connection
                control.close()
            wrong = await play(made, (secured if made.secured else server).port, counts)
            counts[f"family {made.family}"] += 1
            for text in filter(None, (wrong, await control.ask())):
                findings.append(Finding(index, f"{made.family}: {text}"))
                print(f"case {index}: {made.family}: {text}", file=sys.stderr, flush=True)
            if server.process.poll() is not None:
                break
            if told.verbose and not index % 1000:
                print(f"{index}: {server.resident >> 20} MiB, {len(findings)} findings", file=sys.stderr, flush=True)
        control.close()

    async def all_of(indices: Any) -> None:
        await asyncio.gather(*(client(indices) for _ in range(CLIENTS)))

    sockets = server.sockets
    warm, measured = max(1, told.requests // 10), told.requests >= ENOUGH
    async with _dropping(folder, told.seed):
        await all_of(index for _, index in zip(range(warm), coming, strict=False))
        for bomb in bombs() * 3 if measured else ():  # what memory they take is kept, for the next ones
            await play(bomb, server.port, Counter())
        await _settled(server, sockets)
        await asyncio.sleep(REST * measured)
        before = server.resident
        await all_of(coming)
    left = await _settled(server, sockets)
    if left:
        findings.append(Finding(-1, f"not at rest: {left}"))
    await asyncio.sleep(REST * measured)
    after = server.resident
    summary.figures = {"resident_warm": before, "resident_end": after}
    if measured and after > GROWTH * before:
        findings.append(Finding(-1, f"memory grew from {before >> 20} to {after >> 20} MiB"))


def fuzz(told: argparse.Namespace) -> Summary:
    """Start servers, play the cases, end the servers."""
    from edge.gateway.access.tokens import add

    summary, begun = Summary(), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="msedge-fuzz-") as name:
        folder, tokens = Path(name, "models"), Path(name, "tokens.json")
        folder.mkdir()
        make_models(folder)
        add(tokens, "nobody", ["infer", "manage", "metrics"])
        limits = {"header": HEADER, "body": BODY, "idle": IDLE}
        flags = {f"limits_{what}_seconds": str(seconds) for what, seconds in limits.items()}
        server = Server(folder, Path(name, "log"), **flags, repository_poll="0.3")
        try:
            secured = Server(folder / "scaled.mslite", Path(name, "secured.log"), **flags, access_tokens=str(tokens),
                             access_management="token", access_metrics="token")  # fmt: skip
            try:
                asyncio.run(_run(server, secured, folder, told, summary))
            finally:
                ends = [("the server with tokens: ", secured.stop())]
        finally:
            ends = [*locals().get("ends", ()), ("", server.stop())]
        summary.findings += [Finding(-1, f"{who}{text}") for who, text in ends if text]
    summary.figures["seconds"] = time.monotonic() - begun
    return summary


def options(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--requests", type=int, default=1000, help="how many cases")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--start", type=int, default=0, help="the first case, to play some of a run again")
    parser.add_argument("--verbose", action="store_true", help="say how it goes")
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> int:
    """The command."""
    try:
        summary = fuzz(options(words))
    except (OSError, RuntimeError) as error:
        print(f"the fuzzer cannot run: {error}", file=sys.stderr)
        return 2
    for name, count in sorted(summary.counts.items()):
        print(f"{name:20} {count:8}")
    for name, value in summary.figures.items():
        print(f"{name:20} {value:.0f}")
    for finding in summary.findings[:50]:
        print(f"FOUND case {finding.case}: {finding.text}")
    print(f"{len(summary.findings)} findings")
    return int(bool(summary.findings))


if __name__ == "__main__":
    sys.exit(main())
