"""The fast lane: requests in pieces, in a row, truncated, too large; requests it passes on; both paths answer alike."""

from __future__ import annotations

import contextlib
import json
import random
import time

import numpy as np
import pytest

from edge.gateway.http.heads import Heads
from tests.edge.gateway.http.raw import Raw, answer, request, scaled_request
from tests.edge.gateway.live import Live
from tests.waiting import until


def _x(rows: int = 1) -> np.ndarray:
    return np.random.default_rng().random((rows, 4), np.float32)


def test_many_requests_on_one_connection(gateway: Live) -> None:
    with Raw(gateway.port) as raw:
        for rows in (1, 3, 64, 7, 2000, 1):
            x = _x(rows)
            np.testing.assert_array_equal(answer(raw.ask(scaled_request(x))), x)


@pytest.mark.parametrize("seed", range(8))
def test_a_request_may_arrive_in_pieces(gateway: Live, seed: int) -> None:
    """Consecutive requests, cut at any byte, are answered in order."""
    rng = random.Random(seed)
    xs = [_x(rng.choice([1, 2, 5, 1500])) for _ in range(6)]
    data = b"".join(scaled_request(x, binary=rng.random() < 0.7) for x in xs)
    cuts = sorted(rng.randrange(len(data)) for _ in range(rng.randrange(12)))
    with Raw(gateway.port) as raw:
        for begin, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
            raw.send(data[begin:end])
            if rng.random() < 0.3:
                time.sleep(0.002)
        for x in xs:
            np.testing.assert_allclose(answer(raw.read()), x)


def test_byte_by_byte(gateway: Live) -> None:
    x = _x()
    with Raw(gateway.port) as raw:
        for byte in scaled_request(x):
            raw.send(bytes([byte]))
        np.testing.assert_array_equal(answer(raw.read()), x)


def test_both_lanes_answer_alike(gateway: Live) -> None:
    """A header that only aiohttp reads changes nothing of the answer."""
    x = _x(2)
    for binary in (True, False):
        with Raw(gateway.port) as fast, Raw(gateway.port) as slow:
            one = fast.ask(scaled_request(x, binary=binary))
            other = slow.ask(scaled_request(x, binary=binary, fields={"TE": "trailers"}))
            assert one.status == other.status == 200
            assert one.body == other.body
            assert one.fields["content-type"] == other.fields["content-type"]


def test_handed_over_with_the_bytes_already_read(gateway: Live) -> None:
    """After requests of the lane's shape, another one on the same connection, and back again."""
    x = _x()
    with Raw(gateway.port) as raw:
        raw.send(scaled_request(x) + request("/v2/health/live", method="GET") + scaled_request(x))
        np.testing.assert_array_equal(answer(raw.read()), x)
        assert json.loads(raw.read().body) == {"live": True}
        np.testing.assert_array_equal(answer(raw.read()), x)


def test_an_error_leaves_the_connection_as_it_was(gateway: Live) -> None:
    x = _x()
    with Raw(gateway.port) as raw:
        bad = raw.ask(request("/v2/models/scaled/infer", b"{", {}))
        assert bad.status == 400 and "JSON" in bad.error
        assert raw.ask(request("/v2/models/nobody/infer", b"{}", {})).status == 404
        np.testing.assert_array_equal(answer(raw.ask(scaled_request(x))), x)


def test_close_is_asked_for(gateway: Live) -> None:
    x = _x()
    with Raw(gateway.port) as raw:
        np.testing.assert_array_equal(answer(raw.ask(scaled_request(x, fields={"Connection": "close"}))), x)
        assert raw.closed()


def test_a_client_that_leaves(gateway: Live) -> None:
    """In the middle of a head, of a body, and after a whole request: nothing stays behind."""
    data = scaled_request(_x(3000))
    for end in (10, len(data) // 2, len(data)):
        raw = Raw(gateway.port)
        raw.send(data[:end])
        raw.socket.close()
    lanes = gateway.server._lanes
    until(lambda: not (gateway.gateway.under_way or lanes.open or gateway.gateway.room.taken))
    with Raw(gateway.port) as raw:
        assert raw.ask(scaled_request(_x())).status == 200


def test_request_ids_come_back(gateway: Live) -> None:
    with Raw(gateway.port) as raw:
        assert raw.ask(scaled_request(_x(), fields={"X-Request-ID": "abc-1"})).fields["x-request-id"] == "abc-1"
        made = [raw.ask(scaled_request(_x(), fields=f)).fields["x-request-id"] for f in ({}, {"X-Request-ID": "a b"})]
        assert len(set(made)) == 2 and "a b" not in made


HOSTILE = {
    "two lengths": (b"Content-Length: 3\r\nContent-Length: 3\r\n", 400),
    "two lengths that differ": (b"Content-Length: 3\r\nContent-Length: 4\r\n", 400),
    "length and chunks": (b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n", 400),
    "a length with a sign": (b"Content-Length: +3\r\n", 400),
    "a length in hex": (b"Content-Length: 0x3\r\n", 400),
    "a negative length": (b"Content-Length: -3\r\n", 400),
    "a huge length": (b"Content-Length: 99999999999999999999999\r\n", (400, 413)),
    "a length beyond the limit": (b"Content-Length: 99999999999\r\n", 413),
    "a blank before the colon": (b"Content-Length : 3\r\n", 400),
    "a folded line": (b"X-A: b\r\n c\r\nContent-Length: 3\r\n", 400),
    "a null": (b"X-A: b\0c\r\nContent-Length: 3\r\n", 400),
    "a bare carriage return": (b"X-A: b\rc\r\nContent-Length: 3\r\n", 400),
    "a long field": (b"X-A: " + b"b" * 10000 + b"\r\nContent-Length: 3\r\n", 400),
    "many fields": (b"".join(b"X-%d: b\r\n" % i for i in range(300)) + b"Content-Length: 3\r\n", 400),
    "chunks that lie": (b"Transfer-Encoding: chunked\r\n", 400),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_heads_that_are_refused(gateway: Live, name: str) -> None:
    """With a status, in JSON, and the connection is closed, so that no second request can be hidden after such a
    head."""
    lines, expected = HOSTILE[name]
    with Raw(gateway.port) as raw:
        got = raw.ask(b"POST /v2/models/scaled/infer HTTP/1.1\r\nHost: a\r\n" + lines + b"\r\nZZZ\r\n")
        assert got.status in (expected if isinstance(expected, tuple) else (expected,)), got
        assert got.error
        assert raw.closed()


@pytest.mark.parametrize(
    "data", [b"\0" * 100, b"GET / HTTP/9.9\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00", b"\r\n\r\n", b"A" * 20000]
)
def test_bytes_that_are_not_http(gateway: Live, data: bytes) -> None:
    with Raw(gateway.port, timeout=3) as raw:
        raw.send(data)
        raw.socket.shutdown(1)
        with contextlib.suppress(EOFError, ConnectionError):
            assert raw.read().status in (400, 404, 505)
    with Raw(gateway.port) as raw:
        assert raw.ask(scaled_request(_x())).status == 200


LINE = b"POST /v2/models/m/infer HTTP/1.1\r\n"
HEADS = {
    b"Host: a\r\nContent-Length: 5\r\n": True,
    b"host:a\r\ncontent-length:5\r\nConnection: Keep-Alive\r\n": True,
    b"Host: a\r\nContent-Length: 5\r\nConnection: close\r\n": True,
    b"Host: a\r\nContent-Length: 5\r\nConnection: upgrade\r\n": False,
    b"Content-Length: 5\r\n": False,
    b"Host: a\r\nHost: b\r\nContent-Length: 5\r\n": False,
    b"Host: a\r\n": False,
    b"Host: a\r\nContent-Length: \r\n": False,
    b"Host: a\r\nContent-Length: 5 5\r\n": False,
    b"Host: a\r\nContent-Length: 5\r\nExpect: 100-continue\r\n": False,
    b"Host: a\r\nContent-Length: 5\r\nContent-Encoding: gzip\r\n": False,
    b"Host: a\r\nContent-Length: 5\r\nOrigin: http://a\r\n": False,
    b"Host: a\r\n: b\r\nContent-Length: 5\r\n": False,
    b"Host: a\nContent-Length: 5\r\n": False,
}


@pytest.mark.parametrize("lines", HEADS)
def test_which_heads_the_lane_takes(lines: bytes) -> None:
    found = Heads().read(LINE + lines + b"\r\n")
    assert (found is not None) is HEADS[lines]
    if found is not None:
        assert found.length == 5 and found.model == "m"
        assert found.keep is (b"close" not in lines)


@pytest.mark.parametrize(
    "line",
    [b"GET /v2/models/m/infer HTTP/1.1", b"POST /v2/models/m%2fn/infer HTTP/1.1", b"POST /v2/models/../infer HTTP/1.1",
     b"POST /v2/models/m/infer HTTP/1.0", b"POST /v2/models/m/infer?a=b HTTP/1.1", b"POST  /v2/models/m/infer HTTP/1.1",
     b"POST /v2/models/.m/infer HTTP/1.1", b"POST http://a/v2/models/m/infer HTTP/1.1"],
)  # fmt: skip
def test_requests_that_aiohttp_handles(line: bytes) -> None:
    assert Heads().read(line + b"\r\nHost: a\r\nContent-Length: 5\r\n\r\n") is None


def test_a_field_of_blanks_takes_no_time() -> None:
    begun = time.process_time()
    assert Heads().read(LINE + b"Host: a\r\nX:" + b" " * 15000 + b"\0\r\nContent-Length: 5\r\n\r\n") is None
    assert time.process_time() - begun < 1
