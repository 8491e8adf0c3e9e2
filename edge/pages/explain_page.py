"""Explanations of one sample as one HTML page: a picture for each method, what each cost, how faithful each is."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import numpy as np

from converter.report.html import document, facts, figure_cell, table, text_cell
from edge.measuring.explain import Asked, Explained
from edge.pages.charts import COLOURS, EARLY, curves
from edge.pages.heat import STYLE, picture, sample_image
from edge.pages.run_steps import duration

__all__ = ["explain_page"]

_SERIES = (*COLOURS, *(f"{colour}{EARLY}" for colour in COLOURS))


def explain_page(found: Explained, names: Sequence[str] = (), classes: Sequence[str] = ()) -> str:
    """The whole page. names: of features, tokens or channels; classes: of the model's outputs."""
    target = _class(found.target, classes)
    best = int(np.argmax(found.scores))
    head = (
        f'<h1>Why {escape(target)}?</h1><p class="soft">{escape(found.model)} · {found.wish.layout.kind} '
        f"{'×'.join(map(str, found.sample.shape))}</p>"
    )
    said = facts([
        (target, "the output that is explained"),
        (f"{found.scores[found.target]:.4g}", "its score, as deployed"),
        ("" if best == found.target else _class(best, classes), f"has the highest score, {found.scores[best]:.4g}"),
        (str(sum(one.explanation.rows for one in found.asked)), "rows asked of the model"),
    ])  # fmt: skip
    body = (STYLE, head, said, _pictures(found, names), _costs(found), _faithful(found), _left_out(found))
    return document(f"Why {target}?", "\n".join(body), f"explanation of {found.model}")


def _class(number: int, classes: Sequence[str]) -> str:
    return classes[number] if number < len(classes) else f"output {number}"


def _pictures(found: Explained, names: Sequence[str]) -> str:
    kind = found.wish.layout.kind
    drawn = [
        f"<figure><figcaption>{one.explanation.method}<span>{duration(one.explanation.seconds)}</span></figcaption>"
        f"{picture(found.sample, one.explanation.attributions, found.wish.layout, names)}</figure>"
        for one in found.asked
    ]
    if kind == "image":
        own = f"<figure><figcaption>sample</figcaption>{sample_image(found.sample, found.wish.layout)}</figure>"
        drawn.insert(0, own)
    return (
        '<h2>What counted</h2><div class="scale"></div><div class="ends"><span>lowered the score</span>'
        '<span>raised it</span></div><p class="soft">Each method has its own scale: colours compare elements, not '
        f'methods.</p><div class="heat{"" if kind == "image" else " wide"}">{"".join(drawn)}</div>'
    )


def _costs(found: Explained) -> str:
    rows = [
        [
            text_cell(one.explanation.method), text_cell(one.model),
            figure_cell(str(one.explanation.rows)), figure_cell(duration(one.explanation.seconds)),
            figure_cell(f"{one.explanation.attributions.sum():.4g}"),
            figure_cell("" if one.explanation.gap is None else f"{one.explanation.gap:.2g}"),
            text_cell(_settings(one), "spare"),
        ]
        for one in found.asked
    ]  # fmt: skip
    heads = ("method", "explains", "#rows", "#took", "#sum", "#completeness error", "~settings")
    return (
        "<h2>Methods</h2><p>The sum of the attributions of a complete method is the score minus that of the baseline; "
        f"its completeness error is what is missing. Times include compiling.</p>{table(heads, rows)}"
    )


def _settings(one: Asked) -> str:
    return ", ".join(f"{key} {_text(value)}" for key, value in one.explanation.settings.items())


def _text(value: object) -> str:
    return (
        "×".join(map(str, value))
        if isinstance(value, tuple)
        else f"{value:g}"
        if isinstance(value, float)
        else str(value)
    )


def _faithful(found: Explained) -> str:
    shown = [(one.explanation.method, one.faithful) for one in found.asked if one.faithful is not None]
    if not shown:
        return ""
    rows = [
        [
            text_cell(name), figure_cell(f"{told.curves.insertion_area:.3f}"),
            figure_cell(f"{told.curves.deletion_area:.3f}"), figure_cell(f"{told.infidelity:.3f}"),
            figure_cell("" if told.sensitivity is None else f"{told.sensitivity:.3f}"),
        ]
        for name, told in shown
    ]  # fmt: skip
    x = np.rint(shown[0][1].curves.shares * 100).astype(int).tolist()
    charts = [
        curves(title, x, {name: getattr(told.curves, key).tolist() for name, told in shown}, zero=True, styles=_SERIES)
        for title, key in (("Insertion: probability by % shown", "insertion"), ("Deletion: by % removed", "deletion"))
    ]
    return (
        "<h2>How faithful</h2><p>Asked of the model as deployed. Insertion: the mean probability while elements are "
        "added to the baseline, the greatest attributions first; higher is better. Deletion: while they are removed; "
        "lower is better. Infidelity: the part of the changes of the score that the attributions miss, 0 to 1. "
        "Sensitivity: how far the explanation moves for a sample nearby, relative to its length; lower is steadier.</p>"
        f"{table(('method', '#insertion', '#deletion', '#infidelity', '#sensitivity'), rows)}"
        f'<div class="charts two" style="margin-top:1rem">{"".join(charts)}</div>'
    )


def _left_out(found: Explained) -> str:
    items = "".join(f"<li><b>{escape(name)}</b> {escape(why)}</li>" for name, why in found.left_out.items())
    return f'<h2>Left out</h2><ul class="findings">{items}</ul>' if items else ""
