"""Start and end of the listening socket, and answers to clients without a token."""

from __future__ import annotations

import asyncio
import gzip
import json
import select
import socket
from pathlib import Path

import numpy as np
import pytest

from edge.gateway.access import tokens
from edge.gateway.errors import GatewayError
from edge.gateway.http.app import LARGE
from edge.gateway.http.server import LINGER
from edge.gateway.http.serving import exposures, serve
from edge.gateway.operate.sources import resolve
from edge.gateway.pages.operations import REQUEST_HEADERS
from tests.edge.gateway.http.raw import Raw, request, scaled_request
from tests.edge.gateway.live import live, scaled
from tests.waiting import until


def test_an_address_already_in_use(tmp_path: Path) -> None:
    """Said in a sentence, whatever had not begun when it was found out."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        model = str(scaled(tmp_path / "m.mslite", 1.0))
        settings = resolve({"models": (model,), "port": port}, environment={}, folder=Path("/"))
        with pytest.raises(GatewayError, match=f"cannot listen at 127.0.0.1:{port}"):
            asyncio.run(serve(settings, lambda address: None))


def test_a_body_that_never_arrives_does_not_delay_shutdown(tmp_path: Path) -> None:
    with live({"m": scaled(tmp_path / "m.mslite", 1.0)}) as there, Raw(there.port) as raw:
        packed = {"Content-Encoding": "gzip"}  # aiohttp's to read
        raw.send(request("/v2/models/m/infer", b"\x1f", packed, length="100"))
        until(lambda: there.server._server.connections)
        assert there.server._runner._shutdown_timeout == LINGER  # aiohttp's own patience is a minute
        there.call(there.server.stop())
        assert raw.closed()


def test_a_large_reply_is_compressed_as_it_was(tmp_path: Path) -> None:
    """Away from the loop's thread, and to the same bytes."""
    x = np.arange(LARGE, dtype=np.float32).reshape(-1, 4)
    told = {"Accept-Encoding": "gzip", "Connection": "close", "Upgrade-Insecure-Requests": "1"}
    with live({"m": scaled(tmp_path / "m.mslite", 2.0)}, batching__queue_rows=1 << 20) as there, Raw(there.port) as raw:
        data = scaled_request(x, model="m", fields={**told, "TE": "trailers"}, binary_data_output=True)
        got = raw.ask(data)
        assert (got.status, got.fields["content-encoding"]) == (200, "gzip"), got.body[:200]
        payload = gzip.decompress(got.body)
        np.testing.assert_array_equal(
            np.frombuffer(payload[int(got.fields["inference-header-content-length"]) :], np.float32), 2 * x.ravel()
        )


def test_the_document_shows_no_models_without_a_token(tmp_path: Path) -> None:
    """If tokens are on, names and inputs of models are shown only to clients with a token."""
    file, bundle = tmp_path / "tokens.json", scaled(tmp_path / "m.mslite", 1.0)
    tokens.add(file, "asks", ["infer"])
    ask = request("/openapi.json", b"", method="GET")
    with live({"confidential": bundle}, access__tokens=str(file)) as there, Raw(there.port) as raw:
        found = raw.ask(ask).body
        assert b"confidential" not in found and "securitySchemes" in json.loads(found)["components"]
    with live({"confidential": bundle}) as there, Raw(there.port) as raw:
        assert b"confidential" in raw.ask(ask).body


def test_pages_of_allowed_origins_may_send_every_field(tmp_path: Path) -> None:
    told = {"access__cors": ["https://app.example"], "batching__queue_rows": 1}
    origin = {"Origin": "https://app.example"}
    with live({"m": scaled(tmp_path / "m.mslite", 1.0)}, **told) as there, Raw(there.port) as raw:
        asks = {**origin, "Access-Control-Request-Method": "POST"}
        before = raw.ask(request("/v2/models/m/infer", b"", asks, "OPTIONS"))
        allowed = before.fields["access-control-allow-headers"].lower().split(", ")
        assert {name.lower() for name in REQUEST_HEADERS} < set(allowed)
        got = raw.ask(scaled_request(np.ones((1, 4), np.float32), model="m", fields=origin))
        assert got.status == 200 and "Retry-After" in got.fields["access-control-expose-headers"]


@pytest.mark.parametrize("fields", [{}, {"Content-Encoding": "identity"}])
def test_bodies_share_one_memory_limit(tmp_path: Path, fields: dict[str, str]) -> None:
    """In both readers, what was declared is reserved, and given back when the client leaves."""
    binary = {**fields, "Inference-Header-Content-Length": "0"}
    half = request("/v2/models/m/infer", bytes(20_000), binary, length="40000")
    told = {"limits__body": 50_000, "limits__bodies": 100_000, "access__proxies": ["127.0.0.1"]}
    with live({"m": scaled(tmp_path / "m.mslite", 1.0)}, **told) as there:
        slow = [Raw(there.port) for _ in range(10)]
        try:
            for raw in slow:
                raw.send(half)
            refused: list[socket.socket] = []

            def enough() -> bool:
                refused[:] = select.select([raw.socket for raw in slow], [], [], 0)[0]
                return len(refused) >= 8

            until(enough)
            assert there.gateway.room.taken == 80_000
            for raw in slow:
                if raw.socket in refused:
                    got = raw.read()
                    assert got.status == 503 and "retry-after" in got.fields and "memory" in got.error
        finally:
            for raw in slow:
                raw.socket.close()
        until(lambda: there.gateway.room.taken == 0)


@pytest.mark.parametrize(
    "told, warned",
    [
        ({}, []),
        ({"host": "0.0.0.0"}, ["everybody who can reach 0.0.0.0"]),
        ({"host": "::", "access.tokens": "t"}, ["without encryption"]),
        ({"host": "::", "access.tokens": "t", "tls.certificate": "c", "tls.key": "k"}, []),
        ({"personal.store": "p"}, ["any device"]),
        ({"personal.store": "p", "access.tokens": "t"}, []),
    ],
)
def test_what_strangers_may_do_is_said(told: dict[str, str], warned: list[str]) -> None:
    found = list(exposures(resolve(told, environment={}, folder=Path("/"))))
    assert len(found) == len(warned) and all(part in text for part, text in zip(warned, found, strict=True))
