"""Parts of self-contained pages: no scripts, no fonts, no network. Every function returns escaped HTML."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from html import escape
from importlib import resources

__all__ = ["document", "facts", "figure_cell", "meter", "name_cell", "short", "size_text", "table", "text_cell"]

_KINDS = {"#": "n", "~": "spare", "%": "n spare"}


def document(title: str, body: str, footer: str) -> str:
    """A whole page of finished HTML."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)} – msedge</title><style>{_style()}</style></head>\n<body>\n{body}\n"
        f"<footer>msedge · {escape(footer)}</footer>\n</body></html>\n"
    )


@cache
def _style() -> str:
    return resources.files("converter.report").joinpath("page.css").read_text(encoding="utf-8")


def facts(pairs: Iterable[tuple[str, str]]) -> str:
    """Cards with a figure and its label."""
    cards = "".join(f"<div><b>{escape(big)}</b><span>{escape(small)}</span></div>" for big, small in pairs if big)
    return f'<div class="facts">{cards}</div>'


def _head_cell(title: str) -> str:
    kind = _KINDS.get(title[:1])
    return f'<th class="{kind}">{title[1:]}</th>' if kind else f"<th>{title}</th>"


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Rows of finished cells; a leading # in a column's name marks figures, a leading ~ a column that is hidden on
    phones, a leading % both."""
    heads = "".join(map(_head_cell, columns))
    lines = "".join(f"<tr>{''.join(row)}</tr>" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{heads}</tr></thead><tbody>{lines}</tbody></table></div>'


LONGEST = 56
"""The most characters of a name that are shown; the tooltip has all of it."""


def short(text: str) -> str:
    """The end of a name; if converters joined several with semicolons, the last one."""
    last = text.rsplit(";", 1)[-1]
    return last if len(last) <= LONGEST else f"…{last[1 - LONGEST :]}"


def name_cell(text: str) -> str:
    """A cell for a tensor's or node's name."""
    return f'<td class="name" title="{escape(text)}">{escape(short(text))}</td>'


def text_cell(text: str, kind: str = "") -> str:
    """A cell of words."""
    return f'<td class="{kind}">{escape(text)}</td>' if kind else f"<td>{escape(text)}</td>"


def figure_cell(text: str, kind: str = "n") -> str:
    """A cell of digits; `kind` "n spare": hidden on phones."""
    return f'<td class="{kind}">{escape(text)}</td>'


def size_text(count: float) -> str:
    """Bytes in the unit that keeps them short."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.2f} GiB"


def meter(share: float, grade: str) -> str:
    """A bar filled to `share` (0 to 1); grade: good, fair or poor."""
    return f'<span class="meter"><i class="{grade}" style="width:{100 * min(1.0, max(0.02, share)):.0f}%"></i></span>'
