"""/metrics as prometheus_client's parsers read it."""

from __future__ import annotations

import asyncio
import time
from math import inf
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.gateway.job import Job
from edge.gateway.operate.exposition import OPENMETRICS, PROMETHEUS, Family, expose
from edge.gateway.operate.histograms import Histogram
from edge.gateway.operate.metrics import Gauges, LoopLag, families
from edge.gateway.operate.statistics import Statistics

plain = pytest.importorskip("prometheus_client.parser")
openmetrics = pytest.importorskip("prometheus_client.openmetrics.parser")

MODEL = {"model": "m", "version": "1"}


def parsed(found: list[Family], accept: str = "") -> dict[str, Any]:
    text, kind = expose(found, accept)
    parser = openmetrics if kind == OPENMETRICS else plain
    return {family.name: family for family in parser.text_string_to_metric_families(text.decode())}


def value(found: dict[str, Any], family: str, sample: str, **labels: str) -> float:
    # The parser of Prometheus' text names the samples of every counter ..._total, whatever the text says.
    (one,) = [s for s in found[family].samples if s.name in (sample, f"{sample}_total") and s.labels == labels]
    return float(one.value)


def some() -> list[Family]:
    made = Statistics()
    numbers = made.of("m", "1")
    now = time.perf_counter()
    job = Job({}, 3, lambda job: None, arrived=now)
    job.begun, job.input_seconds, job.computed, job.batch = now + 0.001, 0.001, now + 0.004, 3
    numbers.record(job, now + 0.005)
    numbers.fail(None, 429, now)
    made.refused["infer", 401] += 2
    gauges = Gauges(pending={("m", "1"): 4}, loaded_bytes={("m", "1"): 5}, personal_hits={"m": 6}, under_way=7)
    return families(made, gauges)


@pytest.mark.parametrize("accept", ["", "application/openmetrics-text"])
def test_triton_s_names(accept: str) -> None:
    found = parsed(some(), accept)
    for name, expected in {
        "nv_inference_request_success": 1, "nv_inference_count": 3, "nv_inference_exec_count": 1,
        "nv_inference_request_duration_us": 5000, "nv_inference_queue_duration_us": 1000,
        "nv_inference_compute_input_duration_us": 1000, "nv_inference_compute_infer_duration_us": 2000,
        "nv_inference_compute_output_duration_us": 1000,
    }.items():  # fmt: skip
        assert value(found, name, name, **MODEL) == pytest.approx(expected, abs=1)
        assert found[name].type == ("unknown" if accept else "counter")
    text = expose(some(), accept)[0].decode()
    assert 'nv_inference_request_success{model="m",version="1"} 1\n' in text
    failure = "nv_inference_request_failure"
    assert value(found, failure, failure, reason="REJECTED", **MODEL) == 1
    assert value(found, failure, failure, reason="BACKEND", **MODEL) == 0
    pending = "nv_inference_pending_request_count"
    assert (value(found, pending, pending, **MODEL), found[pending].type) == (4, "gauge")


@pytest.mark.parametrize("accept", ["", "application/openmetrics-text"])
def test_our_own(accept: str) -> None:
    found = parsed(some(), accept)
    assert value(found, "msedge_refused", "msedge_refused_total", asked="infer", status="401") == 2
    assert value(found, "msedge_personal_hits", "msedge_personal_hits_total", model="m") == 6
    assert value(found, "msedge_requests_under_way", "msedge_requests_under_way") == 7
    assert value(found, "msedge_batch_rows", "msedge_batch_rows_bucket", le="2.0", **MODEL) == 0
    assert value(found, "msedge_batch_rows", "msedge_batch_rows_bucket", le="4.0", **MODEL) == 1
    assert value(found, "msedge_request_seconds", "msedge_request_seconds_count", **MODEL) == 1
    assert value(found, "msedge_request_seconds", "msedge_request_seconds_sum", **MODEL) == pytest.approx(0.005)
    assert value(found, "process_resident_memory_bytes", "process_resident_memory_bytes") > 1 << 20
    assert value(found, "process_cpu_seconds", "process_cpu_seconds_total") > 0


def test_before_the_first_request() -> None:
    found = parsed(families(Statistics(), Gauges()))
    assert found["nv_inference_count"].samples == []


@given(st.text(), st.text(), st.floats() | st.integers(-(2**60), 2**60))
@pytest.mark.parametrize("accept", ["", "application/openmetrics-text"])
def test_whatever_a_label_holds(accept: str, label: str, help: str, number: float) -> None:
    label, help = (text.replace("\r", "") for text in (label, help))  # the parsers take it for the end of a line
    label = "".join(label.splitlines())
    help = " ".join(help.splitlines())
    found = parsed([Family("x", "gauge", help, [({"a": label, "b": "c"}, number)])], accept)
    (sample,) = found["x"].samples
    assert sample.labels == {"a": label, "b": "c"}
    assert float(sample.value) == float(number) or (number != number and sample.value != sample.value)


def test_labels_cannot_inject_lines() -> None:
    for accept in ("", "application/openmetrics-text"):
        found = parsed([Family("x", "gauge", "a\nb\\", [({"a": '\\"\n} 1\nevil 2'}, 1)])], accept)
        assert list(found) == ["x"]
        assert found["x"].samples[0].labels == {"a": '\\"\n} 1\nevil 2'}
        assert found["x"].documentation == "a\nb\\"


def test_histograms_end_in_infinity() -> None:
    held = Histogram((1.0, 2.0))
    for number in (1.0, 1.5, 9.0):
        held.add(number)
    text, _ = expose([Family("h", "histogram", "", [({}, held)])])
    assert text.decode().splitlines()[2:] == [
        'h_bucket{le="1.0"} 1', 'h_bucket{le="2.0"} 2', 'h_bucket{le="+Inf"} 3', "h_sum 11.5", "h_count 3",
    ]  # fmt: skip
    assert held.cumulative()[-1] == (inf, 3)


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        ("", PROMETHEUS),
        ("*/*", PROMETHEUS),
        ("text/plain;version=0.0.4", PROMETHEUS),
        ("application/openmetrics-text", OPENMETRICS),
        ("application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.2", OPENMETRICS),
        ("application/openmetrics-text;q=0.1,text/plain;q=0.3", PROMETHEUS),
        ("application/openmetrics-text;q=0", PROMETHEUS),
        ("application/openmetrics-text;q=junk", PROMETHEUS),
        (",;,;q=" * 1000, PROMETHEUS),
    ],
)
def test_the_format_follows_the_accept_header(accept: str, kind: str) -> None:
    assert expose([], accept)[1] == kind


def test_a_blocked_event_loop_is_reported_as_late() -> None:
    async def run() -> tuple[float, float]:
        lag = LoopLag(asyncio.get_running_loop())
        lag.PERIOD = 0.01
        lag.start()
        await asyncio.sleep(0)
        time.sleep(0.2)
        await asyncio.sleep(0.001)
        worst = lag.worst
        await asyncio.sleep(0.03)
        lag.stop()
        return worst, lag.worst

    early, late = asyncio.run(run())
    assert 0.1 < early <= late
