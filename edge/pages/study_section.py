"""A study of `msedge tune` on the page of its run: the best value over trials, values against each key, all trials."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from converter.report.html import figure_cell, name_cell, table, text_cell
from edge.pages.charts import curves, scatter
from edge.pages.run_steps import duration

if TYPE_CHECKING:
    from cloud.track import Run, Store

__all__ = ["study_section"]

MOST = 500
"""The most trials in the table; of more, the newest."""
WIDE = 100.0
"""A key whose largest value is this many times the smallest one is drawn by logarithms."""

Row = Mapping[str, Any]


def study_section(store: Store, runs: Mapping[str, Run]) -> str:
    """The first run's study; "" if it is none."""
    body = store.document(next(iter(runs.values())).id, "study")
    rows = _rows(body)
    if not rows:
        return ""
    metric, lower = str(body.get("metric", "value")), bool(body.get("lower"))
    found = [row for row in rows if _result(row) is not None]
    pick = min if lower else max
    best = pick((row for row in found if row["state"] == "finished"), key=lambda row: _result(row) or 0.0, default=None)
    keys = list(dict.fromkeys(key for row in rows for key in row["values"]))
    drawn = _over_trials(metric, rows, lower) + "".join(_against(metric, key, found) for key in keys)
    counts = {
        state: sum(row["state"] == state for row in rows) for state in ("finished", "pruned", "failed", "running")
    }
    said = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
    used = sum(len(row["curve"]) for row in rows)
    return (
        f"<h2>Trials</h2><p>{len(rows)} trials ({said}) with {used} evaluations of {escape(metric)}. Filled dots are "
        "trials that were finished; hollow ones ended at a rung, with the value that they had there.</p>"
        f'<div class="charts two">{drawn}</div>{_table(metric, keys, rows[-MOST:], best)}'
    )


def _rows(body: Row) -> list[Row]:
    """The trials; none of a damaged document."""
    listed = body.get("trials")
    rows = [row for row in listed if isinstance(row, dict)] if isinstance(listed, list) else []
    return [
        row for row in rows
        if isinstance(row.get("number"), int) and isinstance(row.get("values"), dict)
        and isinstance(row.get("state"), str) and isinstance(row.get("curve"), list)
        and all(isinstance(value, int | float) for value in row["curve"])
    ]  # fmt: skip


def _result(row: Row) -> float | None:
    """Its value, or the last one that it had."""
    value = row.get("value")
    value = value if isinstance(value, int | float) else row["curve"][-1] if row["curve"] else None
    return value if value is not None and math.isfinite(value) else None


def _over_trials(metric: str, rows: Sequence[Row], lower: bool) -> str:
    values: list[float | None] = []
    best: list[float | None] = []
    for row in rows:
        done = _result(row) if row["state"] == "finished" else None
        seen = [v for v in (*best[-1:], done) if v is not None]
        values.append(done)
        best.append((min if lower else max)(seen) if seen else None)
    return curves(f"{metric} by trial", [row["number"] for row in rows], {"trial": values, "best so far": best})


def _against(metric: str, key: str, rows: Sequence[Row]) -> str:
    """Results against the values of a key."""
    pairs = [(row["values"][key], _result(row), row["state"] == "finished") for row in rows if key in row["values"]]
    numbers = all(isinstance(x, int | float) and not isinstance(x, bool) for x, _, _ in pairs)
    names: list[str] = [] if numbers else sorted({_text(x) for x, _, _ in pairs})
    points = [(float(x) if numbers else float(names.index(_text(x))), y, full) for x, y, full in pairs if y is not None]
    least, most = (pick((x for x, _, _ in points), default=0.0) for pick in (min, max))
    return scatter(f"{metric} by {key}", points, names=names, log=numbers and 0 < least * WIDE <= most)


def _table(metric: str, keys: Sequence[str], rows: Sequence[Row], best: Row | None) -> str:
    heads = ("#trial", "run", "state", *map(escape, keys), "#evaluations", f"#{escape(metric)}", "#took", "")
    cells = (
        [
            figure_cell(str(row["number"])), name_cell(str(row.get("run", ""))), text_cell(row["state"]),
            *(text_cell(_text(row["values"][key]) if key in row["values"] else "") for key in keys),
            figure_cell(str(len(row["curve"]))), figure_cell("" if _result(row) is None else f"{_result(row):.4g}"),
            figure_cell(duration(row["seconds"]) if isinstance(row.get("seconds"), float) else ""),
            text_cell("the best" if row is best else str(row.get("why", ""))[:200]),
        ]
        for row in rows
    )  # fmt: skip
    return table(heads, cells)


def _text(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else value if isinstance(value, str) else json.dumps(value)
