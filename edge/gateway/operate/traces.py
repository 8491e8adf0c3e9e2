"""A request's place in its caller's trace (W3C Trace Context), and its spans for OpenTelemetry.

Level 1 of the recommendation, with Level 2's reading of flags: https://www.w3.org/TR/trace-context/.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from edge.gateway.job import Job
from edge.gateway.operate.settings import Traces
from lite_runtime.errors import MissingExtraError

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter

__all__ = ["Context", "Tracer", "continued", "parse_parent", "parse_state", "tracer"]

_PARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.DOTALL).fullmatch
_SIMPLE = r"[a-z][_0-9a-z\-*/]{0,255}"
_MEMBER = re.compile(
    rf"[ \t]*({_SIMPLE}|[a-z0-9][_0-9a-z\-*/]{{0,240}}@[a-z][_0-9a-z\-*/]{{0,13}})"
    r"=([\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e])[ \t]*"
).fullmatch
_SAMPLED, _RANDOM = 1, 2
_MEMBERS, _CHARACTERS = 32, 512


class Context(NamedTuple):
    """A span of this gateway. trace: 32 hex digits; span: 16; parent: the caller's span, "" if the trace begins here;
    sampled: whether it is recorded; state: `tracestate`, passed on unchanged."""

    trace: str
    span: str
    parent: str
    sampled: bool
    random: bool
    state: str

    @property
    def traceparent(self) -> str:
        """The header for requests that this one causes."""
        return f"00-{self.trace}-{self.span}-{self.sampled * _SAMPLED | self.random * _RANDOM:02x}"

    def headers(self) -> dict[str, str]:
        """The headers for requests that this one causes."""
        return {"traceparent": self.traceparent} | ({"tracestate": self.state} if self.state else {})


def parse_parent(text: str | None) -> tuple[str, str, int] | None:
    """Trace, span and flags of a header `traceparent`; None if it is missing or invalid."""
    found = _PARENT(text) if text is not None else None
    if found is None:
        return None
    version, trace, span, flags, more = found.groups()
    if version == "ff" or (version == "00" and more) or trace == "0" * 32 or span == "0" * 16:
        return None
    return trace, span, int(flags, 16)


def parse_state(texts: Sequence[str]) -> str:
    """The headers `tracestate`, joined; "" if they are invalid, as the recommendation requires."""
    members = [member for text in texts for member in text.split(",") if member.strip(" \t")]
    found = [_MEMBER(member) for member in members]
    keys = {match[1] for match in found if match}
    joined = ",".join(member.strip(" \t") for member in members)
    return joined if len(keys) == len(members) <= _MEMBERS and len(joined) <= _CHARACTERS else ""


def continued(parents: Sequence[str], states: Sequence[str] = (), share: float = 0.0) -> Context:
    """A new span in the caller's trace, or in a new trace if the caller names no valid one.

    parents, states: the values of the headers `traceparent` (several count as none) and `tracestate`. share: of the new
    traces, the share that is recorded; the caller decides about its own traces.
    """
    parent = parse_parent(parents[0]) if len(parents) == 1 else None
    span = secrets.token_hex(8)
    if parent is None:
        return Context(secrets.token_hex(16), span, "", secrets.randbelow(1 << 32) < share * (1 << 32), True, "")
    trace, above, flags = parent
    return Context(trace, span, above, bool(flags & _SAMPLED), bool(flags & _RANDOM), parse_state(states))


class Tracer:
    """Sends the spans of sampled requests, from a thread of OpenTelemetry. `close` sends the remaining ones."""

    def __init__(self, exporter: SpanExporter, share: float) -> None:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.sdk.trace.id_generator import IdGenerator
        from opentelemetry.sdk.trace.sampling import ALWAYS_ON

        class Ids(IdGenerator):
            """Gives the ids that `continued` chose, so that logs and spans have the same ones; others are random."""

            span: int | None = None
            trace: int | None = None

            def generate_span_id(self) -> int:
                given, self.span = self.span, None
                return given if given is not None else int(secrets.token_hex(8), 16) or 1

            def generate_trace_id(self) -> int:
                given, self.trace = self.trace, None
                return given if given is not None else int(secrets.token_hex(16), 16) or 1

        self.share, self._ids = share, Ids()
        self._provider = TracerProvider(
            sampler=ALWAYS_ON, resource=Resource.create({"service.name": "msedge"}), id_generator=self._ids,
            shutdown_on_exit=False,
        )  # fmt: skip
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("msedge.gateway")

    def record(self, context: Context, name: str, job: Job, attributes: Mapping[str, Any], status: int = 200) -> None:
        """Record the spans of a finished request: `name`, and below it queue, compute_input, compute_infer and
        compute_output, as far as they were reached, or the steps of an ensemble. Loop's thread; only for sampled
        requests."""
        from opentelemetry import trace
        from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags, TraceState

        offset = time.time() - time.perf_counter()
        ended = _nanoseconds(job.done or time.perf_counter(), offset)
        self._ids.span, self._ids.trace = int(context.span, 16), int(context.trace, 16)
        above = None
        if context.parent:
            flags = TraceFlags(TraceFlags.SAMPLED)
            state = TraceState.from_header([context.state] if context.state else [])
            spoken = SpanContext(int(context.trace, 16), int(context.parent, 16), True, flags, state)
            above = trace.set_span_in_context(trace.NonRecordingSpan(spoken))
        span = self._tracer.start_span(
            name, above, SpanKind.SERVER, {**attributes, "http.response.status_code": status},
            start_time=_nanoseconds(job.arrived, offset),
        )  # fmt: skip
        self._ids.span = self._ids.trace = None
        if status >= 500:
            span.set_status(Status(StatusCode.ERROR, str(job.error or "")))
        within = trace.set_span_in_context(span)
        for part, begin, end in job.spans():
            child = self._tracer.start_span(part, within, start_time=_nanoseconds(begin, offset))
            child.end(_nanoseconds(end, offset))
        span.end(ended)

    def close(self) -> None:
        """Send the remaining spans."""
        self._provider.shutdown()


def _nanoseconds(seconds: float, offset: float) -> int:
    return int((seconds + offset) * 1e9)


def tracer(settings: Traces) -> Tracer | None:
    """The sender of spans, None if the settings have no endpoint. Raises MissingExtraError without OpenTelemetry."""
    if not settings.endpoint:
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ModuleNotFoundError as error:
        raise MissingExtraError(error.name or "opentelemetry", "otel", "traces.endpoint needs it") from error
    return Tracer(OTLPSpanExporter(settings.endpoint), settings.share)
