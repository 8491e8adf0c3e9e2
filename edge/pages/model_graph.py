"""A model's graph as SVG: operators in layers from top to bottom, edges between them, coloured by their share of a
step's time. Layers are the longest ways from the inputs (Sugiyama et al., 1981, without crossing minimisation beyond
one pass of means).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from converter.report.html import short

__all__ = ["STYLE", "drawn"]

WIDE, HIGH, ACROSS, DOWN, MARGIN = 230, 36, 20, 26, 12
MOST = 400
"""The most operators that are drawn: the first ones."""
LETTERS = 34
"""Of a name, as many as fit a box."""

STYLE = """<style>
.graph { overflow: auto; max-height: 32rem; background: var(--card); border: 1px solid var(--line);
  border-radius: .6rem }
.graph:focus-visible { outline: 2px solid var(--bar) } .graph svg { width: auto; max-width: none; margin: 0 auto }
.graph rect { fill: var(--card); stroke: var(--soft) } .graph rect.hot { fill: var(--fair); stroke: none }
.graph rect.fed { stroke-dasharray: 4 3 } .graph path { fill: none; stroke: var(--soft) }
.graph text { font-size: 11px; fill: var(--ink) } .graph text.op { font-weight: 600 }
.graph text.soft { fill: var(--soft) }
</style>"""


def drawn(graph: Mapping[str, Any], times: Mapping[str, float]) -> str:
    """A box that scrolls; `graph` as `cloud.track.watching.outline` has it, `times`: the share of a step by the names
    of its operators. "" without operators."""
    nodes = _known(graph)
    if not nodes:
        return ""
    inputs = [str(name) for name in graph.get("inputs", ())]
    rows = _ordered(nodes, _layers(nodes), len(inputs))
    places = {n: (row, at) for row, line in enumerate(rows) for at, n in enumerate(line)}
    widest = max(map(len, rows))
    wide = 2 * MARGIN + widest * (WIDE + ACROSS) + 2 * ACROSS
    tall = 2 * MARGIN + len(rows) * (HIGH + DOWN)

    def corner(n: int) -> tuple[float, float]:
        row, at = places[n]
        return float(MARGIN + at * (WIDE + ACROSS)), float(MARGIN + row * (HIGH + DOWN))

    edges = "".join(_edge(corner(source), corner(n)) for n, node in enumerate(nodes) for source in node["from"])
    fed = "".join(_box(*corner(-1 - i), "input", name, "fed") for i, name in enumerate(inputs) if -1 - i in places)
    boxes = "".join(_node(*corner(n), node, times.get(node["name"], 0.0)) for n, node in enumerate(nodes))
    return (
        '<div class="graph" tabindex="0" role="group" aria-label="the model\'s graph; arrow keys scroll it">'
        f'<svg width="{wide:.0f}" height="{tall:.0f}" viewBox="0 0 {wide:.0f} {tall:.0f}" role="img" '
        f'aria-label="{len(nodes)} operators">{edges}{fed}{boxes}</svg></div>'
    )


def _known(graph: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The operators to draw, with sources that exist and come before them."""
    listed = graph.get("nodes")
    inputs = graph.get("inputs")
    least = -len(inputs) if isinstance(inputs, list) else 0
    made = []
    for n, node in enumerate(listed[:MOST] if isinstance(listed, list) else ()):
        sources = [s for s in node.get("from", ()) if isinstance(s, int) and least <= s < n]
        name, operator = (str(node.get(key, "")) for key in ("name", "operator"))
        made.append({"name": name, "operator": operator, "weights": int(node.get("weights", 0)), "from": sources})
    return made


def _layers(nodes: Sequence[Mapping[str, Any]]) -> list[int]:
    """The row of every operator; inputs are in row 0."""
    rows: list[int] = []
    for node in nodes:
        rows.append(1 + max((rows[s] if s >= 0 else 0 for s in node["from"]), default=0))
    return rows


def _ordered(nodes: Sequence[Mapping[str, Any]], rows: Sequence[int], inputs: int) -> list[list[int]]:
    """The operators of each row, from left to right near what they read."""
    lines: list[list[int]] = [[] for _ in range(max(rows) + 1)]
    read = {s for node in nodes for s in node["from"]}
    lines[0] = [-1 - i for i in range(inputs) if -1 - i in read]
    for n, row in enumerate(rows):
        lines[row].append(n)
    at = {n: float(i) for i, n in enumerate(lines[0])}
    for line in lines[1:]:
        means = {n: sum(at[s] for s in nodes[n]["from"]) / max(len(nodes[n]["from"]), 1) for n in line}
        line.sort(key=lambda n: means[n])
        at |= {n: float(i) for i, n in enumerate(line)}
    return [line for line in lines if line]


def _edge(source: tuple[float, float], target: tuple[float, float]) -> str:
    """From the bottom of a box to the top of another; past the boxes between them, on the right."""
    (x0, y0), (x1, y1) = (source[0] + WIDE / 2, source[1] + HIGH), (target[0] + WIDE / 2, target[1])
    if y1 - y0 <= DOWN + 1 or abs(x1 - x0) > WIDE / 2:
        middle = (y0 + y1) / 2
        return f'<path d="M{x0:.0f},{y0:.0f}C{x0:.0f},{middle:.0f} {x1:.0f},{middle:.0f} {x1:.0f},{y1:.0f}"/>'
    side, x0, x1 = max(x0, x1) + WIDE / 2 + ACROSS / 2, x0 + WIDE / 4, x1 + WIDE / 4
    return (
        f'<path d="M{x0:.0f},{y0:.0f}C{x0:.0f},{y0 + DOWN:.0f} {side:.0f},{y0:.0f} {side:.0f},{y0 + DOWN:.0f}'
        f'L{side:.0f},{y1 - DOWN:.0f}C{side:.0f},{y1:.0f} {x1:.0f},{y1 - DOWN:.0f} {x1:.0f},{y1:.0f}"/>'
    )


def _node(x: float, y: float, node: Mapping[str, Any], share: float) -> str:
    name, operator = node["name"], node["operator"]
    named = name.removeprefix(operator).strip().strip("'")
    facts = [f"{node['weights']:,} weights"] if node["weights"] else []
    facts += [f"{share:.1%} of the step"] if share else []
    return _box(x, y, operator, named, "", f"{name}: {', '.join(facts)}" if facts else name, share)


def _box(x: float, y: float, operator: str, name: str, kind: str, tip: str = "", share: float = 0.0) -> str:
    """`share` of the box is filled, and written down if it is seen."""
    place, filled = f'x="{x:.0f}" y="{y:.0f}" height="{HIGH}" rx="5"', WIDE * min(share, 1.0)
    hot = f'<rect class="hot" {place} width="{filled:.1f}" opacity="0.45"/>' if share else ""
    at = f'x="{x + WIDE - 8:.0f}" y="{y + 14:.0f}" text-anchor="end"'
    told = f'<text class="soft" {at}>{share:.0%}</text>' if share >= 0.005 else ""
    shown = short(name)
    shown = shown if len(shown) <= LETTERS else f"…{shown[1 - LETTERS :]}"
    return (
        f'<g><title>{escape(tip or name)}</title><rect class="{kind}" {place} width="{WIDE}"/>{hot}'
        f'<text class="op" x="{x + 8:.0f}" y="{y + 14:.0f}">{escape(operator[:24])}</text>'
        f'{told}<text class="soft" x="{x + 8:.0f}" y="{y + 29:.0f}">{escape(shown)}</text></g>'
    )
