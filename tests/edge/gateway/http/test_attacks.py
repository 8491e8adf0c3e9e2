"""Clients that hold on to memory, connections or the event loop's time, and what the others notice: nothing."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from edge.gateway.access import tokens
from tests.edge.gateway.http.raw import Raw, answer, request, scaled_request
from tests.edge.gateway.live import Live, live, scaled
from tests.waiting import until

X = np.ones((1, 4), np.float32)
ASK = scaled_request(X, model="m")
HEALTH = b"GET /v2/health/live HTTP/1.1\r\nHost: a\r\n\r\n"
BOTH = pytest.mark.parametrize("fields", [{}, {"Content-Encoding": "identity"}], ids=["lane", "aiohttp"])
"""Requests of both forms: those of the fast path, and those that aiohttp handles."""
BINARY = {"Inference-Header-Content-Length": "0"}


@contextlib.contextmanager
def serving(folder: Path, **told: object) -> Iterator[Live]:
    with live({"m": scaled(folder / "m.mslite", 1.0)}, **told) as there:
        yield there


@BOTH
def test_the_token_is_checked_before_the_body_is_read(tmp_path: Path, fields: dict[str, str]) -> None:
    """Twenty clients without a token once made the process hold a gigabyte."""
    path = tmp_path / "tokens.json"
    token = tokens.add(path, "camera", ["infer"])
    with serving(tmp_path, access__tokens=str(path), batching__queue_rows=100_000) as there:
        for told in ({}, {"Authorization": "Bearer nonsense"}):
            with Raw(there.port) as raw:
                raw.send(request("/v2/models/m/infer", b"", {**fields, **told}, length=str(60 << 20)))
                got = raw.read()
                assert got.status == 401 and "www-authenticate" in got.fields
        with Raw(there.port) as raw:
            authorized = {**fields, "Authorization": f"Bearer {token}"}
            large = scaled_request(np.ones((20_000, 4), np.float32), model="m", fields=authorized)
            assert raw.ask(large).status == 200
        until(lambda: there.gateway.room.taken == 0)
        assert there.gateway.statistics.refused["infer", 401] == 2


@BOTH
def test_a_stalled_body_gives_way(tmp_path: Path, fields: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edge.gateway.operate.room.GRACE", 0.2)
    told = {"limits__bodies": 100_000, "access__proxies": ["127.0.0.1"]}
    stalled = request("/v2/models/m/infer", b"x", {**fields, **BINARY}, length="90000")
    good = scaled_request(np.ones((3000, 4), np.float32), model="m", fields=fields)
    with serving(tmp_path, **told) as there, Raw(there.port) as slow:
        slow.send(stalled)
        until(lambda: there.gateway.room.taken == 90_000)

        def answered() -> bool:
            with Raw(there.port) as raw:
                got = raw.ask(good)
                assert got.status == 200 or (got.status == 503 and "memory" in got.error)
                return got.status == 200

        until(answered)
        assert slow.read().status == 408
        assert there.gateway.room.evicted == 1
        assert 'msedge_evicted_total{reason="memory"} 1' in there.gateway.metrics("")[0].decode()
    with serving(tmp_path, **told, limits__body=200_000) as there, Raw(there.port) as raw:
        got = raw.ask(request("/v2/models/m/infer", b"", {**fields, **BINARY}, length="100001"))
        assert got.status == 413 and "limits.bodies" in got.error


@BOTH
def test_one_address_gets_half_of_the_memory(tmp_path: Path, fields: dict[str, str]) -> None:
    half = request("/v2/models/m/infer", b"x", {**fields, **BINARY}, length="40000")
    with serving(tmp_path, limits__bodies=100_000) as there, Raw(there.port) as one, Raw(there.port) as two:
        one.send(half)
        until(lambda: there.gateway.room.taken == 40_000)
        assert two.ask(half).status == 503


@BOTH
def test_a_large_reply_counts_until_it_is_taken(tmp_path: Path, fields: dict[str, str]) -> None:
    rows = np.ones((400_000, 4), np.float32)
    data = scaled_request(rows, model="m", fields=fields, binary_data_output=True)
    with serving(tmp_path, batching__queue_rows=1_000_000, limits__body_seconds=300) as there:
        with Raw(there.port) as deaf:
            deaf.send(data)
            until(lambda: there.gateway.statistics.of("m", "1").success == 1)
            until(lambda: rows.nbytes <= there.gateway.room.taken <= rows.nbytes + 1000)
            got = deaf.read()
            assert got.status == 200 and got.body.endswith(rows.tobytes())
        until(lambda: there.gateway.room.taken == 0)


def test_idle_connections_let_others_in(tmp_path: Path) -> None:
    """4,096 idle connections once turned everything into 503, health checks too."""
    told = {"limits__connections": 8, "access__proxies": ["127.0.0.1"]}
    with serving(tmp_path, **told) as there, contextlib.ExitStack() as stack, Raw(there.port) as regular:
        assert regular.ask(ASK).status == 200
        idle = [stack.enter_context(Raw(there.port)) for _ in range(30)]
        for _ in range(3):
            with Raw(there.port) as raw:
                assert raw.ask(HEALTH).status == 200
            with Raw(there.port) as raw:
                assert raw.ask(ASK).status == 200
        assert idle[0].closed()
        assert regular.ask(ASK).status == 200  # those on which something was answered are closed last
        assert there.gateway.evicted()["connections"] >= 22


def test_connections_are_kept_for_health_checks(tmp_path: Path) -> None:
    told = {"limits__connections": 4, "access__proxies": ["127.0.0.1"], "limits__bodies": 1 << 20}
    busy = request("/v2/models/m/infer", b"x", BINARY, length="90000")
    with serving(tmp_path, **told) as there, contextlib.ExitStack() as stack:
        for _ in range(4):
            stack.enter_context(Raw(there.port)).send(busy)
        until(lambda: there.gateway.room.taken == 4 * 90_000)
        with Raw(there.port) as raw:
            assert raw.ask(HEALTH).status == 200
            late = raw.ask(ASK)
            assert late.status == 503 and "limit of open connections" in late.error
        with Raw(there.port) as raw:
            assert raw.ask(ASK).status == 503 and raw.closed()


def test_one_address_gets_half_of_the_connections(tmp_path: Path) -> None:
    busy = request("/v2/models/m/infer", b"x", BINARY, length="90000")
    with serving(tmp_path, limits__connections=4, limits__bodies=1 << 20) as there, contextlib.ExitStack() as stack:
        for _ in range(2):
            stack.enter_context(Raw(there.port)).send(busy)
        until(lambda: there.gateway.room.taken == 2 * 90_000)
        with Raw(there.port) as raw:
            got = raw.read()
            assert got.status == 503 and "your address" in got.error and raw.closed()


def chunked(pieces: list[bytes]) -> bytes:
    head = b"POST /v2/models/m/infer HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
    return head + b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


def test_a_body_in_crumbs_is_refused(tmp_path: Path) -> None:
    """A million chunks of one byte once kept the event loop busy for seconds."""
    body = json.dumps({"inputs": [{"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1, 1, 1, 1]}]}).encode()
    with serving(tmp_path) as there:
        with Raw(there.port) as raw:
            assert raw.ask(chunked([body[i : i + 1] for i in range(len(body))])).status == 200
            long = body + b" " * 200_000
            assert raw.ask(chunked([long[i : i + 40] for i in range(0, len(long), 40)])).status == 200
        with Raw(there.port) as raw:
            with contextlib.suppress(OSError):
                raw.send(chunked([b" "] * 100_000))
            got = raw.read()
            assert got.status == 400 and "chunks of 32 bytes" in got.error


@BOTH
def test_a_client_that_has_said_all_is_answered(tmp_path: Path, fields: dict[str, str]) -> None:
    """It may end its direction of the connection, if it asked for the connection to be closed."""
    gate = threading.Event()
    with serving(tmp_path) as there, Raw(there.port) as raw:
        (served,) = there.gateway.repository.served()
        run = served.model.run
        served.model.run = lambda *given, **words: (gate.wait(60), run(*given, **words))[1]  # type: ignore[method-assign]
        raw.send(scaled_request(X, model="m", fields={**fields, "Connection": "close"}))
        raw.socket.shutdown(socket.SHUT_WR)
        gate.set()
        np.testing.assert_array_equal(answer(raw.read()), X)
        assert raw.closed()


@BOTH
def test_a_client_that_leaves_within_its_body_is_not_waited_for(tmp_path: Path, fields: dict[str, str]) -> None:
    with serving(tmp_path) as there, Raw(there.port) as raw:
        whole = scaled_request(X, model="m", fields={**fields, "Connection": "close"})
        raw.send(whole[:-5])
        until(lambda: len(there.server._crowd) == 1)
        raw.socket.shutdown(socket.SHUT_WR)
        assert raw.closed()


def test_http_1_0_has_no_chunks(tmp_path: Path) -> None:
    with serving(tmp_path) as there, Raw(there.port) as raw:
        data = chunked([b"{}"]).replace(b"HTTP/1.1\r\n", b"HTTP/1.0\r\nConnection: keep-alive\r\n")
        assert raw.ask(data).status == 400 and raw.closed()


def test_later_heads_must_arrive_in_time_too(tmp_path: Path) -> None:
    with serving(tmp_path, limits__header_seconds=0.2) as there, Raw(there.port) as raw:
        assert raw.ask(HEALTH).status == 200
        raw.send(b"GET /v2/health/live HTTP/1.1\r\nX: ")
        got = raw.read()
        assert got.status == 408 and got.error and raw.closed()


@BOTH
def test_draining_waits_for_slow_readers(tmp_path: Path, fields: dict[str, str]) -> None:
    """Their answers were once cut short, and the server ended as if all was well."""
    rows = np.ones((1_000_000, 4), np.float32)  # more than the system's buffers hold
    data = scaled_request(rows, model="m", fields=fields, binary_data_output=True)
    with serving(tmp_path, batching__queue_rows=1_000_000) as there, Raw(there.port) as slow, Raw(there.port) as deaf:
        for raw in (slow, deaf):
            raw.send(data)
        until(lambda: there.gateway.statistics.of("m", "1").success == 2)
        got: list[object] = []
        reader = threading.Thread(target=lambda: got.append(slow.read()))
        reader.start()
        assert there.call(there.server.drain(2.0)) is False
        reader.join()
        assert got[0].body.endswith(rows.tobytes())  # type: ignore[attr-defined]
        there.gateway.log.close()
        assert "replies were cut off connections=1" in there.log.getvalue()
