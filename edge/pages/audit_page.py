"""An audit as one self-contained page: limits first, then what must not be missed, then section by section."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from typing import TYPE_CHECKING

from converter.report.html import document, facts, figure_cell, name_cell, table, text_cell
from edge.pages.charts import curves
from edge.pages.pictures import png_address

if TYPE_CHECKING:
    from cloud.audit.audit import Audit
    from cloud.audit.section import Cell, Curves, Picture, Section, Table

__all__ = ["audit_page", "figure_text"]

CARDS = 6
"""Figures of a section that are shown large; the table at the end has all."""


def audit_page(audit: Audit) -> str:
    """The whole page."""
    parts = [_head(audit), _limits(audit), _warnings(audit), *(_section(audit, one) for one in audit.sections)]
    return document(f"Audit of {audit.model}", "\n".join([*parts, _figures(audit)]), f"audit of {audit.model}")


def figure_text(value: float, share: bool) -> str:
    """A figure as a reader sees it."""
    if share:
        return f"{value:.2%}" if 5e-5 < abs(value) < 1e-3 or 0.999 < value < 1 else f"{value:.1%}"
    return f"{value:.0f}" if float(value).is_integer() and abs(value) < 1e15 else f"{value:.4g}"


def _head(audit: Audit) -> str:
    took = f"{audit.seconds:.0f} s of {audit.budget:g} s" if audit.budget < 1e9 else f"{audit.seconds:.0f} s"
    line = f"{audit.data} · {audit.examples} examples of kind {audit.kind} · took {took}"
    notes = "".join(f"<p>{escape(note)}</p>" for note in audit.notes)
    return f'<h1>Audit of {escape(audit.model)}</h1><p class="soft">{escape(line)}</p>' + (
        f"<details><summary>how the data was read</summary>{notes}</details>" if notes else ""
    )


def _limits(audit: Audit) -> str:
    if not audit.verdicts:
        return '<p class="soft">No limits were stated.</p>'
    broken = sum(not verdict.held for verdict in audit.verdicts)
    grade, words = (
        ("poor", f"{broken} of {len(audit.verdicts)} limits broken") if broken else ("good", "All limits held")
    )
    shares = {f"{one.name}.{name}" for one in audit.sections for name in one.shares}
    rows = []
    for verdict in sorted(audit.verdicts, key=lambda one: one.held):
        figure = verdict.limit.figure
        value = "not measured" if verdict.value is None else figure_text(verdict.value, figure in shares)
        state = text_cell("held" if verdict.held else "broken", "good" if verdict.held else "poor")
        rows.append([name_cell(figure), text_cell(verdict.limit.text), figure_cell(value), state])
    return f'<h2 class="{grade}">{words}</h2>{table(("figure", "limit", "#measured", ""), rows)}'


def _warnings(audit: Audit) -> str:
    found = [(one.title, text) for one in audit.sections for text in one.warnings]
    if not found:
        return ""
    rows = "".join(f"<li><b>{escape(title)}</b> {escape(text)}</li>" for title, text in found)
    return f'<h2>Findings</h2><section class="card"><ul class="findings">{rows}</ul></section>'


def _section(audit: Audit, section: Section) -> str:
    return (
        f'<h2 id="{escape(section.name)}">{escape(section.title)}</h2>'
        + _cards(audit, section)
        + "".join(f"<p>{escape(note)}</p>" for note in section.notes)
        + _undone(section)
        + _charts(section.curves)
        + "".join(map(_table, section.tables))
        + _pictures(section.pictures)
    )


def _cards(audit: Audit, section: Section) -> str:
    """The figures that the section shows, or the first in the order in which it names them."""
    order = [name.partition(".")[2] for name in audit.meanings if name.startswith(f"{section.name}.")]
    named = [name for name in section.shown or order if name in section.figures]
    pairs = [
        (figure_text(section.figures[name], name in section.shares), audit.meanings[f"{section.name}.{name}"])
        for name in named[:CARDS]
    ]
    return facts(pairs) if pairs else ""


def _undone(section: Section) -> str:
    if not section.undone:
        return ""
    rows = "".join(f"<li><b>not done</b> {escape(text)}</li>" for text in section.undone)
    return f'<ul class="findings">{rows}</ul>'


def _charts(drawn: Sequence[Curves]) -> str:
    charts = "".join(
        curves(
            one.title if one.across in one.title else f"{one.title}; to the right: {one.across}", one.x, one.series,
            _percent if one.share else "{:g}".format, zero=one.share,
        )
        for one in drawn
    )  # fmt: skip
    return f'<div class="charts two">{charts}</div>' if charts else ""


def _percent(value: float) -> str:
    return f"{value:.0%}"


def _table(one: Table) -> str:
    digits = [_numeric(one, i) for i in range(len(one.columns))]
    heads = [f"{'#' if number else ''}{escape(name)}" for name, number in zip(one.columns, digits, strict=True)]
    writes: list[Callable[[Cell], str]] = [
        _number_cell(name in one.shares) if number else _word_cell
        for name, number in zip(one.columns, digits, strict=True)
    ]
    rows = ([write(cell) for write, cell in zip(writes, row, strict=True)] for row in one.rows)
    body = table(heads, rows)
    if one.folded:
        return f"<details><summary>{escape(one.title)}</summary>{body}</details>"
    return f"<h3>{escape(one.title)}</h3>{body}"


def _numeric(one: Table, column: int) -> bool:
    cells = [row[column] for row in one.rows]
    return any(isinstance(cell, int | float) for cell in cells) and not any(isinstance(cell, str) for cell in cells)


def _number_cell(share: bool) -> Callable[[Cell], str]:
    def cell(value: Cell) -> str:
        return figure_cell("–" if value is None or isinstance(value, str) else figure_text(value, share))

    return cell


def _word_cell(value: Cell) -> str:
    return text_cell("" if value is None else value if isinstance(value, str) else figure_text(value, False))


def _pictures(pictures: Sequence[Picture]) -> str:
    shown = "".join(
        f'<figure><img alt="{escape(one.caption)}" src="{png_address(one.pixels)}">'
        f"<figcaption>{escape(one.caption)}</figcaption></figure>"
        for one in pictures
    )
    return f'<div class="pictures">{shown}</div>' if shown else ""


def _figures(audit: Audit) -> str:
    """All figures by the names that limits have for them."""
    shares = {f"{one.name}.{name}" for one in audit.sections for name in one.shares}
    rows = [
        [name_cell(name), figure_cell(figure_text(value, name in shares)), text_cell(audit.meanings.get(name, ""))]
        for name, value in audit.figures.items()
    ]
    body = table(("figure", "#value", "meaning"), rows)
    return f"<h2>All figures</h2><details><summary>by the names that limits have for them</summary>{body}</details>"
