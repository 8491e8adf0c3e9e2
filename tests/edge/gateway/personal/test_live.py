"""Over HTTP: devices get their own answers, also with concurrent requests, and withdrawn versions are not served."""

from __future__ import annotations

import json
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import numpy as np
import pytest

import lite_runtime
from federated.server.store import PersonalStore
from lite_runtime import bundle
from lite_runtime.graph import Array
from tests.edge.gateway.live import Live, live
from tests.edge.gateway.personal.fleet import SHAPES, base, fill, made, params
from tests.waiting import until

DEVICES = 6


def ask(there: Live, x: Array, device: Any, header: bool = False) -> tuple[int, dict[str, Any]]:
    body = {"inputs": [{"name": "x", "shape": x.shape, "datatype": "FP32", "data": x.ravel().tolist()}]}
    fields = {"x-msedge-device": device} if header else {}
    if not header:
        body["parameters"] = {"device": device}  # type: ignore[assignment]
    connection = HTTPConnection("127.0.0.1", there.port, timeout=300)
    try:
        connection.request("POST", "/v2/models/m/infer", json.dumps(body), fields)
        reply = connection.getresponse()
        return reply.status, json.loads(reply.read())
    finally:
        connection.close()


def outcome(reply: dict[str, Any]) -> Array:
    (output,) = reply["outputs"]
    return np.array(output["data"], np.float32).reshape(output["shape"])


def test_devices_over_http(tmp_path: Path) -> None:
    store = PersonalStore(tmp_path / "personal.sqlite")
    fill(store, "head", DEVICES)
    (tmp_path / "m.mslite").write_bytes(made("head"))
    held = bundle.read(made("head"))
    own = [lite_runtime.load(bundle.with_state(made("head"), params(held, i))) for i in range(DEVICES)]
    own.append(lite_runtime.load(made("head")))
    rng = np.random.default_rng(3)
    rows = [rng.standard_normal((1 + i % 2, *SHAPES["head"])).astype(np.float32) for i in range(28)]
    flags = {"personal__store": store.path, "personal__refresh": 0.1}
    with live({"m": tmp_path / "m.mslite"}, **flags) as there, ThreadPoolExecutor(8) as clients:
        who = [i % (DEVICES + 1) for i in range(len(rows))]  # the last one is not a device
        replies = list(clients.map(lambda i: ask(there, rows[i], f"d{who[i]}", header=i % 3 == 0), range(len(rows))))
        for x, device, (status, reply) in zip(rows, who, replies, strict=True):
            assert status == 200, reply
            assert reply["parameters"]["personal"] == ("global" if device == DEVICES else "version 1")
            (want,) = own[device].run({"x": x}).values()
            np.testing.assert_allclose(outcome(reply), want, rtol=1e-5, atol=1e-5)
        for wrong in (5, "x" * 300, ["d1"]):
            status, reply = ask(there, rows[0], wrong)
            assert status == 400 and reply["error"]
        store.put("d1", held.digest, params(held, 1), base(held), round=2, consent="none")
        until(lambda: ask(there, rows[0], "d1")[1]["parameters"]["personal"] == "global")
        _, reply = ask(there, rows[0], "d1")
        (want,) = own[DEVICES].run({"x": rows[0]}).values()
        np.testing.assert_allclose(outcome(reply), want, rtol=1e-5, atol=1e-5)


def test_a_store_that_cannot_be_read_is_no_silence(tmp_path: Path) -> None:
    store = PersonalStore(tmp_path / "personal.sqlite")
    fill(store, "dense", 2)
    (tmp_path / "m.mslite").write_bytes(made("dense"))
    x = np.ones((1, 7), np.float32)
    with live({"m": tmp_path / "m.mslite"}, personal__store=store.path, personal__refresh=0.05) as there:
        assert ask(there, x, "d0")[0] == 200
        away = Path(store.path).rename(tmp_path / "away")
        until(lambda: there.gateway.unready())
        status, reply = ask(there, x, "d0")
        assert status == 503 and "personal versions cannot be read" in reply["error"]
        assert str(tmp_path) not in reply["error"]
        assert ask(there, x, "")[0] == 200  # the common model needs no store
        text = there.gateway.metrics("")[0].decode()
        assert f'msedge_source_up{{source="{store.path}"}} 0' in text
        (row,) = (row for row in there.gateway.status()["sources"] if row["name"] == store.path)
        assert row["state"] == "stale" and "no such file" in row["reason"]
        assert not Path(store.path).exists()
        away.rename(store.path)
        until(lambda: not there.gateway.unready())
        assert ask(there, x, "d0")[1]["parameters"]["personal"] == "version 1"
        there.gateway.log.close()
        told = there.log.getvalue()
        assert "error   personal versions cannot be read" in told and "can be read again" in told


def test_a_locked_store_costs_no_request_more_than_its_deadline(tmp_path: Path) -> None:
    """Six requests with a deadline of 200 ms once waited 11 s for a writer."""
    store = PersonalStore(tmp_path / "personal.sqlite")
    fill(store, "dense", 6)
    (tmp_path / "m.mslite").write_bytes(made("dense"))
    body = {"inputs": [{"name": "x", "shape": [1, 7], "datatype": "FP32", "data": [0.0] * 7}]}
    with live({"m": tmp_path / "m.mslite"}, personal__store=store.path, personal__refresh=1000) as there:
        with closing(sqlite3.connect(store.path, isolation_level=None)) as writer, ThreadPoolExecutor(6) as clients:
            writer.execute("BEGIN EXCLUSIVE")

            def late(device: int) -> int:
                words = {**body, "parameters": {"device": f"d{device}", "timeout": 50_000}}
                request = Request(f"{there.address}/v2/models/m/infer", json.dumps(words).encode())
                with pytest.raises(HTTPError) as error:
                    urlopen(request, timeout=300)
                error.value.close()
                return error.value.code

            assert set(clients.map(late, range(6))) <= {503, 504}
        assert ask(there, np.zeros((1, 7), np.float32), "d1")[0] == 200
