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
    finalists = [(Choice.of_data(row), row) for row in body["finalists"]]
    parts = [
        f"<h1>{escape(title)}</h1>",
        facts(_facts(body)),
        "<h2>Candidates</h2><p>Each dot is a network: its cost on the device, and the share of the validation part "
        "that it answers with the supernet's weights. Filled dots are the front within the budget: no other is both "
        "cheaper and more accurate. Diamonds are networks that were trained to the end, as deployed.</p>",
        f'<div class="charts two">{_scatters(rows, on_front, body, finalists)}</div>',
        f"<h2>Finalists</h2>{_table(finalists, reference, found)}",
    ]
    return document(title, "\n".join(parts), f"{len(rows)} networks of {body['supernet']['networks']} were evaluated")


def _facts(body: Row) -> list[tuple[str, str]]:
    reference, found = body["reference"], body["found"]
    mine, other = (row.get("measured", row["cost"]["seconds"]) for row in (found, reference))
    how = "measured" if "measured" in found else "estimated"
    return [
        (escape(str(body["device"])), "the device"),
        (f"{mine * 1e6:.1f} µs", f"{how}; the reference takes {other * 1e6:.1f} µs"),
        (f"{mine / other:.2f} ×", "the latency of the reference"),
        (f"{found['test']:.2%}", f"of the test part; the reference {reference['test']:.2%}"),
        (
            size_text(found["cost"]["file_bytes"]),
            f"of file; the reference {size_text(reference['cost']['file_bytes'])}",
        ),
        (duration(body["seconds"]), "of search"),
    ]


def _scatters(
    rows: Sequence[tuple[Any, Row]], on_front: set[Any], body: Row, finalists: Sequence[tuple[Any, Row]]
) -> str:
    axes = (("latency in µs", "seconds", 1e6), ("file in KB", "file_bytes", 1e-3), ("arena in KB", "arena_bytes", 1e-3))
    made = []
    for words, key, unit in axes:
        dots = [(row["cost"][key] * unit, row["accuracy"], choice in on_front) for choice, row in rows]
        ends = [("reference", body["reference"]), *(("found" if row["files"] == body["found"]["files"] else "", row)
                                                   for _, row in finalists)]  # fmt: skip
        marks = [Mark(row["cost"][key] * unit, row["validation"], name) for name, row in ends]
        limit = body["limits"].get(key)
        made.append(scatter(f"accuracy by {words}", dots, log=True, marks=marks, limit=limit and limit * unit))
    return "".join(made)


def _table(finalists: Sequence[tuple[Any, Row]], reference: Row, found: Row) -> str:
    heads = ("network", "#shared", "#floats", "#deployed", "#test", "#latency", "#measured", "#file", "#arena",
             "#trained", "")  # fmt: skip
    named = [(str(reference["name"]), reference, "the reference")]
    named += [(choice.text, row, "found" if row["files"] == found["files"] else "") for choice, row in finalists]
    return table(heads, ([name_cell(name), *_figures(row), text_cell(what)] for name, row, what in named))


def _figures(row: Row) -> list[str]:
    shares = [f"{row[key]:.2%}" if key in row else "" for key in ("shared", "floats", "validation", "test")]
    times = [f"{row['cost']['seconds'] * 1e6:.1f} µs", f"{row['measured'] * 1e6:.1f} µs" if "measured" in row else ""]
    sizes = [size_text(row["cost"][key]) for key in ("file_bytes", "arena_bytes")]
    return [figure_cell(text) for text in (*shares, *times, *sizes, duration(row["training_seconds"]))]
