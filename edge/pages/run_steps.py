"""Sections of the page of runs about their steps: the model as a graph, where a step's time goes by operator, memory,
and what every epoch's time was spent on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from converter.report.html import figure_cell, name_cell, table, text_cell
from edge.pages.charts import curves, shares
from edge.pages.model_graph import MOST, drawn

if TYPE_CHECKING:
    from cloud.track import Run, Store

__all__ = ["PARTS", "duration", "epochs_section", "graph_section", "memory_section", "profile_section"]

PARTS = ("data", "step", "other")
"""The parts of a step's time."""
PHASES = ("forward", "backward", "update", "")
ROWS, EPOCHS, POINTS = 24, 12, 240
"""The most operators in the table, epochs in the bars, points of a curve."""


def duration(seconds: float) -> str:
    """With three digits, in the unit that keeps it short."""
    for limit, unit, factor in ((1e-3, "µs", 1e6), (1.0, "ms", 1e3), (120.0, "s", 1.0), (7200.0, "min", 1 / 60)):
        if seconds < limit:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds / 3600:.3g} h"


def graph_section(store: Store, runs: Mapping[str, Run]) -> str:
    """The first run's model."""
    run = next(iter(runs.values()))
    graph = store.document(run.id, "graph")
    times: dict[str, float] = {}
    for row in _rows(store.document(run.id, "profile")):
        times[row["node"]] = times.get(row["node"], 0.0) + row["share"]
    picture = drawn(graph, times)
    if not picture:
        return ""
    count = len(graph["nodes"]) + int(graph.get("left_out", 0))
    told = f"{count} operators" if count <= MOST else f"The first {MOST} of {count} operators"
    filled = "; a box is filled as far as the operator's share of the step's time" if times else ""
    return f"<h2>Model</h2><p>{told}{filled}.</p>{picture}"


def profile_section(store: Store, runs: Mapping[str, Run]) -> str:
    """The time of one step of the first run by operator, as JAX's profiler saw it."""
    found = store.document(next(iter(runs.values())).id, "profile")
    rows = _rows(found)
    if not rows:
        return ""
    by_phase = {phase or "without a name": sum(r["seconds"] for r in rows if r["phase"] == phase) for phase in PHASES}
    of: dict[str, dict[str, float]] = {}
    for row in rows:
        parts = of.setdefault(row["node"] or row["operator"], {})
        parts[row["phase"]] = parts.get(row["phase"], 0.0) + row["seconds"]
    order = sorted(of, key=lambda name: -sum(of[name].values()))
    total = sum(by_phase.values()) or 1.0
    cells = [
        [name_cell(name), *(_time(of[name].get(phase, 0.0)) for phase in PHASES[:3]),
         figure_cell(f"{sum(of[name].values()) / total:.1%}")]
        for name in order[:ROWS]
    ]  # fmt: skip
    rest = sum(sum(of[name].values()) for name in order[ROWS:])
    if rest:
        cells.append(
            [text_cell(f"{len(order) - ROWS} others", "name"), *[_time(0.0)] * 3, figure_cell(f"{rest / total:.1%}")]
        )
    bar = shares("Time of a step", {"": {phase: seconds for phase, seconds in by_phase.items() if seconds}})
    heads = ("operator", *(f"%{phase}" for phase in PHASES[:3]), "#share")
    return (
        f"<h2>Step by operator</h2><p>JAX's profiler over {int(found['steps'])} steps: {duration(total)} of computing "
        "a step, added over cores or devices. What the compiler fused counts for the operator that the fusion ends "
        f'with.</p><div class="half">{bar}</div>{table(heads, cells)}'
    )


def _time(seconds: float) -> str:
    return figure_cell(duration(seconds) if seconds else "", "n spare")


def _rows(profile: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The profile's rows; none of a damaged one."""
    texts, numbers = ("phase", "node", "operator"), ("seconds", "share")
    listed = profile.get("rows")
    rows = [row for row in listed if isinstance(row, dict)] if isinstance(listed, list) else []
    return [
        row for row in rows
        if all(isinstance(row.get(t), str) for t in texts) and all(isinstance(row.get(n), float) for n in numbers)
    ]  # fmt: skip


def memory_section(store: Store, runs: Mapping[str, Run]) -> str:
    """Memory in use over steps, of all runs."""
    series: dict[str, Any] = {}
    for label, run in runs.items():
        for name, of in (("memory/process", "process"), ("memory/device", "device")):
            found = store.scalars(run.id, name, most=POINTS)
            if len(found) > 1:
                series[f"{of}, {label}" if len(runs) > 1 else of] = {
                    step: size / 2**20 for step, size in zip(found.steps, found.values, strict=True)
                }
    x = sorted({step for points in series.values() for step in points})
    lines = {label: [points.get(step) for step in x] for label, points in series.items()}
    chart = curves("MiB in use, over steps", x, lines, zero=True)
    return f'<h2>Memory</h2><div class="half">{chart}</div>' if chart else ""


def epochs_section(store: Store, runs: Mapping[str, Run]) -> str:
    """What the seconds of each of the first run's last epochs were spent on."""
    run = next(iter(runs.values()))
    total, numbers = (store.scalars(run.id, name).values for name in ("time/epoch", "epoch"))
    parts = {part: store.scalars(run.id, f"time/{part}").values for part in PARTS}
    rows = {}
    for at, (number, seconds) in enumerate(zip(numbers, total, strict=False)):
        of = {part: values[at] for part, values in parts.items() if at < len(values)}
        whole = sum(of.values())
        if whole > 0:
            rows[f"epoch {number:.0f}, {duration(seconds)}"] = {p: v * seconds / whole for p, v in of.items()}
    shown = dict(list(rows.items())[-EPOCHS:])
    chart = shares("Seconds of each epoch", shown)
    return f'<h2>Time of epochs</h2><div class="half">{chart}</div>' if chart else ""
