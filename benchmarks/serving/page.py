"""What `python -m benchmarks.serving` found, as a table and a picture: `python -m benchmarks.serving.page RUN.json…`.

Writes docs/serving.svg, and the table into docs/serving.md between two marks.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

__all__ = ["chart", "main", "table"]

BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"
WIDTH, LEFT, BAR, GAP = 860, 150, 14, 8
FORMS = {"binary": "bytes", "json": "JSON"}
_STYLE = """
text { font: 12px system-ui, sans-serif; fill: #1f2328 } .title { font-size: 15px; font-weight: 600 }
.small { font-size: 11px; fill: #59636e } .binary { fill: #0969da } .json { fill: #54aeff }
@media (prefers-color-scheme: dark) {
  text { fill: #f0f6fc } .small { fill: #9198a1 } .binary { fill: #4493f8 } .json { fill: #a5d6ff }
}
"""


def _servers(run: Mapping[str, Any]) -> list[str]:
    return list(dict.fromkeys(row["server"] for row in run["rows"]))


def _cell(run: Mapping[str, Any], server: str, form: str, connections: int) -> Mapping[str, Any] | None:
    found = [r for r in run["rows"] if (r["server"], r["form"], r["connections"]) == (server, form, connections)]
    return found[0] if found else None


def table(run: Mapping[str, Any]) -> Iterator[str]:
    """Markdown: a row a server, requests a second and the 99th percentile in ms, by form and connections."""
    counts = sorted({row["connections"] for row in run["rows"]})
    yield f"**{run['model']}**, {run['threads']} thread(s) of each runtime; requests/s (p99 ms) by form and number of"
    yield "connections; in bold, ours by theirs, pair by pair."
    yield ""
    heads = [f"{FORMS[form]}, {count}" for form in FORMS for count in counts]
    yield f"| server | {' | '.join(heads)} |"
    yield "| --- |" + " ---: |" * len(heads)
    for server in _servers(run):
        cells = []
        for form in FORMS:
            for count in counts:
                cell = _cell(run, server, form, count)
                cells.append("" if cell is None else f"{cell['rate']:,.0f} ({1e3 * cell['p99']:.1f}){_times(cell)}")
        yield f"| {server} | {' | '.join(cells)} |"
    if "ceiling" in run:
        yield ""
        yield f"The runtime alone, one row after the other in a process of its own: {run['ceiling']:,.0f} rows/s."


def _times(cell: Mapping[str, Any]) -> str:
    return f" **{cell['ratio']:.2f}**" if "ratio" in cell else ""


def chart(runs: Sequence[Mapping[str, Any]]) -> str:
    """SVG: requests a second of every server at the most connections that were tried, a group a model."""
    body, y = [_text(8, 22, "Requests a second", "title")], 44.0
    for name, x in zip(FORMS, (8, 90), strict=True):
        body.append(f'<rect class="{name}" x="{x}" y="{y - 9}" width="10" height="10" rx="2"/>')
        body.append(_text(x + 15, y, FORMS[name], "small"))
    y += 14
    for run in runs:
        connections = max(row["connections"] for row in run["rows"])
        body.append(_text(8, y + 14, f"{run['model']}, {connections} connections", "small"))
        y += 24
        cells = {(s, f): _cell(run, s, f, connections) for s in _servers(run) for f in FORMS}
        most = max((cell["rate"] for cell in cells.values() if cell), default=1.0)
        for server in _servers(run):
            body.append(_text(LEFT - 8, y + BAR + 4, server, "", "end"))
            for form in FORMS:
                cell = cells[server, form]
                if cell is not None:
                    long = max(1.0, cell["rate"] / most * (WIDTH - LEFT - 90))
                    place = f'x="{LEFT}" y="{y:.0f}" width="{long:.1f}" height="{BAR}" rx="2"'
                    body.append(f'<rect class="{form}" {place}/>')
                    body.append(_text(LEFT + long + 6, y + 11, f"{cell['rate']:,.0f}", "small"))
                y += BAR
            y += GAP
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y:.0f}" width="{WIDTH}" role="img">'
    title = f"<title>Requests a second</title><style>{_STYLE}</style>"
    return "\n".join([head, title, *body, "</svg>\n"])


def _text(x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def main(argv: Sequence[str] | None = None) -> int:
    """Write both."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serving.page", description=__doc__)
    parser.add_argument("runs", type=Path, nargs="+", help="what --json of `python -m benchmarks.serving` wrote")
    parser.add_argument("--docs", type=Path, default=Path("docs"))
    args = parser.parse_args(argv)
    runs = [json.loads(path.read_text()) for path in args.runs]
    (args.docs / "serving.svg").write_text(chart(runs), encoding="utf-8")
    page = args.docs / "serving.md"
    before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    tables = "\n\n".join("\n".join(table(run)) for run in runs)
    page.write_text(f"{before}{BEGIN}\n{tables}\n{END}{rest.partition(END)[2]}", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
