"""Trace context by the recommendation's own cases, and the spans that OpenTelemetry is given."""

from __future__ import annotations

import builtins
import gzip
import re
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.gateway.errors import GatewayError
from edge.gateway.job import Job
from edge.gateway.operate.settings import Traces
from edge.gateway.operate.traces import Context, Tracer, continued, parse_parent, parse_state, tracer
from lite_runtime.errors import MissingExtraError

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
GOOD = f"00-{TRACE}-{SPAN}-01"


@pytest.mark.parametrize(
    ("text", "flags"),
    [
        (GOOD, 1),
        (f"00-{TRACE}-{SPAN}-00", 0),
        (f"00-{TRACE}-{SPAN}-ff", 255),
        (f"cc-{TRACE}-{SPAN}-01", 1),
        (f"cc-{TRACE}-{SPAN}-01-what-the-future-will-be-like", 1),
        (f"cc-{TRACE}-{SPAN}-01-", 1),
    ],
)
def test_parents_in_order(text: str, flags: int) -> None:
    assert parse_parent(text) == (TRACE, SPAN, flags)


@pytest.mark.parametrize(
    "text",
    [
        None, "", "00", GOOD.upper(), GOOD + "-", GOOD + "-extra", GOOD + " ", " " + GOOD, GOOD + "\n",
        f"ff-{TRACE}-{SPAN}-01", f"0-{TRACE}-{SPAN}-01", f"000-{TRACE}-{SPAN}-01", f".0-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01", f"00-{TRACE}-{'0' * 16}-01", f"00-{TRACE[:-1]}-{SPAN}-01",
        f"00-{TRACE}0-{SPAN}-01", f"00-{TRACE}-{SPAN[:-1]}-01", f"00-{TRACE}-{SPAN}-1", f"00-{TRACE}-{SPAN}-001",
        f"00-{TRACE}-{SPAN}-.0", f"00-{'.' + TRACE[1:]}-{SPAN}-01", f"00-{TRACE}-{SPAN}", f"cc-{TRACE}-{SPAN}-01.x",
        f"00_{TRACE}_{SPAN}_01", "٠" * 2 + GOOD[2:],
    ],
)  # fmt: skip
def test_parents_out_of_order(text: str | None) -> None:
    assert parse_parent(text) is None


@pytest.mark.parametrize(
    ("texts", "joined"),
    [
        ([], ""),
        (["foo=1,bar=2"], "foo=1,bar=2"),
        (["foo=1", "bar=2"], "foo=1,bar=2"),
        (["foo=1 \t , \t bar=2, \t"], "foo=1,bar=2"),
        (["foo=1,,bar=2"], "foo=1,bar=2"),
        (["fw529a3039@dt=FfAD, a-b_c*d/e=!~"], "fw529a3039@dt=FfAD,a-b_c*d/e=!~"),
        (["foo=a b"], "foo=a b"),
        (["foo=1,foo=2"], ""),
        (["foo"], ""),
        (["foo="], ""),
        (["foo =1"], ""),
        (["FOO=1"], ""),
        (["foo@=1,bar=2"], ""),
        (["@foo=1"], ""),
        (["foo@@bar=1"], ""),
        (["foo=bar=baz"], ""),
        (["foo=é"], ""),
        (["foo=\x00"], ""),
        ([f"{'z' * 256}=1"], f"{'z' * 256}=1"),
        ([f"{'z' * 257}=1"], ""),
        ([f"{'t' * 241}@{'v' * 14}=1"], f"{'t' * 241}@{'v' * 14}=1"),
        ([f"{'t' * 242}@v=1"], ""),
        ([f"t@{'v' * 15}=1"], ""),
        ([f"foo={'a' * 256}"], f"foo={'a' * 256}"),
        ([f"foo={'a' * 257}"], ""),
        ([",".join(f"k{n}=1" for n in range(32))], ",".join(f"k{n}=1" for n in range(32))),
        ([",".join(f"k{n}=1" for n in range(33))], ""),
        ([f"a={'x' * 250},b={'y' * 250},c={'z' * 250}"], ""),
    ],
)
def test_states(texts: list[str], joined: str) -> None:
    assert parse_state(texts) == joined


def test_a_trace_goes_on() -> None:
    context = continued([GOOD], ["foo=1"])
    assert (context.trace, context.parent, context.sampled, context.state) == (TRACE, SPAN, True, "foo=1")
    assert re.fullmatch(f"00-{TRACE}-[0-9a-f]{{16}}-01", context.traceparent)
    assert context.span != SPAN
    assert context.headers() == {"traceparent": context.traceparent, "tracestate": "foo=1"}
    assert not continued([f"00-{TRACE}-{SPAN}-00"], share=1.0).sampled
    assert continued([f"00-{TRACE}-{SPAN}-ff"]).traceparent.endswith("-03")  # flags we know, no others


@pytest.mark.parametrize("parents", [[], ["junk"], [GOOD, GOOD]])
def test_or_starts_a_new_trace_without_state(parents: list[str]) -> None:
    context = continued(parents, ["foo=1"])
    assert (context.parent, context.state, context.sampled) == ("", "", False)
    assert context.trace != TRACE
    assert context.headers() == {"traceparent": context.traceparent}
    assert continued(parents, share=1.0).sampled
    assert 20 < sum(continued([], share=0.5).sampled for _ in range(100)) < 80


@given(st.text(alphabet="0123456789abcdef-fF", max_size=70) | st.text(max_size=70))
def test_whatever_comes_what_goes_out_is_in_order(text: str) -> None:
    context = continued([text], [text])
    assert parse_parent(context.traceparent) is not None
    assert parse_state([context.state]) == context.state


def ended(status: int = 200, error: BaseException | None = None) -> Job:
    now = time.perf_counter()
    job = Job({}, 2, lambda job: None, arrived=now - 0.010)
    job.begun, job.input_seconds, job.computed, job.done = now - 0.008, 0.001, now - 0.002, now - 0.001
    job.error = error
    return job


def exported(context: Context, job: Job, status: int = 200) -> dict[str, Any]:
    memory = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")
    exporter = memory.InMemorySpanExporter()
    made = Tracer(exporter, 1.0)
    made.record(context, "infer", job, {"msedge.model": "m", "msedge.rows": 2}, status)
    made.close()
    return {span.name: span for span in exporter.get_finished_spans()}


@pytest.mark.parametrize("parents", [[], [GOOD]])
def test_spans_of_a_request(parents: list[str]) -> None:
    context = continued(parents, ["foo=1"], 1.0)
    spans = exported(context, ended())
    whole = spans["infer"]
    assert list(spans) == ["queue", "compute_input", "compute_infer", "compute_output", "infer"]
    assert (f"{whole.context.trace_id:032x}", f"{whole.context.span_id:016x}") == (context.trace, context.span)
    assert (f"{whole.parent.span_id:016x}" if whole.parent else "") == context.parent
    assert whole.attributes["msedge.model"] == "m"
    parts = [spans[name] for name in list(spans)[:4]]
    assert {part.parent.span_id for part in parts} == {whole.context.span_id}
    assert len({part.context.span_id for part in parts}) == 4
    times = [t for part in parts for t in (part.start_time, part.end_time)]
    assert times == sorted(times)
    assert [round((part.end_time - part.start_time) / 1e6) for part in parts] == [2, 1, 5, 1]
    assert abs(whole.end_time / 1e9 - time.time()) < 60


def test_spans_of_a_failure_and_of_a_refusal() -> None:
    spans = exported(continued([GOOD]), ended(error=GatewayError(500, "broke")), 500)
    assert spans["infer"].status.description == "broke"
    waited = Job({}, 1, lambda job: None, arrived=time.perf_counter())
    assert list(exported(continued([GOOD]), waited, 429)) == ["infer"]
    waited.done = time.perf_counter()
    assert list(exported(continued([GOOD]), waited, 504)) == ["queue", "infer"]


def test_no_endpoint_no_tracer_no_import(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("opentelemetry"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    assert tracer(Traces()) is None
    with pytest.raises(MissingExtraError, match=r"pip install .*opentelemetry-sdk"):
        tracer(Traces(endpoint="http://127.0.0.1:9/v1/traces"))


class Collector(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers["Content-Encoding"] == "gzip":
            body = gzip.decompress(body)
        self.server.got.append((self.path, body))  # type: ignore[attr-defined]
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


def test_spans_arrive_at_the_endpoint() -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http.trace_exporter")
    with HTTPServer(("127.0.0.1", 0), Collector) as server:
        server.got = []  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            made = tracer(Traces(endpoint=f"http://127.0.0.1:{server.server_port}/v1/traces", share=0.5))
            assert made is not None
            assert made.share == 0.5
            context = continued([GOOD])
            made.record(context, "infer m", ended(), {"model": "m"})
            made.close()
        finally:
            server.shutdown()
            thread.join()
        ((path, body),) = server.got  # type: ignore[attr-defined]
    assert path == "/v1/traces"
    assert bytes.fromhex(TRACE) in body
    assert bytes.fromhex(context.span) in body
    assert b"infer m" in body
