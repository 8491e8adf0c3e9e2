"""Charts for pages: plain SVG in the colours of `converter/report/page.css`, readable on light and dark backgrounds.

A series may have gaps (None); lines connect the points on both sides of a gap.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from itertools import cycle
from typing import NamedTuple

__all__ = ["COLOURS", "EARLY", "Mark", "Pair", "curves", "densities", "dumbbells", "scatter", "shares"]

WIDE, HIGH = 640, 240
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 26, 24
TICKS = 4
LEAST = 1e-290
"""The smallest range of numbers that is drawn as such: the ticks of a smaller one would underflow."""
MOST_DOTS = 30
LETTER, MOST_LETTERS = 8.6, 40
"""The width of a letter of a row's name, at most, and how many of them there is room for."""
COLOURS = ("c0", "c1", "c2", "c3")
"""CSS classes of the series, in order; defined in page.css. None of them is a colour of good or bad."""
EARLY = " early"
"""Added to a series' class: the same quantity before something was done; its line is dashed and its dots are hollow."""

Numbers = Sequence[float | None]
Write = Callable[[float], str]


class _Axis:
    """A linear scale from numbers to pixels."""

    def __init__(self, low: float, high: float, start: float, end: float) -> None:
        self.low, self.high = low, high if high > low else low + 1.0
        self.start, self.end = start, end

    def __call__(self, value: float) -> float:
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)


def curves(
    title: str, x: Sequence[float], series: Mapping[str, Numbers], write: Write = "{:g}".format, *, zero: bool = False,
    styles: Sequence[str] = COLOURS,
) -> str:  # fmt: skip
    """A line chart, a line per series over increasing numbers `x`; "" if there is nothing to draw. `zero`: the scale
    begins at 0. `styles`: one of COLOURS for each series, with EARLY or without, repeated if there are more series."""
    seen = [v for values in series.values() for v in values if v is not None and math.isfinite(v)]
    if not seen or not x:
        return ""
    low, high, step = _ticks(min(0.0, *seen) if zero else min(seen), max(seen))
    across, up = _Axis(x[0], x[-1], LEFT, WIDE - RIGHT), _Axis(low, high, HIGH - BOTTOM, TOP)
    grid = "".join(_level(up(low + i * step), write(low + i * step)) for i in range(round((high - low) / step) + 1))
    anchors = {x[0]: "middle", x[-1]: "end"}
    ends = "".join(_text(across(n), HIGH - 8, _number(n), anchor) for n, anchor in anchors.items())
    drawn = zip(cycle(styles), series.values())
    lines = "".join(_line(style, x, values, across, up) for style, values in drawn)
    return _figure(title, WIDE, HIGH, _legend(series, styles=styles) + grid + ends + lines)


def _number(x: float) -> str:
    return str(x) if isinstance(x, int) else f"{x:.3g}"


class Pair(NamedTuple):
    """A row of `dumbbells`; `marked` rows have the second colour."""

    name: str
    before: float | None
    after: float | None
    marked: bool = False


ROW = 15


def dumbbells(title: str, pairs: Sequence[Pair], write: Write = "{:g}".format) -> str:
    """One row per pair, from a hollow dot (before) to a filled one (after); "" if there are no pairs."""
    seen = [v for pair in pairs for v in (pair.before, pair.after) if v is not None]
    if not seen:
        return ""
    low, high, step = _ticks(min(seen), max(seen))
    tall = TOP + ROW * len(pairs) + BOTTOM
    names = [pair.name for pair in pairs]
    across = _Axis(low, high, _margin(names), WIDE - RIGHT - 12)
    ticks = [low + i * step for i in range(round((high - low) / step) + 1)]
    grid = "".join(
        f'<line class="grid" x1="{across(t):.1f}" x2="{across(t):.1f}" y1="{TOP - 6}" y2="{tall - BOTTOM}"/>'
        + _text(across(t), tall - 8, write(t), "middle")
        for t in ticks
    )
    rows = "".join(_dumbbell(pair, across, TOP + ROW * i + ROW / 2) for i, pair in enumerate(pairs))
    return _figure(title, WIDE, tall, grid + rows)


def _dumbbell(pair: Pair, across: _Axis, y: float) -> str:
    kind = "c1" if pair.marked else "c0"
    parts = [_name(pair.name, across, y + 4)]
    if pair.before is not None and pair.after is not None:
        worse = " poor" if pair.after < pair.before else ""
        ends = f'x1="{across(pair.before):.1f}" x2="{across(pair.after):.1f}"'
        parts.append(f'<line class="{kind}{worse} bar" {ends} y1="{y}" y2="{y}"/>')
    for value, style in ((pair.before, "hollow"), (pair.after, "full")):
        if value is not None:
            parts.append(f'<circle class="{kind} {style}" cx="{across(value):.1f}" cy="{y}" r="4"/>')
    return "".join(parts)


class Mark(NamedTuple):
    """A point of `scatter` that is shown apart, with its name beside it."""

    x: float
    y: float
    name: str = ""


def scatter(
    title: str, points: Sequence[tuple[float, float, bool]], *, names: Sequence[str] = (), log: bool = False,
    write: Write = "{:.4g}".format, marks: Sequence[Mark] = (), limit: float | None = None,
) -> str:  # fmt: skip
    """Dots at (x, y), filled or hollow; "" if there are none. `names`: x are their positions; `log`: x above 0, placed
    by their logarithms. `marks` are diamonds; at the x `limit` there is a dashed line."""
    if not points:
        return ""
    place = math.log10 if log else float
    every = [x for x, _, _ in points] + [mark.x for mark in marks] + ([] if limit is None else [limit])
    heights = [y for _, y, _ in points] + [mark.y for mark in marks]
    ends = (-0.5, len(names) - 0.5) if names else (place(min(every)), place(max(every)))
    low, high, step = _ticks(min(heights), max(heights))
    across, up = _Axis(*ends, LEFT + 8, WIDE - RIGHT - 8), _Axis(low, high, HIGH - BOTTOM, TOP)
    grid = "".join(_level(up(low + i * step), write(low + i * step)) for i in range(round((high - low) / step) + 1))
    exact = [(x, f"{x:.3g}") for x in sorted({min(every), max(every)})]
    ticks = list(enumerate(names)) if names else exact
    anchors = ["middle"] * len(names) if names else ["start", "end"]
    words = "".join(
        _text(across(float(at) if names else place(at)), HIGH - 8, word[:MOST_LETTERS], anchor)
        for (at, word), anchor in zip(ticks, anchors, strict=False)
    )
    dots = "".join(
        f'<circle class="c0 {"full" if full else "hollow"}" cx="{across(place(x)):.1f}" cy="{up(y):.1f}" r="4"/>'
        for x, y, full in points
    )
    if limit is not None:
        at = f"{across(place(limit)):.1f}"
        words += f'<polyline class="c1{EARLY}" points="{at},{TOP} {at},{HIGH - BOTTOM}"/>'
        words += _text(across(place(limit)), TOP - 4, "budget", "middle")
    apart = "".join(_diamond(mark, across(place(mark.x)), up(mark.y)) for mark in marks)
    return _figure(title, WIDE, HIGH, grid + words + dots + apart)


def _diamond(mark: Mark, x: float, y: float) -> str:
    turned = f'transform="rotate(45 {x:.1f} {y:.1f})"'
    drawn = f'<rect class="c1 full" x="{x - 4.5:.1f}" y="{y - 4.5:.1f}" width="9" height="9" {turned}/>'
    right = x > WIDE / 2
    return drawn + (_text(x + (-9 if right else 9), y + 4, mark.name, "end" if right else "start") if mark.name else "")


def densities(title: str, spreads: Mapping[str, tuple[Sequence[float], Sequence[int]]]) -> str:
    """Outlines of histograms, each (edges, counts), in one chart, scaled to equal area; "" if there are none."""
    outlines = {name: _outline(edges, counts) for name, (edges, counts) in spreads.items() if sum(counts)}
    if not outlines:
        return ""
    places = [x for outline in outlines.values() for x, _ in outline]
    most = max(y for outline in outlines.values() for _, y in outline)
    low, high, step = _ticks(min(places), max(places))
    across, up = _Axis(low, high, 12, WIDE - 12), _Axis(0.0, most, HIGH - BOTTOM, TOP + 10)
    anchors = {low: "start", low + round((high - low) / step / 2) * step: "middle", high: "end"}
    ends = "".join(_text(across(m), HIGH - 4, f"{m + 0.0:.3g}", anchor, "huge") for m, anchor in anchors.items())
    base = f'<line class="grid" x1="12" x2="{WIDE - 12}" y1="{HIGH - BOTTOM}" y2="{HIGH - BOTTOM}"/>'
    lines = "".join(
        f'<polyline class="{colour}" points="{" ".join(f"{across(x):.1f},{up(y):.1f}" for x, y in outline)}"/>'
        for colour, outline in zip(cycle(COLOURS), outlines.values())
    )
    return _figure(title, WIDE, HIGH, _legend(outlines, "huge") + base + ends + lines)


def _outline(edges: Sequence[float], counts: Sequence[int]) -> list[tuple[float, float]]:
    """Corner points of the outline of a histogram, scaled to area 1."""
    total = sum(counts)
    made = [(edges[0], 0.0)]
    for low, high, count in zip(edges, edges[1:], counts, strict=False):
        height = count / total / max(high - low, 1e-30)
        made += [(low, height), (high, height)]
    return [*made, (edges[-1], 0.0)]


def shares(title: str, rows: Mapping[str, Mapping[str, float]]) -> str:
    """One stacked bar per row, with its parts one after another; "" if there is nothing to draw."""
    most = max((sum(parts.values()) for parts in rows.values()), default=0.0)
    if most <= 0:
        return ""
    tall = TOP + 24 * len(rows) + 4
    across = _Axis(0.0, most, _margin(rows), WIDE - 4.0)
    drawn = []
    for i, (name, parts) in enumerate(rows.items()):
        y, at = TOP + 24 * i, 0.0
        drawn.append(_name(name, across, y + 12))
        for colour, value in zip(cycle(COLOURS), parts.values()):
            place = f'x="{across(at):.1f}" y="{y}" width="{across(at + value) - across(at):.1f}" height="16"'
            drawn.append(f'<rect class="{colour} full" {place}/>')
            at += value
    return _figure(title, WIDE, tall, _legend(next(iter(rows.values()))) + "".join(drawn))


def _ticks(low: float, high: float) -> tuple[float, float, float]:
    """A range of round numbers that includes low and high, and the distance of its ticks: 1, 2 or 5 times a power of
    ten."""
    if high - low < LEAST:  # equal, or so close that the distance of the ticks underflows
        wide = 0.5 * max(abs(low), abs(high))
        wide = wide if wide > LEAST else 0.5
        low, high = low - wide, high + wide
    raw = (high - low) / TICKS
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= raw * 0.999)
    return math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step, step


def _dot(style: str, place: str) -> str:
    return f'<circle class="{style.removesuffix(EARLY)} {"hollow" if style.endswith(EARLY) else "full"}" {place}/>'


def _line(style: str, x: Sequence[float], values: Numbers, across: _Axis, up: _Axis) -> str:
    """A polyline, with a dot at each point if there are few."""
    points = [(across(n), up(v)) for n, v in zip(x, values, strict=True) if v is not None and math.isfinite(v)]
    dots = "".join(_dot(style, f'cx="{cx:.1f}" cy="{cy:.1f}" r="3"') for cx, cy in points)
    line = " ".join(f"{cx:.1f},{cy:.1f}" for cx, cy in points)
    return f'<polyline class="{style}" points="{line}"/>' + (dots if len(points) <= MOST_DOTS else "")


def _legend(names: Iterable[str], kind: str = "big", styles: Sequence[str] = COLOURS) -> str:
    at, low, letter = (float(LEFT), 10, 7.7) if kind == "big" else (12.0, 16, 12.0)
    parts = []
    for style, name in zip(cycle(styles), names):
        words = _text(at + 8, low + 4, name, kind=kind)
        parts.append(_dot(style, f'cx="{at:.0f}" cy="{low}" r="4"') + words)
        at += 22 + letter * len(name)
    return "".join(parts)


def _level(y: float, words: str) -> str:
    line = f'<line class="grid" x1="{LEFT}" x2="{WIDE - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
    return line + _text(LEFT - 6, y + 4, words, "end")


def _margin(names: Iterable[str]) -> float:
    """Where rows begin: to the right of their names."""
    return max(120.0, 8 + LETTER * min(MOST_LETTERS, max(map(len, names), default=0)))


def _name(name: str, across: _Axis, y: float) -> str:
    """A row's name, to the left of it; of a long one the end, which tells devices apart, and all of it on hovering."""
    short = name if len(name) <= MOST_LETTERS else f"…{name[1 - MOST_LETTERS :]}"
    whole = "" if short == name else f"<title>{escape(name)}</title>"
    return f"<g>{whole}{_text(across.start - 8, y, short, 'end')}</g>"


def _text(x: float, y: float, words: str, anchor: str = "start", kind: str = "big") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def _figure(title: str, wide: float, tall: float, inside: str) -> str:
    picture = f'<svg viewBox="0 0 {wide:g} {tall:g}" role="img" aria-label="{escape(title)}">{inside}</svg>'
    return f"<figure><figcaption>{escape(title)}</figcaption>{picture}</figure>"
