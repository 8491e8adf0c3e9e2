"""A run as a Chrome trace: the steps of every worker over time, for chrome://tracing and ui.perfetto.dev.

The format is Google's "Trace Event Format", complete events ("X") in microseconds; a worker is a thread.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lite_runtime.running.profiling import Span

__all__ = ["events", "write"]


def events(model: str, spans: Sequence[Span]) -> dict[str, Any]:
    """The trace of one run; its first step begins at 0."""
    origin = min((span.start for span in spans), default=0.0)
    workers = sorted({span.worker for span in spans})
    named = [_name("process_name", 0, model), *(_name("thread_name", w, f"worker {w}") for w in workers)]
    return {"traceEvents": [*named, *(_event(span, origin) for span in spans)], "displayTimeUnit": "ns"}


def write(path: Path, model: str, spans: Sequence[Span]) -> None:
    """The trace as a JSON file."""
    from lite_runtime._files import write_atomically

    write_atomically(path, json.dumps(events(model, spans)).encode())


def _name(what: str, worker: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": 0, "tid": worker, "args": {"name": name}}


def _event(span: Span, origin: float) -> dict[str, Any]:
    return {
        "ph": "X",
        "name": span.node,
        "cat": span.kernel,
        "pid": 0,
        "tid": span.worker,
        "ts": 1e6 * (span.start - origin),
        "dur": 1e6 * (span.end - span.start),
        "args": {"kernel": span.kernel},
    }
