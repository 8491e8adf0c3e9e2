"""Everything except inference: errors, access, pages, compression, origins, disconnects."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import http.client
import json
import threading
import zlib
from pathlib import Path

import numpy as np
import pytest

from edge.gateway.access import tokens
from tests.edge.gateway.http.raw import Raw, answer, request, scaled_request
from tests.edge.gateway.live import Live, live, scaled


def _get(path: str, **fields: str) -> bytes:
    return request(path, b"", fields, "GET")


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (_get("/nothing"), 404),
        (_get("/v2/models/nobody"), 404),
        (_get("/v2/models/nobody/ready"), 404),
        (_get("/v2/models/nobody/versions/1/config"), 404),
        (_get("/v2/models/scaled/versions/9"), 404),
        (_get("/v2/models/..%2f..%2fetc"), 404),
        (_get("/v2/models/%00"), 404),
        (request("/v2/models/sc%2faled/infer", b"{}"), 404),
        (request("/v2", b"{}"), 405),
        (request("/v2/models/scaled/infer", method="GET"), 405),
        (request("/v2/repository/index", b"[]"), 400),
        (request("/v2/repository/index", b'{"ready": 3}'), 400),
        (request("/v2/repository/index", b"\xff"), 400),
        (request("/v2/repository/models/..%2fx/load", b"{}"), 400),
        (request("/v2/repository/models/nobody/load", b'{"parameters": {"config": 3}}'), 400),
        (request("/v2/repository/models/nobody/load", b'{"parameters": {"file:../../x": "aGk="}}'), 400),
        (request("/v2/repository/models/nobody/unload", b'{"parameters": {"unload_dependents": 1}}'), 400),
        (request("/v2/repository/models/nobody/unload", b"{}"), 404),
        (request("/v2/models/scaled/infer", b"{}", {"Content-Encoding": "br"}), 415),
        (request("/v2/models/scaled/infer", b"{}", {"Content-Encoding": "gzip"}), 400),
        (request("/v2/models/scaled/infer", gzip.compress(b"{}")[:-3], {"Content-Encoding": "gzip"}), 400),
        (request("/v2/models/scaled/infer", gzip.compress(b"{}") + b"x", {"Content-Encoding": "gzip"}), 400),
        (request("/v2/models/scaled/infer", b"{}", {"Inference-Header-Content-Length": "-1"}), 400),
        (request("/v2/models/scaled/infer", b"{}", {"Inference-Header-Content-Length": "9" * 5000}), 400),
        (request("/v2/models/scaled/infer", b"{}", {"Inference-Header-Content-Length": "3"}), 400),
    ],
)
def test_errors_are_json(gateway: Live, data: bytes, status: int) -> None:
    with Raw(gateway.port) as raw:
        got = raw.ask(data)
        assert (got.status, bool(got.error)) == (status, True)
    assert not gateway.gateway.under_way


def test_bombs_are_refused(tmp_path: Path) -> None:
    """A megabyte that becomes a gigabyte costs no more than the limit."""
    with live({"m": scaled(tmp_path / "m.mslite", 1.0)}, limits__body=1 << 16) as there, Raw(there.port) as raw:
        zeros = bytes(10_000_000)
        for coding, packed in (("gzip", gzip.compress(zeros)), ("deflate", zlib.compress(zeros))):
            got = raw.ask(request("/v2/models/m/infer", packed, {"Content-Encoding": coding}))
            assert got.status == 413 and "decompressed" in got.error
        with Raw(there.port) as other:
            assert other.ask(scaled_request(np.zeros((20_000, 4), np.float32), model="m")).status == 413


def test_health_pages_and_metrics(gateway: Live) -> None:
    with Raw(gateway.port) as raw:
        assert json.loads(raw.ask(_get("/v2/health/live")).body) == {"live": True}
        assert json.loads(raw.ask(_get("/v2/health/ready")).body) == {"ready": True}
        assert raw.ask(scaled_request(np.ones((3, 4), np.float32))).status == 200
        text = raw.ask(_get("/metrics")).body.decode()
        assert 'nv_inference_request_success{model="scaled",version="1"}' in text
        found = json.loads(raw.ask(_get("/status.json")).body)
        assert found["state"] == "ready" and {row["name"] for row in found["models"]} >= {"scaled", "simple"}
        for path in ("/status", "/docs"):
            page = raw.ask(_get(path))
            assert page.body.startswith(b"<!doctype html>")
            assert "default-src 'none'" in page.fields["content-security-policy"]
        assert json.loads(raw.ask(_get("/openapi.json")).body)["openapi"].startswith("3.1")
    connection = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=300)
    connection.request("HEAD", "/v2/health/live")
    assert connection.getresponse().status == 200
    connection.close()


def test_tokens_and_scopes(tmp_path: Path) -> None:
    bundle, file = scaled(tmp_path / "m.mslite", 1.0), tmp_path / "tokens.json"
    asks, runs = tokens.add(file, "asks", ["infer"]), tokens.add(file, "runs", ["manage", "metrics"])
    x = np.ones((1, 4), np.float32)
    told = {"access__tokens": str(file), "access__management": "token", "access__metrics": "token"}
    with live({"m": bundle}, **told) as there, Raw(there.port) as raw:

        def status(data: bytes) -> int:
            got = raw.ask(data)
            assert got.status == 200 or got.error
            return got.status

        def bearing(token: str) -> dict[str, str]:
            return {"Authorization": f"Bearer {token}"}

        assert status(scaled_request(x, model="m")) == 401
        assert status(scaled_request(x, model="m", fields=bearing("wrong"))) == 401
        assert status(scaled_request(x, model="m", fields=bearing(runs))) == 403
        assert status(scaled_request(x, model="m", fields=bearing(asks))) == 200
        unload = "/v2/repository/models/m/unload"
        assert status(request(unload, b"{}", bearing(asks))) == 403
        assert status(request(unload, b"{}")) == 401
        assert status(_get("/metrics", **bearing(asks))) == 403
        assert status(_get("/metrics", **bearing(runs))) == 200
        assert status(_get("/v2/health/live")) == 200
        assert status(request(unload, b"{}", bearing(runs))) == 200


def test_management_can_be_off(tmp_path: Path) -> None:
    with live({"m": scaled(tmp_path / "m.mslite", 1.0)}, access__management="off") as there, Raw(there.port) as raw:
        assert raw.ask(request("/v2/repository/models/m/unload", b"{}")).status == 403
        assert raw.ask(scaled_request(np.ones((1, 4), np.float32), model="m")).status == 200


def test_pages_of_other_origins(gateway: Live) -> None:
    """A page of another origin in the owner's browser may neither manage nor read, unless it is allowed to."""
    with Raw(gateway.port) as raw:
        got = raw.ask(request("/v2/repository/models/simple/unload", b"{}", {"Origin": "https://evil.example"}))
        assert got.status == 403 and "access-control-allow-origin" not in got.fields
        got = raw.ask(scaled_request(np.ones((1, 4), np.float32), fields={"Origin": "https://evil.example"}))
        assert "access-control-allow-origin" not in got.fields


def test_origins_that_are_allowed(tmp_path: Path) -> None:
    bundle = scaled(tmp_path / "m.mslite", 1.0)
    with live({"m": bundle}, access__cors=["https://app.example"]) as there, Raw(there.port) as raw:
        asks = {"Origin": "https://app.example", "Access-Control-Request-Method": "POST"}
        before = raw.ask(request("/v2/models/m/infer", b"", asks, "OPTIONS"))
        assert before.status == 204 and before.fields["access-control-allow-origin"] == "https://app.example"
        got = raw.ask(scaled_request(np.ones((1, 4), np.float32), model="m", fields={"Origin": "https://app.example"}))
        assert got.status == 200 and got.fields["access-control-allow-origin"] == "https://app.example"


def test_slow_clients_are_disconnected(tmp_path: Path) -> None:
    bundle = scaled(tmp_path / "m.mslite", 1.0)
    told = {"limits__header_seconds": 0.5, "limits__body_seconds": 0.5, "limits__idle_seconds": 0.5}
    data = scaled_request(np.ones((1, 4), np.float32), model="m")
    unfinished = request("/v2/models/m/infer", b"{", {"TE": "x"}, length="100")
    with live({"m": bundle}, **told) as there, contextlib.ExitStack() as stack:
        silent, *slow = (stack.enter_context(Raw(there.port)) for _ in range(4))
        for raw, sent in zip(slow, (data[:20], data[:-3], unfinished), strict=True):
            raw.send(sent)
        for raw in slow:
            late = raw.read()
            assert late.status == 408 and late.error and raw.closed()
        assert silent.closed()


def test_an_unloaded_model_is_loaded_for_its_metadata(tmp_path: Path) -> None:
    """Two models and memory for one: a request for the metadata of the unloaded one loads it again."""
    models = {name: scaled(tmp_path / f"{name}.mslite", 2.0) for name in "ab"}
    with live({"a": models["a"]}, batching__rows=1) as alone:
        room = int(1.5 * alone.gateway.repository.nbytes)
    x = np.ones((1, 4), np.float32)
    with live(models, repository__memory=str(room), batching__rows=1) as there, Raw(there.port) as raw:
        assert raw.ask(scaled_request(x, model="a")).status == raw.ask(scaled_request(x, model="b")).status == 200
        for name in "abab":
            found = json.loads(raw.ask(_get(f"/v2/models/{name}")).body)
            assert found["name"] == name and found["inputs"][0]["shape"] == [-1, 4]
            assert raw.ask(_get(f"/v2/models/{name}/config")).status == 200


def test_raw_bodies_are_answered_in_the_format_the_client_accepts(gateway: Live) -> None:
    body, raw_body = np.ones((1, 4), np.float32).tobytes(), {"Inference-Header-Content-Length": "0"}
    with Raw(gateway.port) as raw:
        got = raw.ask(request("/v2/models/scaled/infer", body, {**raw_body, "Accept": "application/json"}))
        np.testing.assert_array_equal(answer(got), [[1, 1, 1, 1]])
        got = raw.ask(request("/v2/models/scaled/infer", body, raw_body))
        assert got.fields["content-type"] == "application/octet-stream" and got.body.endswith(body)


def test_drained(tmp_path: Path) -> None:
    """Requests in flight are answered, later ones are refused, connections are closed."""
    x = np.ones((1, 4), np.float32)
    with live({"m": scaled(tmp_path / "m.mslite", 3.0)}) as there:  # noqa: SIM117 # the server first
        with Raw(there.port) as idle, Raw(there.port) as asking, Raw(there.port) as slow:
            np.testing.assert_array_equal(answer(asking.ask(scaled_request(x, model="m"))), 3 * x)
            assert slow.ask(_get("/v2/health/ready")).status == 200
            data = scaled_request(x, model="m")
            asking.send(data[:-5])
            done: list[object] = []

            async def leave() -> None:
                done.append(await asyncio.gather(there.gateway.drain(5), there.server.drain(5)))

            thread = threading.Thread(target=lambda: there.call(leave()))
            thread.start()
            thread.join(300)
            assert done == [[True, True]]
            assert idle.closed()
            asking.send(data[-5:])
            late = asking.read()
            assert late.status == 503 and "retry-after" in late.fields and late.fields["connection"] == "close"
            with pytest.raises(OSError):
                Raw(there.port)
