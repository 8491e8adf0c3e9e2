"""Tables and curves for notebooks: HTML in the notebook's own colours, without scripts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

__all__ = ["reports_html", "table_html"]

_WIDE, _HIGH = 320, 60
_MOST = 12
"""The most epochs in the table: the last ones."""
_COLOURS = ("currentColor", "#b7791f")


def reports_html(reports: Sequence[Any]) -> str:
    """A table of the last epochs, and the curves of the loss over all of them, of `EpochReport`s."""
    if not reports:
        return "<p>No epoch is done.</p>"
    names = list(reports[-1].training.metrics)
    tested = reports[-1].validation is not None
    heads = ["epoch", "loss", *names, *(["validation loss", *(f"validation {n}" for n in names)] if tested else [])]
    rows = []
    for report in reports[-_MOST:]:
        of = f"{report.epoch}/{report.epochs}" if report.epochs else str(report.epoch)
        row = [of, *_figures(report.training, names)]
        if tested:
            row += _figures(report.validation, names)
        rows.append([*row, f"{report.seconds:.2f} s"])
    series = {"training": [r.loss for r in reports]}
    if tested:
        series["validation"] = [r.validation.loss if r.validation is not None else math.nan for r in reports]
    return f"{_curves(series)}{table_html([*heads, 'time'], rows)}"


def _figures(found: Any, names: Sequence[str]) -> list[str]:
    if found is None:
        return [""] * (1 + len(names))
    return [f"{found.loss:.4f}", *(f"{found.metrics.get(name, math.nan):.4f}" for name in names)]


def table_html(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Rows of texts."""
    head = "".join(f"<th>{escape(name)}</th>" for name in heads)
    lines = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table>"


def _curves(series: Mapping[str, Sequence[float]]) -> str:
    """Lines over the epochs, from the lowest to the highest value; "" for fewer than two points."""
    finite = [v for values in series.values() for v in values if math.isfinite(v)]
    length = max(map(len, series.values()))
    if length < 2 or not finite:
        return ""
    low, high = min(finite), max(finite)
    lines, told = [], []
    for (name, values), colour in zip(series.items(), _COLOURS, strict=False):
        points = " ".join(
            f"{_WIDE * i / (length - 1):.1f},{_HIGH - 2 - (_HIGH - 4) * (v - low) / (high - low or 1.0):.1f}"
            for i, v in enumerate(values)
            if math.isfinite(v)
        )
        lines.append(f'<polyline fill="none" stroke="{colour}" stroke-width="1.5" points="{points}"/>')
        told.append(f'<span style="color: {colour}">{escape(name)} loss {values[-1]:.4g}</span>')
    picture = f'<svg width="{_WIDE}" height="{_HIGH}" viewBox="0 0 {_WIDE} {_HIGH}" role="img" aria-label="losses">'
    return f"<div>{picture}{''.join(lines)}</svg><br>{' · '.join(told)} (from {low:.4g} to {high:.4g})</div>"
