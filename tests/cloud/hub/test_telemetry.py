"""Telemetry at the hub: each batch once, added up, of versions that a device has, and little of each device."""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from cloud.hub.database import telemetry as stored
from cloud.hub.server.fleet import Fleet
from cloud.hub.server.observing import Observer
from edge.agent.conversation import Conversation, RefusedError
from edge.agent.telemetry import Private, Telemetry
from lite_runtime.updates.checkin import Application, Report
from lite_runtime.updates.sketch import Sketch
from lite_runtime.updates.telemetry import Batch, Part, packed, written
from tests.cloud.hub.serving import Running, running
from tests.waiting import until

ONE = Report(applications={"keys": Application("1")})


@pytest.fixture
def hub(tmp_path: Path, address: str) -> Iterator[Running]:
    with running(tmp_path / "hub", address, telemetry=True) as made:
        yield made


def batch(serial: int, *values: float, version: str = "1", **more: Any) -> bytes:
    sketch = Sketch()
    for value in values:
        sketch.add(value)
    part = Part("keys", version, 0.0, 1.0, {"inferences": len(values)}, {"latency_ms": packed(sketch)}, **more)
    return written(Batch(serial, (part,)))


def found(hub: Running) -> dict[str, Any]:
    rows = hub.order("GET", "/v1/telemetry/keys", token=hub.viewer).json["telemetry"]
    return {f"{row['kind']} {row['name']} {row['version']}": row["data"] for row in rows}


def device(hub: Running, name: str) -> Conversation:
    made = hub.device(name)
    assert made.check_in(ONE).telemetry
    return made


def test_batches_are_added_up_each_once(hub: Running) -> None:
    one, two = device(hub, "one"), device(hub, "two")
    one.telemetry(batch(1, 1.0, 2.0, 3.0))
    one.telemetry(batch(1, 1.0, 2.0, 3.0))
    one.telemetry(batch(2, 4.0))
    two.telemetry(batch(1, 5.0, classes={"answer": {"yes": 3.0}}))
    two.telemetry(batch(2, classes={"answer": {"yes": 1.0, "no": 2.0}}))
    rows = found(hub)
    assert rows["counter inferences 1"] == {"number": 5}
    assert (rows["sketch latency_ms 1"]["count"], rows["sketch latency_ms 1"]["batches"]) == (5, 4)
    assert rows["sketch latency_ms 1"]["p50"] == pytest.approx(3, rel=0.011)
    assert rows["classes answer 1"]["sums"] == {"yes": 4.0, "no": 2.0}


def test_one_device_counts_little_whatever_it_claims(hub: Running) -> None:
    honest = [device(hub, f"h{n}") for n in range(9)]
    liar = device(hub, "liar")
    for each in honest:
        each.telemetry(batch(1, *[1.0] * 500, classes={"answer": {"yes": 500.0}}))
    sketch = Sketch()
    sketch.add(1000.0, 1e15)
    part = Part("keys", "1", 0.0, 1.0, {}, {"latency_ms": packed(sketch)}, {"answer": {"no": 9e8}})
    liar.telemetry(written(Batch(1, (part,))))
    rows = found(hub)
    assert rows["sketch latency_ms 1"]["p50"] == pytest.approx(1, rel=0.011)
    assert rows["classes answer 1"]["sums"] == pytest.approx({"yes": 4500.0, "no": stored.VOTES})


def test_of_versions_that_a_device_does_not_have_nothing_is_taken(hub: Running) -> None:
    liar = device(hub, "liar")
    liar.telemetry(batch(1, 1.0, version="2"))
    liar.telemetry(batch(2, 1.0))
    assert {key.rpartition(" ")[2] for key in found(hub)} == {"1"}


def test_too_many_batches_are_refused(hub: Running) -> None:
    flood = device(hub, "flood")
    with pytest.raises(Exception, match="at most 48 batches a day"):
        for serial in range(1, 60):
            flood.telemetry(batch(serial, 1.0))
    device(hub, "other").telemetry(batch(1, 1.0))


def test_a_bomb_and_junk_are_refused(hub: Running) -> None:
    one = device(hub, "one")
    for body, status in ((gzip.compress(b" " * (1 << 26)), 413), (gzip.compress(b"{}"), 400), (b"\x1f\x8b", 400)):
        assert hub.ask("POST", "/v1/telemetry", body, one._token, Content_Encoding="gzip").status == status
    assert hub.ask("POST", "/v1/telemetry", batch(1, 1.0)).status == 401


def test_a_hub_that_wants_none_says_so(tmp_path: Path) -> None:
    with running(tmp_path / "hub", str(tmp_path / "hub.sqlite")) as hub:
        one = hub.device("one")
        assert not one.check_in(ONE).telemetry
        with pytest.raises(RefusedError, match="takes no telemetry"):
            one.telemetry(batch(1, 1.0))


def test_noisy_shares_of_many_devices_give_their_mean(hub: Running, tmp_path: Path) -> None:
    private = Private(20.0, 1e-3, 1, {"answer": ("yes", "no")})
    for number in range(12):
        telemetry = Telemetry(tmp_path / f"{number}.json", enabled=True, private=private)
        for _ in range(10):
            telemetry.seen("keys", "1", "answer", "yes" if number < 10 else "no")
        telemetry.flush(1.0)
        assert telemetry.send(device(hub, f"d{number}")) == 1
    data = found(hub)["private answer 1"]
    assert (data["epsilon"], data["batches"]) == (20.0, 12)
    assert data["shares"]["yes"] == pytest.approx(0.83, abs=0.8)


# -- OpenTelemetry -----------------------------------------------------------------------------------------------------


def test_the_state_of_the_fleet_is_observed(tmp_path: Path) -> None:
    metrics = pytest.importorskip("opentelemetry.sdk.metrics.export")
    reader = metrics.InMemoryMetricReader()
    with running(tmp_path / "hub", str(tmp_path / "hub.sqlite")) as hub:
        one = hub.device("one")
        plan = {"application": "keys", "version": "2", "steps": [100]}
        hub.order("POST", "/v1/rollouts", plan, hub.token("ann", "operator"))
        one.check_in(ONE)

        def fleet() -> Fleet:
            return hub.hub.fleet

        observer = Observer(reader, fleet)
        observer.request("/v1/check-in", 200, 0.003)
        data = json.loads(reader.get_metrics_data().to_json())
        observer.close()
    points = {
        (metric["name"], *sorted(point["attributes"].items())): point.get("value", point.get("count"))
        for scope in data["resource_metrics"][0]["scope_metrics"]
        for metric in scope["metrics"]
        for point in metric["data"]["data_points"]
    }
    (identity,) = hub.hub.fleet.rollouts
    assert points["msedge.hub.devices", ("state", "active")] == 1
    assert points["msedge.hub.versions", ("application", "keys"), ("version", "1")] == 1
    assert points["msedge.hub.rollout.members", ("rollout", identity), ("verdict", "open")] == 1
    assert points["msedge.hub.rollout.percent", ("rollout", identity)] == 100
    assert points["msedge.hub.requests", ("path", "/v1/check-in"), ("status", 200)] == 1
    assert points["msedge.hub.request.duration", ("path", "/v1/check-in"), ("status", 200)] == 1


def test_a_collector_gets_the_figures(tmp_path: Path) -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    bodies: list[bytes] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            raw = self.rfile.read(int(self.headers["Content-Length"]))
            bodies.append(gzip.decompress(raw) if self.headers.get("Content-Encoding") == "gzip" else raw)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Collector) as server:
        threading.Thread(target=server.serve_forever).start()
        collector = f"http://127.0.0.1:{server.server_port}/v1/metrics"
        with running(tmp_path / "hub", str(tmp_path / "hub.sqlite"), collector=collector) as hub:
            hub.device("one").check_in(ONE)
        until(lambda: bodies)
        server.shutdown()
    assert b"msedge.hub.requests" in bodies[-1]
    assert b"/v1/check-in" in bodies[-1]


def test_no_device_fills_the_disk_with_names(hub: Running) -> None:
    one, two = device(hub, "one"), device(hub, "two")
    for serial in range(1, 8):
        parts = tuple(Part("keys", "1", 0.0, 1.0, {f"n{serial}-{n}": 1 for n in range(100)}) for _ in range(2))
        one.telemetry(written(Batch(serial, parts)))
    two.telemetry(written(Batch(1, (Part("keys", "1", 0.0, 1.0, {"n1-1": 5, "late": 1}),))))
    rows = found(hub)
    assert len(rows) == stored.MOST_NAMES
    assert rows["counter n1-1 1"] == {"number": 7} and "counter late 1" not in rows
