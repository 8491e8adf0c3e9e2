"""The fuzzer of the gateway, as part of the test suite: few cases, always the same, and it must notice what it looks
for."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from tests.fuzz import http
from tests.fuzz.http import Reply, wrong_with
from tests.fuzz.http_cases import FAMILIES, HIDDEN, Case, case

JSON = {"content-type": "application/json"}


def test_hostile_requests() -> None:
    summary = http.fuzz(http.options(["--requests", "300", "--seed", "1"]))
    assert not summary.findings, "\n".join(f"case {f.case}: {f.text}" for f in summary.findings)
    assert summary.counts["400"] > 80 and summary.counts["200"] > 40 and summary.counts["404"] > 20


def test_cases_are_the_same_everywhere() -> None:
    made = [case(3, i) for i in range(300)]
    assert made == [case(3, i) for i in range(300)]
    assert len({one.family for one in made}) > len(FAMILIES) - 3


@pytest.mark.parametrize(
    ("reply", "word"),
    [
        (Reply(200, JSON, b'{"outputs": []}'), ""),
        (Reply(400, JSON, b'{"error": "it is wrong"}'), ""),
        (Reply(429, {**JSON, "retry-after": "1"}, b'{"error": "later"}'), ""),
        (Reply(200, {"content-type": "text/html"}, b"<!doctype html>"), ""),
        (Reply(200, JSON, b'{"outputs": ['), "no JSON"),
        (Reply(200, {"inference-header-content-length": "9"}, b"{}"), "header of 9 bytes"),
        (Reply(418, JSON, b'{"error": "tea"}'), "no document"),
        (Reply(400, {"content-type": "text/plain"}, b"400: Bad Request"), "no JSON"),
        (Reply(400, {"content-type": "text/plain"}, b'{"error": "x"}'), "no error in JSON"),
        (Reply(400, JSON, b'{"error": "x", "more": 1}'), "no error in JSON"),
        (Reply(400, JSON, b'{"error": "' + b"x" * 30_000 + b'"}'), "30013 bytes"),
        (Reply(429, JSON, b'{"error": "later"}'), "Retry-After"),
        (Reply(500, JSON, b'{"error": "KeyError"}'), "KeyError"),
        (Reply(404, JSON, b'{"error": "there is nothing at /' + HIDDEN.encode() + b'"}'), "hidden"),
    ],
)
def test_wrong_replies_are_noticed(reply: Reply, word: str) -> None:
    found = wrong_with(reply, Case([], split=True))
    assert word in found and bool(word) is bool(found)


@pytest.mark.parametrize(
    ("said", "word"),
    [
        (b"", "hangs"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab", "body was cut"),
        (b"HTTP/1.1 200 OK\r\nConte", "head was cut"),
        (b"HTTP/2.0 200 OK\r\nContent-Length: 0\r\n\r\n", "no status line"),
        (b"HTTP/1.1 200 OK\r\n\r\n", "no Content-Length"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\nrubbish", "head was cut"),
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\n{}", "no error in JSON"),
    ],
)
def test_servers_that_are_broken_are_noticed(monkeypatch: pytest.MonkeyPatch, said: bytes, word: str) -> None:
    monkeypatch.setattr(http, "PATIENCE", 0.3)

    async def broken(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(said)
            while not said and not writer.is_closing():
                await asyncio.sleep(0.01)
        finally:
            writer.close()

    async def run() -> str:
        server = await asyncio.start_server(broken, "127.0.0.1", 0)
        counts: Counter[str] = Counter()
        port: Any = server.sockets[0].getsockname()[1]
        try:
            return await http.play(Case([b"GET / HTTP/1.1\r\n\r\n"]), port, counts)
        finally:
            server.close()
            await asyncio.sleep(0.2)

    assert word in asyncio.run(run())
