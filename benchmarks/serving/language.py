"""`python -m benchmarks.serving.language MODEL.mslite`: what clients of a language model get, alone and together.

`msedge serve` in a separate process answers one stream, N streams, and, if the bundle takes adapters, N streams with an
adapter each (random ones), in turns: every round has all of them, in an order that changes. Prompts are random tokens,
different each time, so that nothing is in the caches, and answers never end early. Tokens a second are those of all
answers, over the time from the first request to the last token. Ratios are medians of the rounds' ratios.

`--soak N` instead sends N requests for short answers, greedy and drawn ones, with more adapters than are in memory at
once and fewer pages than the clients need together; some clients disconnect, before the first token or in the middle.
Equal requests must get equal answers, memory must not grow, and at the end a text that needs all
pages but one is answered. The server's memory is printed as it goes; it grows while runs of every size are planned.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple

import aiohttp
import numpy as np

from benchmarks.serving.client import Server, serving
from lite_runtime.bundle import Bundle, read
from lite_runtime.errors import MsedgeError
from lite_runtime.language import Adapter
from lite_runtime.language.adapters import layout

__all__ = ["Answer", "Point", "Soaked", "Turn", "main", "soak", "turns"]

NAME = "model"
ONE, MANY, ADAPTED = "1 stream", "{} streams", "{} streams, {} adapters"
LEAVERS, SILENT = 0.3, 0.2
"""Share of clients of a soak test that disconnect; and of these, those that do it before the first token."""
POOL = 12
"""Different prompts of a soak test."""
SHORTEST, LENGTHS = 4, (1, 2, 3, 5, 8, 13)
"""Of a soak test: tokens of the shortest prompt, and of answers."""
PAGES = 48
"""Pages of the caches in a soak test: so few that texts wait for room."""
POINTS = 20
"""How often a soak test looks at the server."""
PAGE = 16
PATIENCE = "600"
"""Seconds that a first token may take, so that a slow machine refuses nothing."""
_CLIENTS = aiohttp.ClientTimeout(total=None, sock_read=600)


class Answer(NamedTuple):
    """What one client got. first: seconds until the first token; seconds: until the last. text: of a stream that was
    read to its end. error: the status and text of a refusal. left: whether the client disconnected before the end."""

    tokens: int
    first: float
    seconds: float
    text: str = ""
    error: str = ""
    left: bool = False


class Turn(NamedTuple):
    """One way of asking, once: tokens a second of all streams, and seconds until their first tokens."""

    rate: float
    first: list[float]


class Point(NamedTuple):
    """The server after so many requests and seconds: bytes of its memory, and its open sockets."""

    requests: int
    seconds: float
    resident: int
    sockets: int


@dataclass
class Soaked:
    """The results of a soak test."""

    requests: int = 0
    seconds: float = 0.0
    outcomes: Counter[str] = field(default_factory=Counter)
    errors: list[str] = field(default_factory=list)
    differing: int = 0
    """Answers that are not those of equal requests before."""
    points: list[Point] = field(default_factory=list)
    """The server while it was working, the last time after all requests."""
    pages: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Pages, and free ones, when a text had needed all of them: at the start and at the end."""
    metrics: dict[str, float] = field(default_factory=dict)

    @property
    def memory(self) -> tuple[int, ...]:
        """The most bytes of the server's memory in the third quarter of the requests, and in the last."""
        quarter = self.points[-1].requests / 4
        later = [(one.requests > 3 * quarter, one.resident) for one in self.points if one.requests > 2 * quarter]
        return tuple(max((size for last, size in later if last is which), default=0) for which in (False, True))

    @property
    def problems(self) -> list[str]:
        """What should not be."""
        checks = {
            f"{len(self.errors)} errors, such as {self.errors[:1]}": not self.errors,
            f"{self.differing} answers differ from those to equal requests": not self.differing,
            f"memory grew: {self.memory} bytes": self.memory[1] <= 1.1 * self.memory[0],
            f"texts are left: {self.metrics}": not self.metrics["running"] and not self.metrics["waiting"],
        }
        return [text for text, holds in checks.items() if not holds]


class Model:
    """A bundle with a language model, and random adapters for it."""

    def __init__(self, path: Path) -> None:
        """Raises MsedgeError for another file."""
        self.path, held = path.resolve(), read(path)
        if "language" not in held.metadata:
            raise MsedgeError(f"{path}: expected a bundle with a language model; convert one from GGUF or safetensors")
        about = held.metadata["language"]
        self.vocabulary, self.context, self.stop = about["vocabulary"], about["context"], about["stop"]
        self._held: Bundle = held
        self._layout = layout(about)

    @property
    def adapts(self) -> bool:
        """Whether it takes adapters."""
        return self._layout is not None

    def write_adapters(self, folder: Path, count: int) -> list[str]:
        """Files of so many random adapters; how requests name them."""
        (folder / NAME).mkdir(parents=True)
        places = self._layout
        if places is None:
            return []
        for i in range(count):
            rng, arrays = np.random.default_rng(i), {}
            for name, inputs, outputs in places.targets:
                a, b = rng.normal(size=(inputs, places.rank)), rng.normal(size=(places.rank, outputs))
                arrays[f"{name}.lora_a"] = (a / inputs**0.5).astype(np.float32)
                arrays[f"{name}.lora_b"] = (0.1 * b / places.rank**0.5).astype(np.float32)
            Adapter(arrays, self._held.digest).save(folder / NAME / f"person{i}.msstate")
        return [f"{NAME}:person{i}" for i in range(count)]

    def prompt(self, draw: random.Random, length: int) -> list[int]:
        """Random tokens, none of which ends a text."""
        return [token for token in draw.choices(range(self.vocabulary), k=2 * length) if token not in self.stop][
            :length
        ]

    def body(
        self, name: str, prompt: list[int], tokens: int, temperature: float = 0, seed: int = 0
    ) -> dict[str, Any]:  # fmt: skip
        """A request for exactly so many tokens."""
        return {
            "model": name, "prompt": prompt, "max_tokens": tokens, "temperature": temperature, "seed": seed,
            "stream": True, "stream_options": {"include_usage": True},
            "logit_bias": {str(token): -100 for token in self.stop},
        }  # fmt: skip


async def ask(
    session: aiohttp.ClientSession, port: int, body: dict[str, Any], begun: float, leave: float | None = None
) -> Answer:
    """Read a stream to its end. begun: where seconds are counted from. leave: disconnect after this share of the
    tokens; before the first if it is negative."""
    first, parts, last, tokens = 0.0, list[str](), 0.0, 0
    async with session.post(f"http://127.0.0.1:{port}/v1/completions", json=body) as reply:
        if reply.status != 200:
            return Answer(0, 0.0, perf_counter() - begun, error=f"{reply.status}: {await reply.text()}")
        if leave is not None and leave < 0:
            reply.close()
            return Answer(0, 0.0, perf_counter() - begun, left=True)
        async for line in reply.content:
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            if "error" in event:
                return Answer(0, first, perf_counter() - begun, error=str(event["error"]))
            if event["choices"]:
                last = perf_counter() - begun
                first = first or last
                parts.append(event["choices"][0]["text"])
                if leave is not None and len(parts) > leave * body["max_tokens"]:
                    reply.close()
                    return Answer(len(parts), first, last, "".join(parts), left=True)
            if event.get("usage"):
                tokens = event["usage"]["completion_tokens"]
    return Answer(tokens, first, last, "".join(parts))


async def _turn(session: aiohttp.ClientSession, port: int, bodies: Sequence[dict[str, Any]]) -> Turn:
    begun = perf_counter()
    found = await asyncio.gather(*(ask(session, port, body, begun) for body in bodies))
    for body, one in zip(bodies, found, strict=True):
        if one.error or one.tokens != body["max_tokens"]:
            raise MsedgeError(f"expected {body['max_tokens']} tokens, got {one.tokens}: {one.error}")
    return Turn(sum(one.tokens for one in found) / max(one.seconds for one in found), [one.first for one in found])


@contextmanager
def _served(model: Model, threads: int, adapters: int, *words: str) -> Iterator[tuple[Server, list[str]]]:
    """A server, and the names of the model with each adapter."""
    with tempfile.TemporaryDirectory() as folder:
        names = model.write_adapters(Path(folder), adapters)
        told = ["--threads", str(threads), "--language-adapters", folder, "--batching-timeout", PATIENCE, *words]
        with serving([f"{NAME}={model.path}", *told]) as server:
            yield server, names


def turns(
    path: Path, *, threads: int = 2, streams: int = 16, rounds: int = 7, prompt: int = 16, tokens: int = 96,
    temperature: float = 0,
) -> dict[str, list[Turn]]:  # fmt: skip
    """Every way of asking, by its name: the turns of all rounds. Raises MsedgeError."""
    model, draw = Model(path), random.Random(1)
    many, adapted = MANY.format(streams), ADAPTED.format(streams, streams)
    found: dict[str, list[Turn]] = {}

    async def run(server: Server, names: list[str]) -> None:
        ways = {ONE: [NAME], many: [NAME] * streams, **({adapted: names} if names else {})}
        async with aiohttp.ClientSession(timeout=_CLIENTS, connector=aiohttp.TCPConnector(limit=0)) as session:
            for turn in range(-1, rounds):  # the first one warms up
                order = list(ways.items())
                shift = turn % len(order)
                for way, asked in (order[shift:] + order[:shift])[:: 1 if turn % 2 else -1]:
                    prompts = [model.prompt(draw, prompt) for _ in asked]
                    bodies = [
                        model.body(name, given, tokens, temperature, seed)
                        for seed, (name, given) in enumerate(zip(asked, prompts, strict=True))
                    ]
                    made = await _turn(session, server.port, bodies)
                    if turn >= 0:
                        found.setdefault(way, []).append(made)

    loaded = ("--language-adapters-loaded", str(streams), "--language-texts", str(streams))
    with _served(model, threads, streams, *loaded) as (server, names):
        asyncio.run(run(server, names))
    return {way: found[way] for way in (ONE, many, adapted) if way in found}


def _metrics(server: Server) -> dict[str, float]:
    """What the server says of its language model."""
    with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics", timeout=30) as reply:
        lines = reply.read().decode().splitlines()
    wanted = ("running", "waiting", "interrupted_total", "pages", "free_pages", "adapters", "prefix_hit_tokens_total")
    return {
        name: float(line.rpartition(" ")[2])
        for name in wanted for line in lines if line.startswith(f"msedge_language_{name}{{")
    }  # fmt: skip


def soak(
    path: Path, requests: int, *, threads: int = 2, streams: int = 16, seed: int = 0,
    tell: Callable[[Point], None] = lambda point: None,
) -> Soaked:  # fmt: skip
    """Send so many requests, some of which are left. tell: called with what the server is like as it goes. Raises
    MsedgeError if the server does not start."""
    model, draw, found = Model(path), random.Random(seed), Soaked()
    capacity = min(PAGES * PAGE, model.context) // PAGE * PAGE
    longest = max(capacity // 8, SHORTEST + 1)
    prompts = [model.prompt(draw, round(SHORTEST * (longest / SHORTEST) ** draw.random())) for _ in range(POOL)]
    answers: dict[tuple[str, int, int], str] = {}

    async def one(session: aiohttp.ClientSession, server: Server, names: Sequence[str]) -> None:
        name, number, tokens = draw.choice(names), draw.randrange(POOL), draw.choice(LENGTHS)
        leave = draw.uniform(0, 1) if draw.random() < LEAVERS else None
        if leave is not None and draw.random() < SILENT:
            leave = -1.0
        body = model.body(name, prompts[number], tokens, number % 2, number)
        made = await ask(session, server.port, body, perf_counter(), leave)
        found.requests += 1
        found.outcomes["failed" if made.error else "disconnected" if made.left else "completed"] += 1
        if made.error:
            found.errors.append(made.error[:500])
        elif not made.left:
            found.differing += answers.setdefault((name, number, tokens), made.text) != made.text

    async def all_pages(session: aiohttp.ClientSession, server: Server, when: str) -> None:
        """A text that needs all pages but one is answered, whatever is kept."""
        body = model.body(NAME, model.prompt(draw, capacity - 2 * PAGE), PAGE)
        made = await asyncio.wait_for(ask(session, server.port, body, perf_counter()), 600)
        if made.error:
            found.errors.append(made.error[:500])
        for _ in range(100):  # the text leaves between two runs
            found.metrics = _metrics(server)
            if not found.metrics["running"]:
                break
            await asyncio.sleep(0.1)
        found.pages[when] = int(found.metrics["pages"]), int(found.metrics["free_pages"])

    async def run(server: Server, names: list[str]) -> None:
        async with aiohttp.ClientSession(timeout=_CLIENTS, connector=aiohttp.TCPConnector(limit=0)) as session:
            await all_pages(session, server, "start")
            begun, left = perf_counter(), iter(range(requests))

            async def client() -> None:
                for number in left:
                    await one(session, server, [NAME, *names])
                    if number * POINTS % requests < POINTS:
                        look()

            def look() -> None:
                found.points.append(Point(found.requests, perf_counter() - begun, server.resident, server.sockets))
                tell(found.points[-1])

            await asyncio.gather(*(client() for _ in range(streams)))
            found.seconds = perf_counter() - begun
            await all_pages(session, server, "end")
            look()

    few = ("--language-tokens", str(capacity), "--language-texts", str(streams), "--language-adapters-loaded", "4")
    with _served(model, threads, 8, *few) as (server, names):
        asyncio.run(run(server, names))
    return found


def _told(point: Point) -> None:
    """Print a point of a soak test."""
    number, seconds, resident, sockets = point
    print(f"{number:7} requests {seconds:7.0f} s {resident / 2**20:8.1f} MiB {sockets:4} sockets", flush=True)


def _table(found: dict[str, list[Turn]]) -> str:
    rows = [f"{'':28}{'tokens/s':>10}{'first token, s':>16}{'worst':>8}"]
    for way, made in found.items():
        firsts = [second for turn in made for second in turn.first]
        rate = median(turn.rate for turn in made)
        rows.append(f"{way:28}{rate:10.1f}{median(firsts):16.3f}{max(firsts):8.3f}")
    return "\n".join(rows)


def ratios(found: dict[str, list[Turn]]) -> dict[str, float]:
    """Medians of the rounds' ratios of tokens a second, each way to the one before it."""
    ways = list(found)
    return {
        f"{b} / {a}": median(y.rate / x.rate for x, y in zip(found[a], found[b], strict=True))
        for a, b in pairwise(ways)
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Run and print; exit code 1 if a soak test finds problems, 3 if nothing could run."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serving.language", description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--streams", type=int, default=16, help="clients at a time")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--prompt", type=int, default=16, help="tokens of a prompt")
    parser.add_argument("--tokens", type=int, default=96, help="tokens of an answer")
    parser.add_argument("--temperature", type=float, default=0.0, help="of all answers; 0: greedy")
    parser.add_argument("--soak", type=int, metavar="N", help="instead: a soak test of so many requests")
    parser.add_argument("--json", type=Path, help="write the figures there")
    args = parser.parse_args(argv)
    told: dict[str, Any]
    try:
        if args.soak is not None:
            made = soak(args.model, args.soak, threads=args.threads, streams=args.streams, tell=_told)
            told, problems = {**vars(made), "problems": made.problems}, made.problems
            rate = made.requests / made.seconds
            print(f"{made.requests} requests in {made.seconds:.0f} s, {rate:.1f} a second: {dict(made.outcomes)}")
            print(f"pages and free ones: {made.pages}; {made.metrics}")
            print("\n".join(["problems:", *problems]) if problems else "problems: none")
        else:
            found = turns(
                args.model, threads=args.threads, streams=args.streams, rounds=args.rounds, prompt=args.prompt,
                tokens=args.tokens, temperature=args.temperature,
            )  # fmt: skip
            told, problems = {"turns": {way: [turn._asdict() for turn in of] for way, of in found.items()}}, []
            told["ratios"] = ratios(found)
            print(_table(found))
            print("\n".join(f"{what}: {ratio:.3f}" for what, ratio in told["ratios"].items()))
    except MsedgeError as error:
        print(f"error: {error}", file=sys.stderr)
        return 3
    if args.json:
        args.json.write_text(json.dumps(told, indent=1))
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
