"""A search as one HTML page: every candidate by cost and accuracy, the front, the finalists, the reference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from converter.report.html import document, facts, figure_cell, name_cell, size_text, table, text_cell
from edge.pages.charts import Mark, scatter
from edge.pages.run_steps import duration

__all__ = ["front_page"]

Row = Mapping[str, Any]


def front_page(body: Row, title: str) -> str:
    """The page of a finished search, from the data in its folder."""
    from cloud.search.space import Choice

    reference, found = body["reference"], body["found"]
    on_front = {Choice.of_data(row) for row in body["front"]}
    rows = [(Choice.of_data(row), row) for row in body["candidates"]]
    ends = [*body["finalists"], *body.get("plain", [])]
    verdict = body.get("verdict", "")
    verdict = f"<p>{escape(verdict[0].upper() + verdict[1:])}.</p>" if verdict else ""
    naive = "; ".join(f"{name}: {error:.4f}" for name, error in body["naive"].items())
    parts = [
        f"<h1>{escape(title)}</h1>",
        facts(_facts(body)),
        verdict,
        f"<p>RMSE of the naive forecasts on the test part, in spreads: {escape(naive)}.</p>" if naive else "",
        f"<h2>Candidates</h2><p>Each dot is a network: its cost on the device, and its {body['figure']} on the "
        "validation part with the supernet's weights. Filled dots are the front within the budget: no other is both "
        "cheaper and better; a figure below 0 is drawn at 0. Diamonds are models that were trained to the end, as "
        "deployed.</p>",
        f'<div class="charts two">{_scatters(rows, on_front, body, ends)}</div>',
        f"<h2>Finalists</h2>{_table(ends, reference, found, body['figure'])}",
    ]
    return document(title, "\n".join(parts), f"{len(rows)} networks of {body['supernet']['networks']} were evaluated")


def _facts(body: Row) -> list[tuple[str, str]]:
    from cloud.search.goal import told

    reference, found, figure = body["reference"], body["found"], body["figure"]
    mine, other = (row.get("measured", row["cost"]["seconds"]) for row in (found, reference))
    how = "measured" if "measured" in found else "estimated"
    return [
        (escape(str(body["device"])), "the device"),
        (f"{mine * 1e6:.1f} µs", f"{how}; the reference takes {other * 1e6:.1f} µs"),
        (f"{mine / other:.2f} ×", "the latency of the reference"),
        (told(figure, found["test"]), f"on the test part; the reference {told(figure, reference['test'])}"),
        (
            size_text(found["cost"]["file_bytes"]),
            f"of file; the reference {size_text(reference['cost']['file_bytes'])}",
        ),
        (duration(body["seconds"]), "of search"),
    ]


def _scatters(rows: Sequence[tuple[Any, Row]], on_front: set[Any], body: Row, finalists: Sequence[Row]) -> str:
    axes = (("latency in µs", "seconds", 1e6), ("file in KB", "file_bytes", 1e-3), ("arena in KB", "arena_bytes", 1e-3))
    made = []
    for words, key, unit in axes:
        dots = [(row["cost"][key] * unit, max(row["accuracy"], 0.0), choice in on_front) for choice, row in rows]
        ends = [("reference", body["reference"]), *(("found" if row["files"] == body["found"]["files"] else "", row)
                                                   for row in finalists)]  # fmt: skip
        marks = [Mark(row["cost"][key] * unit, max(row["validation"], 0.0), name) for name, row in ends]
        limit = body["limits"].get(key)
        made.append(scatter(f"{body['figure']} by {words}", dots, log=True, marks=marks, limit=limit and limit * unit))
    return "".join(made)


def _table(finalists: Sequence[Row], reference: Row, found: Row, figure: str) -> str:
    heads = ("model", "#shared", "#floats", "#deployed", "#test", "#latency", "#measured", "#file", "#arena",
             "#trained", "")  # fmt: skip
    named = [(str(reference["name"]), reference, "the reference")]
    named += [(row["text"], row, "found" if row["files"] == found["files"] else "") for row in finalists]
    return table(heads, ([name_cell(name), *_figures(row, figure), text_cell(what)] for name, row, what in named))


def _figures(row: Row, figure: str) -> list[str]:
    from cloud.search.goal import told

    shares = [told(figure, row[key]) if key in row else "" for key in ("shared", "floats", "validation", "test")]
    times = [f"{row['cost']['seconds'] * 1e6:.1f} µs", f"{row['measured'] * 1e6:.1f} µs" if "measured" in row else ""]
    sizes = [size_text(row["cost"][key]) for key in ("file_bytes", "arena_bytes")]
    return [figure_cell(text) for text in (*shares, *times, *sizes, duration(row["training_seconds"]))]
