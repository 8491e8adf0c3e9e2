"""Results of `python -m benchmarks.serving` as tables and a chart: `python -m benchmarks.serving.page FIGURES.json`.

Writes docs/serving.svg and docs/serving.json, and the tables into docs/serving.md between two marks.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from benchmarks.machine import facts_table
from benchmarks.marks import replace_between, require_marks
from lite_runtime._files import write_atomically

__all__ = ["chart", "figures", "main", "require_page", "table", "trials", "write"]

MARKS = "figures"
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
    """Markdown: one row per server with requests per second and the 99th percentile in ms, by form and connections."""
    counts = sorted({row["connections"] for row in run["rows"]})
    yield f"**{run['model']}**, {run['threads']} thread(s) of each runtime; requests/s (p99 ms) by form and number of"
    yield "connections; in bold, our requests/s divided by theirs, in pairs."
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
    yield ""
    alone = f"{run['ceiling']:,.0f} rows/s"
    yield f"{_losses(run)} The runtime alone, one row after the other in a separate process: {alone}."


def _losses(run: Mapping[str, Any]) -> str:
    compared = [row for row in run["rows"] if "ratio" in row]
    slower = [
        f"{row['server']} {row['ratio']:.2f} ({FORMS[row['form']]}, {row['connections']})"
        for row in sorted(compared, key=lambda row: row["ratio"]) if row["ratio"] < 1
    ]  # fmt: skip
    failed = [f"{row['server']} {row['failures']:,}" for row in run["rows"] if row["failures"]]
    said = f"Another server answers more requests in {len(slower)} of {len(compared)} cells{': ' * bool(slower)}"
    lost = f" Requests that failed or were refused: {', '.join(failed)}." if failed else " No request failed."
    return f"{said}{', '.join(slower)}.{lost}"


def trials(run: Mapping[str, Any]) -> Iterator[str]:
    """Markdown: every setting that was tried, and which was compared."""
    yield "| server | setting | form | requests/s | rows per call, mean | most rows in a call | |"
    yield "| --- | --- | --- | ---: | ---: | ---: | --- |"
    for server, tried in run["trials"].items():
        for variant, found in tried.items():
            name = variant or "as it is"
            if "error" in found:
                yield f"| {server} | {name} | | | | | did not work: {found['error'].replace('|', '/')} |"
            for form in FORMS:
                if form in found:
                    one = found[form]
                    chosen = "compared" if run["settings"][server].get(form) == variant else ""
                    failed = f"{one['failures']:,} failed" if one["failures"] else ""
                    rows = (f"{one['rows a call']:.1f}", str(one["most rows"])) if one["most rows"] else ("", "")
                    said = ", ".join(part for part in (chosen, failed) if part)
                    yield f"| {server} | {name} | {FORMS[form]} | {one['rate']:,.0f} | {rows[0]} | {rows[1]} | {said} |"


def figures(told: Mapping[str, Any]) -> str:
    """Markdown: the machine and the method, the tables of each model, and the settings that were tried."""
    packages = {
        server: ", ".join(f"{name} {version}" for name, version in held.items())
        for server, held in told["versions"].items() if held
    }  # fmt: skip
    left = f" Not installed, and so left out: {', '.join(told['absent'])}." if told["absent"] else ""
    turns = f"{told['rounds']} turns of {told['seconds']:g} seconds"
    intro = f"""Written by `python -m benchmarks.serving --peers FOLDER --docs docs` on {told["date"]}:

{facts_table({**told["machine"], **packages})}

**What is measured.** Requests of one row over HTTP on one machine, whose cores the server shares with the load tool
(wrk): float32 as bytes, or as JSON; if a server accepts only JSON, bytes are base64 in it. Every peer runs the same
network with ONNX Runtime, our server runs it with msedge's runtime, with one worker process each. Ours and the other
server run at the same time and get load in alternating turns, {turns}; figures are medians. "bare aiohttp" is a handler
that calls our runtime directly and validates nothing. The weights are random; before each turn one answer is compared
with ONNX Runtime's.

**Settings.** Each server was first tried with each of the settings in the last tables, at the highest number of
connections; for each form the setting with the most requests per second was compared. "rows per call" shows whether
batches formed.

**What is left out.** Several worker processes, a load tool on another machine, gRPC.{left}"""
    parts = [intro]
    for run in told["runs"]:
        parts.append("\n".join(table(run)))
    for run in told["runs"]:
        parts.append("\n".join([f"Settings that were tried, {run['model']}:", "", *trials(run)]))
    return "\n\n".join(parts)


def require_page(folder: Path) -> None:
    """Raise MsedgeError if the page lacks the marks."""
    require_marks(folder / "serving.md", MARKS)


def write(folder: Path, told: Mapping[str, Any]) -> None:
    """Write the tables into serving.md, the chart, and the figures."""
    replace_between(folder / "serving.md", MARKS, figures(told))
    write_atomically(folder / "serving.svg", chart(told["runs"]).encode())
    write_atomically(folder / "serving.json", (json.dumps(told, indent=1) + "\n").encode())


def _times(cell: Mapping[str, Any]) -> str:
    return f" **{cell['ratio']:.2f}**" if "ratio" in cell else ""


def chart(runs: Sequence[Mapping[str, Any]]) -> str:
    """SVG: requests per second of every server with the highest number of connections, one group per model."""
    body, y = [_text(8, 22, "Requests per second", "title")], 44.0
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
    title = f"<title>Requests per second</title><style>{_STYLE}</style>"
    return "\n".join([head, title, *body, "</svg>\n"])


def _text(x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def main(argv: Sequence[str] | None = None) -> int:
    """Write the page again from saved figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serving.page", description=__doc__)
    parser.add_argument("figures", type=Path, help="docs/serving.json, or what --json of the benchmark wrote")
    parser.add_argument("--docs", type=Path, default=Path("docs"))
    args = parser.parse_args(argv)
    write(args.docs, json.loads(args.figures.read_text(encoding="utf-8")))
    return 0


if __name__ == "__main__":
    sys.exit(main())
