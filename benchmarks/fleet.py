"""A fleet against a hub: simulated agents, with the real protocol over real HTTP, in a few processes.

    python -m benchmarks.fleet --agents 10000 --database hub.sqlite --json fleet.json

Every agent has a key of its own, enrols, opens a session, and checks in over a new connection each time, when the hub
has said. A bad version is rolled out in steps: it fails on half of the devices; and then a good one. In the middle of
both the hub is killed (SIGKILL) and started again. In the end the database is compared with what agents were told.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from cloud.hub.database import audit, tokens
from cloud.hub.database.opening import opened
from cloud.hub.rollouts.cohorts import place
from edge.agent.conversation import Backoff
from lite_runtime.updates import checkin, enrolment
from lite_runtime.updates.checkin import Application, Event, Measure, Outcome, Report

__all__ = ["run"]

APP, OLD, BAD, GOOD = "keys", "1.0", "2.0", "2.1"
STEPS = (1.0, 5.0, 25.0, 100.0)
TOGETHER = 64
"""Agents of one process that enrol at once."""


# -- agents ------------------------------------------------------------------------------------------------------------


class Agent:
    """One device. What it was told is kept in memory, as a real one keeps it on disk."""

    def __init__(self, number: int, url: tuple[str, int], token: str, figures: Figures) -> None:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        self._key = Ed25519PrivateKey.generate()
        self._url, self._token, self._figures = url, token, figures
        self._draw = random.Random(number)
        self.number, self.device, self._hub, self._session = number, "", "", ""
        self.there = Application(OLD)
        self.events: list[Event] = []
        self.serial = self.acknowledged = 0
        self._backoff = Backoff(0.5, 8.0)

    async def live(self, gate: asyncio.Semaphore, ready: Callable[[], None]) -> None:
        """Enrol, and check in until cancelled."""
        async with gate:
            while not self.device:
                with suppress(OSError, LookupError):
                    await self._enrol()
        ready()
        while True:
            try:
                seconds = await self._check_in()
                self._backoff.succeeded()
            except (OSError, LookupError) as problem:
                self._figures.failures[type(problem).__name__] = (
                    self._figures.failures.get(type(problem).__name__, 0) + 1
                )
                seconds = self._backoff.failed()
            await asyncio.sleep(seconds)

    async def _enrol(self) -> None:
        public = self._key.public_key().public_bytes_raw().hex()
        signature = self._key.sign(enrolment.enrolment_text(self._token, public)).hex()
        asked = enrolment.Enrolment(self._token, public, signature)
        found = enrolment.read_enrolled(await self._ask("/v1/enrol", enrolment.written(asked)))
        self.device, self._hub = found.device, found.hub

    async def _open(self) -> None:
        hello = enrolment.written(enrolment.Greeting(self.device))
        challenge = enrolment.read_challenge(await self._ask("/v1/session", hello)).challenge
        signature = self._key.sign(enrolment.session_text(self._hub, self.device, challenge)).hex()
        answer = enrolment.written(enrolment.Greeting(self.device, challenge, signature))
        self._session = enrolment.read_session(await self._ask("/v1/session", answer)).token

    async def _check_in(self) -> float:
        """One check-in; seconds until the next."""
        if not self._session:
            await self._open()
        runs = self.there.trial or self.there.version
        measures = {
            "latency_ms": Measure(50, 4.0 * self._draw.uniform(0.9, 1.1)),
            "confidence": Measure(50, (0.6 if runs == BAD else 0.9) + self._draw.gauss(0, 0.01)),
        }
        there = {APP: self.there._replace(measures=measures)}
        attributes = {"region": f"r{self.number % 10}"}
        told = Report(attributes, "x86-64-v3", "0.1.0", 1 << 30, applications=there, events=tuple(self.events))
        began = time.perf_counter()
        raw = await self._ask("/v1/check-in", checkin.written(told), self._session)
        self._figures.polls.append(time.perf_counter() - began)
        reply = checkin.read_reply(raw)
        self.acknowledged = max(self.acknowledged, reply.received)
        self.events = [event for event in self.events if event.serial > reply.received]
        if APP in reply.applications:
            self._obey(reply.applications[APP])
        return reply.again

    def _obey(self, told: checkin.Assignment) -> None:
        """An update takes one interval: on trial at once, its end is in the next report."""
        there = self.there
        if there.trial:
            kind = _fate(there.trial, self.number)
            version = there.trial if kind == "committed" else there.version
            assert there.outcome is not None
            self.there = Application(version, outcome=Outcome(there.trial, there.outcome.rollout, kind, "simulated"))
            self._say(kind, there.trial)
        if told.version == self.there.version:
            return
        if told.urgent:
            self.there = Application(told.version, outcome=Outcome(told.version, told.rollout, "returned"))
            self._say("returned", told.version)
        elif self.there.outcome is None or self.there.outcome.rollout != told.rollout:
            self.there = Application(self.there.version, told.version, Outcome(told.version, told.rollout, "trial"))
            self._say("trial", told.version)

    def _say(self, kind: str, version: str) -> None:
        self.serial += 1
        self.events.append(Event(self.serial, time.time(), kind, APP, version))

    async def _ask(self, path: str, body: bytes, token: str = "") -> bytes:
        """An answer over a connection of its own. Raises OSError, and LookupError for a status that is none of 2xx."""
        reader, writer = await asyncio.open_connection(*self._url)
        try:
            said = f"Authorization: Bearer {token}\r\n" if token else ""
            head = (
                f"POST {path} HTTP/1.1\r\nHost: hub\r\nConnection: close\r\nContent-Length: {len(body)}\r\n{said}\r\n"
            )
            writer.write(head.encode() + body)
            raw = await reader.read()
        finally:
            writer.close()
        first, _, content = raw.partition(b"\r\n\r\n")
        status = int(first[9:12]) if first[:8] == b"HTTP/1.1" else 0
        self._figures.requests += 1
        if status == 401 and token:
            self._session = ""
        if not 200 <= status < 300:
            raise LookupError(f"status {status}")
        return content


def _fate(version: str, number: int) -> str:
    if version != BAD:
        return "committed"
    at = place("fate", str(number))
    return "self-test" if at < 0.3 else "rolled-back" if at < 0.5 else "committed"


class Figures:
    """What a process of agents counts."""

    def __init__(self) -> None:
        self.polls: list[float] = []
        self.requests = 0
        self.failures = Counter[str]()


def work(first: int, words: list[str], url: tuple[str, int], pipe: Connection) -> None:
    """A process of agents. Answers "figures" (and begins to count anew), "enrolled", "state" and "end" on its pipe."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    asyncio.run(_work(first, words, url, pipe))


async def _work(first: int, words: list[str], url: tuple[str, int], pipe: Connection) -> None:
    figures, enrolled, loop = Figures(), 0, asyncio.get_running_loop()
    agents = [Agent(first + number, url, token, figures) for number, token in enumerate(words)]

    def ready() -> None:
        nonlocal enrolled
        enrolled += 1

    gate = asyncio.Semaphore(TOGETHER)
    tasks = [asyncio.ensure_future(agent.live(gate, ready)) for agent in agents]
    asked: asyncio.Queue[str] = asyncio.Queue()
    loop.add_reader(pipe.fileno(), lambda: asked.put_nowait(pipe.recv()))
    while (word := await asked.get()) != "end":
        if word == "figures":
            pipe.send((figures.polls, figures.requests, figures.failures))
            figures.polls, figures.requests, figures.failures = [], 0, Counter[str]()
        elif word == "enrolled":
            pipe.send(enrolled)
        else:
            pipe.send([(agent.device, agent.there.version, agent.acknowledged) for agent in agents])
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    loop.remove_reader(pipe.fileno())
    pipe.send("ended")


# -- the hub -----------------------------------------------------------------------------------------------------------


class Hub:
    """The hub's process, which can be killed and started again at the same address."""

    def __init__(self, folder: Path, database: str, interval: float, watch: float, capacity: float) -> None:
        self.folder, self.database = folder, database
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = int(free.getsockname()[1])
        told = {"address": f"127.0.0.1:{self.port}", "database": database, "interval": interval, "watch": watch,
                "capacity": capacity, "visitors": 1e6, "rate": 10.0}  # fmt: skip
        lines = [f"{name} = {json.dumps(value)}" for name, value in told.items()]
        (folder / "hub.toml").write_text("\n".join(["[hub]", *lines, ""]))
        self.seconds = 0.0
        """Processor seconds of processes that were killed."""
        self.memory = 0
        """The most bytes that any of them used."""
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> float:
        """Start it; the seconds until it answers."""
        began = time.perf_counter()
        words = ["hub", "serve", "--config", "hub.toml", "--folder", str(self.folder), "--json"]
        with (self.folder / "hub.log").open("a") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "edge.cli", *words], cwd=self.folder, stdout=subprocess.PIPE, stderr=log,
                text=True, env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])},
            )  # fmt: skip
        assert self._process.stdout is not None
        if not self._process.stdout.readline():
            raise RuntimeError(f"the hub did not start: {(self.folder / 'hub.log').read_text()[-2000:]}")
        return time.perf_counter() - began

    def used(self) -> tuple[float, int]:
        """Processor seconds and the most bytes so far."""
        seconds, memory = self.seconds, self.memory
        if self._process is not None and self._process.poll() is None:
            about = Path(f"/proc/{self._process.pid}")
            parts = (about / "stat").read_text().rpartition(") ")[2].split()
            seconds += (int(parts[11]) + int(parts[12])) / os.sysconf("SC_CLK_TCK")
            words = (about / "status").read_text().partition("VmHWM:")[2].split()
            memory = max(memory, int(words[0]) * 1024)
        return seconds, memory

    def end(self, how: signal.Signals) -> None:
        """Kill or stop it."""
        if self._process is not None:
            self.seconds, self.memory = self.used()
            self._process.send_signal(how)
            self._process.wait()
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._process = None

    def ask(self, method: str, path: str, token: str, body: Any = None) -> Any:
        """What an operator asks."""
        import http.client

        made = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        raw = None if body is None else json.dumps(body).encode()
        made.request(method, path, raw, {"Authorization": f"Bearer {token}"})
        answer = made.getresponse()
        found = json.loads(answer.read())
        made.close()
        if answer.status >= 400:
            raise RuntimeError(f"{path}: {answer.status}: {found}")
        return found


# -- the run -----------------------------------------------------------------------------------------------------------


class Run:
    """One run: the hub, the agents, and what was found."""

    def __init__(
        self, hub: Hub, pipes: list[Connection], operator: str, agents: int, steps: Sequence[float],
        told: Callable[[str], None],
    ) -> None:  # fmt: skip
        self.hub, self._pipes, self._operator, self.agents, self._told = hub, pipes, operator, agents, told
        self._steps = list(steps)
        self.found: dict[str, Any] = {"agents": agents, "processes": len(pipes)}

    def asked(self, word: str) -> list[Any]:
        """The answers of all processes."""
        for pipe in self._pipes:
            pipe.send(word)
        return [pipe.recv() for pipe in self._pipes]

    def figures(self) -> tuple[list[float], int, dict[str, int]]:
        """Of all processes since the last time: seconds of check-ins, requests, failures."""
        found = self.asked("figures")
        polls = [seconds for one in found for seconds in one[0]]
        return polls, sum(one[1] for one in found), sum((one[2] for one in found), Counter())

    def state(self) -> list[tuple[str, str, int]]:
        """Of each agent: device, version, serial of the last event that the hub has."""
        return [row for rows in self.asked("state") for row in rows]

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count what happens in the block."""
        self.figures()
        began, before = time.perf_counter(), self.hub.used()[0]
        yield
        seconds = time.perf_counter() - began
        polls, requests, failures = self.figures()
        used, memory = self.hub.used()
        polls.sort()
        at = (
            {f"p{share}_ms": round(1000 * polls[int(len(polls) * share / 100)], 2) for share in (50, 99)}
            if polls
            else {}
        )
        self.found[name] = {
            "seconds": round(seconds, 1), "requests": requests, "per_second": round(requests / seconds, 1),
            "check_ins": len(polls), **at, "failures": failures, "hub_cpu": round((used - before) / seconds, 2),
            "hub_ms_per_request": round(1000 * (used - before) / max(requests, 1), 3),
            "hub_mebibytes": round(memory / 2**20, 1),
        }  # fmt: skip
        self._told(f"{name}: {json.dumps(self.found[name])}")

    def until(self, holds: Callable[[], bool], limit: float) -> None:
        """Wait until something holds. Raises TimeoutError."""
        end = time.monotonic() + limit
        while not holds():
            if time.monotonic() > end:
                raise TimeoutError(f"not within {limit:.0f} s: {json.dumps(self.found)}")
            time.sleep(0.2)

    def rollout(self, identity: str) -> dict[str, Any]:
        """The state of a rollout."""
        found: dict[str, Any] = self.hub.ask("GET", f"/v1/rollouts/{identity}", self._operator)
        return found

    def start(self, version: str, soak: float) -> str:
        """Begin a rollout."""
        plan = {"application": APP, "steps": self._steps, "version": version, "soak": soak, "patience": 1e4}
        return str(self.hub.ask("POST", "/v1/rollouts", self._operator, plan)["id"])

    def crash(self) -> None:
        """Kill the hub and start it again."""
        self.hub.end(signal.SIGKILL)
        time.sleep(1.0)
        seconds = self.hub.start()
        self._told(f"the hub was killed, and answers again {seconds:.1f} s after its start")
        self.found.setdefault("restarts", []).append(round(seconds, 2))

    def versions(self) -> dict[str, int]:
        """How many agents run each version."""
        found: dict[str, int] = {}
        for _, version, _ in self.state():
            found[version] = found.get(version, 0) + 1
        return found


def _bad(run: Run, soak: float, limit: float) -> None:
    """A version that fails on half of the devices: stopped by the canary, and every device returns."""
    with run.phase("bad version"):
        identity = run.start(BAD, soak)
        run.until(lambda: run.rollout(identity)["members"] > run.agents * 0.002, limit)
        run.crash()
        run.until(lambda: run.rollout(identity)["status"] == "aborted", limit)
        run.until(lambda: run.rollout(identity)["returning"] == 0 and set(run.versions()) == {OLD}, limit)
    found = run.rollout(identity)
    run.found["bad version"] |= {
        "members": found["members"], "share": round(found["members"] / run.agents, 4), "bad": found["bad"],
        "good": found["good"], "reason": found["reason"],
    }  # fmt: skip


def _good(run: Run, soak: float, limit: float) -> None:
    """A version that does well: it reaches every device, in steps."""
    with run.phase("good version"):
        identity = run.start(GOOD, soak)
        run.until(lambda: run.rollout(identity)["members"] > run.agents * 0.15, limit)
        run.crash()
        run.until(lambda: run.rollout(identity)["status"] == "completed", limit)
        run.until(lambda: set(run.versions()) == {GOOD}, limit)
    found = run.rollout(identity)
    run.found["good version"] |= {"members": found["members"], "bad": found["bad"], "good": found["good"]}


def _lost(run: Run) -> dict[str, Any]:
    """What the database lacks of what agents were told, after the hub has stopped; all numbers should be 0."""
    state = run.state()
    run.hub.end(signal.SIGTERM)
    database = opened(run.hub.database)
    try:
        size = database.size()
        with database.transaction() as cursor:
            stored = {
                row[0]: row[1:]
                for row in cursor.rows("SELECT device, count(*), max(serial) FROM events GROUP BY device")
            }
            known: dict[str, int] = {row[0]: row[1] for row in cursor.rows("SELECT id, received FROM devices")}
            entries, _ = audit.verified(audit.entries(cursor))
            members = cursor.one("SELECT count(*) FROM rollouts WHERE kind = 'joined'")
    finally:
        database.close()
    events = sum(stored.get(device, (0, 0))[0] < serial or known.get(device, 0) < serial for device, _, serial in state)
    return {
        "devices": sum(device not in known for device, _, _ in state), "events": events,
        "gaps": sum(count != last for count, last in stored.values()),
        "stored_events": sum(count for count, _ in stored.values()), "joined": members[0] if members else 0,
        "audit_entries": entries, "database_mebibytes": round(size / 2**20, 1),
    }  # fmt: skip


def run(
    folder: Path, agents: int, database: str, *, processes: int = 2, interval: float = 25.0, watch: float = 5.0,
    soak: float = 5.0, steps: Sequence[float] = STEPS, limit: float = 900.0,
    told: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:  # fmt: skip
    """The whole run; what was found. Raises TimeoutError for what did not happen within `limit` seconds."""
    base = opened(database)
    now = time.time()
    with base.transaction() as cursor:
        operator = tokens.add(cursor, "operator", "operator", now, None, {})
        words = [tokens.add(cursor, f"device-{number}", "device", now, None, {}) for number in range(agents)]
    base.close()
    hub = Hub(folder, database, interval, watch, 1.25 * agents / interval)
    hub.start()
    context = multiprocessing.get_context("spawn")
    pipes, children = [], []
    share = -(-agents // processes)
    try:
        for first in range(0, agents, share):
            ours, theirs = context.Pipe()
            target = ("127.0.0.1", hub.port)
            child = context.Process(target=work, args=(first, words[first : first + share], target, theirs))
            child.start()
            pipes.append(ours)
            children.append(child)
        made = Run(hub, pipes, operator, agents, steps, told)
        with made.phase("enrolment"):
            made.until(lambda: sum(made.asked("enrolled")) == agents, limit)
        made.until(lambda: hub.ask("GET", "/v1/fleet", operator)["versions"].get(APP, {}).get(OLD, 0) == agents, limit)
        with made.phase("steady"):
            time.sleep(2 * interval)
        _bad(made, soak, limit)
        _good(made, soak, limit)
        made.found["lost"] = _lost(made)
        told(f"lost: {json.dumps(made.found['lost'])}")
        for pipe in pipes:
            pipe.send("end")
            pipe.recv()
        return made.found
    finally:
        hub.end(signal.SIGKILL)
        for child in children:
            child.terminate()
            child.join()


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fleet", description=__doc__)
    parser.add_argument("--agents", type=int, default=10_000)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--database", default="", help="postgresql://…; default: a file in a new folder")
    parser.add_argument("--interval", type=float, default=25.0, help="seconds between two check-ins of an agent")
    parser.add_argument("--watch", type=float, default=5.0, help="the same while its result is awaited")
    parser.add_argument("--soak", type=float, default=5.0, help="least seconds of a step")
    parser.add_argument("--json", type=Path, help="write what was found")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="msedge-fleet-") as folder:
        found = run(
            Path(folder), args.agents, args.database or str(Path(folder) / "hub.sqlite"), processes=args.processes,
            interval=args.interval, watch=args.watch, soak=args.soak, told=lambda line: print(line, flush=True),
        )  # fmt: skip
    if args.json:
        args.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
