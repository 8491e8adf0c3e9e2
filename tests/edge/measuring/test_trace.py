"""A Chrome trace: one event per step and worker, in microseconds from the start of the run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from edge.measuring.trace import events, write


class Step(NamedTuple):
    """As `lite_runtime.running.session.Span`."""

    node: str
    kernel: str
    worker: int
    start: float
    end: float


SPANS = [
    Step("Conv a", "gemm.f32", 0, 5.0, 5.25),
    Step("Conv a", "gemm.f32", 1, 5.125, 5.25),
    Step("Relu b", "chain.f32", 0, 5.25, 5.5),
]


def test_every_worker_has_a_line_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    write(path, "m.onnx", SPANS)  # type: ignore[arg-type]
    made = json.loads(path.read_text())["traceEvents"]
    names = {e["tid"]: e["args"]["name"] for e in made if e["ph"] == "M" and e["name"] == "thread_name"}
    assert names == {0: "worker 0", 1: "worker 1"}
    steps = [e for e in made if e["ph"] == "X"]
    assert [(e["name"], e["tid"], e["ts"], e["dur"]) for e in steps] == [
        ("Conv a", 0, 0.0, 250000.0),
        ("Conv a", 1, 125000.0, 125000.0),
        ("Relu b", 0, 250000.0, 250000.0),
    ]
    assert {e["args"]["kernel"] for e in steps} == {"gemm.f32", "chain.f32"}


def test_nothing_ran_is_a_trace_too() -> None:
    assert [e["ph"] for e in events("m", [])["traceEvents"]] == ["M"]
