"""The comparison as a chart: the speed relative to the best peer for every model, with one bar for each number of
threads, on a logarithmic scale. Plain SVG, readable on light and dark backgrounds."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from html import escape

from benchmarks.comparison import Row, geometric_mean, sections

__all__ = ["chart"]

WIDTH, LEFT, RIGHT, TOP, BOTTOM = 940, 300, 130, 64, 30
BAR, GAP, HEADING = 12, 8, 30
"""Heights of a bar, of the space between models, of a section's heading."""
TICKS = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0)
LOWEST, HIGHEST = 0.25, 8.0
"""The limits of the scale; a longer bar is cut there, and its figure is still shown."""

_STYLE = """
text { font: 12px system-ui, sans-serif; fill: #1f2328 }
.title { font-size: 15px; font-weight: 600 } .heading { font-weight: 600 } .small { font-size: 11px; fill: #59636e }
.grid { stroke: #d1d9e0 } .one { stroke: #59636e; stroke-width: 1.5 }
.t0 { fill: #0969da } .t1 { fill: #54aeff } .t0.slow { fill: #bc4c00 } .t1.slow { fill: #fb8f44 }
@media (prefers-color-scheme: dark) {
  text { fill: #f0f6fc } .small { fill: #9198a1 } .grid { stroke: #3d444d } .one { stroke: #9198a1 }
  .t0 { fill: #4493f8 } .t1 { fill: #a5d6ff } .t0.slow { fill: #f0883e } .t1.slow { fill: #ffc680 }
}
"""


def chart(rows: Sequence[Row]) -> str:
    """The SVG. Models are in sections, each with its geometric means: those that take 100 µs or more before the others,
    float32 before quantised; within a section, the best ratio comes first. Models with random weights are marked."""
    ran = [row for row in rows if row.best]
    threads = sorted({row.threads for row in ran})
    ratios = [row.best.ratio for row in ran if row.best] or [1.0]
    scale = _Scale(max(LOWEST, min(*ratios, 0.5)), min(HIGHEST, max(*ratios, 2.0)))
    body, y = [], float(TOP)
    for title, section in sections(ran):
        models = _models(section)
        if models:
            body.append(_text(8, y + 18, f"{title}. Geometric mean: {_means(section)}", "heading"))
            y += HEADING
        for name, held in models:
            body += _bars(name, held, threads, scale, y)
            y += BAR * len(threads) + GAP
    height = y + BOTTOM
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" width="{WIDTH}" role="img">'
    title = "Speed compared with the fastest peer (above 1: msedge is faster)"
    return "\n".join(
        [head, f"<title>{title}</title><style>{_STYLE}</style>", _text(8, 22, title, "title"), *_legend(threads),
         *_grid(scale, y), *body, "</svg>\n"]
    )  # fmt: skip


def _means(rows: Sequence[Row]) -> str:
    counts = sorted({row.threads for row in rows})
    means = ((count, geometric_mean([row for row in rows if row.threads == count])) for count in counts)
    return ", ".join(f"{mean:.2f} ({count} thread{'s' * (count != 1)})" for count, mean in means)


class _Scale:
    """Ratio -> x, logarithmic."""

    def __init__(self, low: float, high: float) -> None:
        self.low, self.high = low, high

    def __call__(self, ratio: float) -> float:
        within = min(max(ratio, self.low), self.high)
        share = math.log(within / self.low) / math.log(self.high / self.low)
        return LEFT + share * (WIDTH - LEFT - RIGHT)


def _models(rows: Sequence[Row]) -> list[tuple[str, Mapping[int, Row]]]:
    """Rows by model and number of threads, the best ratio with the fewest threads first."""
    held: dict[str, dict[int, Row]] = {}
    for row in rows:
        held.setdefault(row.model, {})[row.threads] = row
    return sorted(held.items(), key=lambda item: -_ratio(item[1][min(item[1])]))


def _ratio(row: Row) -> float:
    return row.best.ratio if row.best else 0.0


def _bars(name: str, held: Mapping[int, Row], threads: Sequence[int], scale: _Scale, y: float) -> Iterator[str]:
    middle = y + BAR * len(threads) / 2
    random = any(row.weights == "random" for row in held.values())
    yield _text(LEFT - 10, middle + 4, f"{name} (random weights)" if random else name, anchor="end")
    for i, count in enumerate(threads):
        row = held.get(count)
        if row is None or row.best is None:
            continue
        start, end = sorted((scale(1.0), scale(row.best.ratio)))
        slow = " slow" if row.best.ratio < 1 else ""
        yield (
            f'<rect class="t{min(i, 1)}{slow}" x="{start:.1f}" y="{y + i * BAR:.1f}" width="{max(end - start, 1):.1f}"'
            f' height="{BAR - 1}"/>'
        )
        label = f"{row.best.ratio:.2f} {row.best.name}"
        yield _text(max(end, scale(1.0)) + 5, y + i * BAR + 10, label, "small")


def _legend(threads: Sequence[int]) -> Iterator[str]:
    x = 8
    for i, count in enumerate(threads):
        yield f'<rect class="t{min(i, 1)}" x="{x}" y="34" width="11" height="11"/>'
        yield f'<rect class="t{min(i, 1)} slow" x="{x + 12}" y="34" width="11" height="11"/>'
        yield _text(x + 29, 44, f"{count} thread{'s' * (count != 1)}", "small")
        x += 110


def _grid(scale: _Scale, bottom: float) -> Iterator[str]:
    for tick in TICKS:
        if scale.low <= tick <= scale.high:
            kind = "one" if tick == 1 else "grid"
            x = scale(tick)
            yield f'<line class="{kind}" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP - 4}" y2="{bottom:.0f}"/>'
            yield _text(x, bottom + 16, f"{tick:g}×", "small", "middle")


def _text(x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
