"""Findings of the fuzzer, and cases it finds rarely: other versions of HTTP, clients that do not read, large JSON."""

from __future__ import annotations

import socket
from pathlib import Path

import numpy as np
import pytest

from tests.edge.gateway.http.raw import Raw, answer, request, scaled_request
from tests.edge.gateway.live import Live, live, scaled
from tests.waiting import until

X = np.arange(4, dtype=np.float32).reshape(1, 4)


@pytest.mark.parametrize("version", ["HTTP/2.0", "HTTP/0.9"])
def test_other_versions_of_http(gateway: Live, version: str) -> None:
    """Are refused in ours: a reply that claims to be theirs would be read as theirs."""
    with Raw(gateway.port) as raw:
        raw.send(scaled_request(X).replace(b"HTTP/1.1", version.encode(), 1))
        line = raw.socket.recv(12, socket.MSG_PEEK | socket.MSG_WAITALL)
        assert line == b"HTTP/1.1 505"
        assert version in raw.read().error
        assert raw.closed()


@pytest.mark.parametrize("path", ["/v2/models/scaled/infer", "/nothing"])
@pytest.mark.parametrize("expected", ["tea", "\xff\xfe"])
def test_unsupported_expectations(gateway: Live, path: str, expected: str) -> None:
    with Raw(gateway.port) as raw:
        got = raw.ask(request(path, b"{}", {"Expect": expected}))
        assert got.status == 417 and "100-continue" in got.error
        assert raw.closed()
    assert "internal server error" not in gateway.log.getvalue()


def test_a_client_that_does_not_read_is_disconnected(tmp_path: Path) -> None:
    with live({"m": scaled(tmp_path / "m.mslite", 1.0)}, limits__body_seconds=1.0) as there:
        deaf = socket.create_connection(("127.0.0.1", there.port), timeout=1)
        try:
            with pytest.raises(OSError):  # nothing more is taken, at some time, or the connection is gone
                deaf.sendall(request("/openapi.json", method="GET") * 100_000)
            assert there.server._server.connections or there.server._lanes.open
            until(lambda: not (there.server._server.connections or there.server._lanes.open))
        finally:
            deaf.close()


def test_large_json_is_read_in_a_thread(gateway: Live) -> None:
    """As much as keeps the loop from others; the answer is the same, and so are errors."""
    x = np.random.default_rng(1).random((4000, 4), np.float32)
    with Raw(gateway.port) as raw:
        np.testing.assert_allclose(answer(raw.ask(scaled_request(x, binary=False))), x, rtol=1e-6)
        assert raw.ask(request("/v2/models/scaled/infer", b'{"inputs":[' + b"1," * 200_000 + b"1]")).status == 400
        flood = raw.ask(request("/v2/models/scaled/infer", b'{"inputs":[' + b"{}," * 400_000 + b"{}]}"))
        assert flood.status == 413 and "brackets" in flood.error
        raw.send(request("/v2/models/scaled/infer", b'{"inputs":[' + b"1," * 200_000 + b"1]"))
    until(lambda: not gateway.gateway.under_way)  # that client left


def test_text_instead_of_a_number_is_not_an_internal_error(gateway: Live) -> None:
    """One bad text in the first of many rows is the client's fault, whatever the rows are cut into."""
    words = ["7"] * 48
    tensors = [{"name": f"INPUT{i}", "shape": [3, 16], "datatype": "BYTES", "data": words} for i in (0, 1)]
    tensors[1] = {**tensors[1], "data": ["", *words[1:]]}
    with Raw(gateway.port) as raw:
        got = raw.ask(request("/v2/models/simple_string/infer", {"inputs": tensors}))
        assert got.status == 400 and got.error
