"""A cluster's jobs as one HTML page: who had which devices when, how many were held, and how every job fared."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from html import escape
from typing import TYPE_CHECKING, Any

from converter.report.html import document, facts, figure_cell, name_cell, table, text_cell
from edge.pages.charts import COLOURS, curves

if TYPE_CHECKING:
    from cloud.cluster.cluster import Pool
    from cloud.cluster.result import Result, Span

__all__ = ["cluster_page"]

WIDE, LEFT, BOTTOM = 1000.0, 4.0, 18.0
TALL = 360.0
"""Of the largest pool; others are as much lower as they have fewer units, at least LEAST."""
LEAST = 60.0
UNIT = 24.0
"""A unit is at most so high."""
POINTS = 200
MOST_ROWS = 400
"""Rows of the table of jobs: those that waited longest."""
NARROW = 0.4
"""Pixels: a span that is narrower is drawn so wide."""
NAMED = 7.0
"""Pixels of a letter: spans with room for their job's name have it."""


def cluster_page(result: Result, title: str) -> str:
    """The whole page."""
    spans = result.all()
    end = max([result.seconds, *(span.end for span in spans)], default=0.0) or 1.0
    colours = {name: COLOURS[n % 3] for n, name in enumerate(dict.fromkeys(span.job for span in spans))}
    serving = {event.job.name for event in result.events if event.job is not None and hasattr(event.job, "requests")}
    colours |= dict.fromkeys(serving & colours.keys(), COLOURS[3])
    body = [
        f'<style>{STYLE}</style><h1>{escape(title)}</h1><p class="soft">{_pools(result)}</p>',
        facts(_facts(result)),
        "<h2>Devices over time</h2><p>Every row is a device, every bar a job or a replica; the pale part of a bar is "
        "its start. Neighbouring training jobs have different colours; the fourth colour is serving.</p>",
        *(_pool(result, index, [s for s in spans if s.place.pool == index], colours, end)
          for index in range(len(result.cluster.pools))),
        f'<div class="charts two">{_held(result, spans, end)}{_waiting(result, spans, end)}</div>',
        f"<h2>Jobs</h2>{_jobs(result)}",
    ]  # fmt: skip
    return document(title, "\n".join(body), f"{result.cluster.devices} devices, {len(spans)} starts")


STYLE = """
.gantt svg rect { stroke: none } .gantt svg rect.begin { fill: var(--card); opacity: .55 }
.gantt svg rect.off { fill: var(--poor); opacity: .5 } .gantt svg text.in { fill: var(--card); font-size: 11px }
.gantt .scroll { margin: 0; padding: 0 } .gantt .scroll svg { min-width: 46rem }
.gantt svg line.grid { stroke: var(--line) } .gantt figure { margin-bottom: .8rem }
"""


def _pools(result: Result) -> str:
    parts = [f"{pool.name}: {pool.machines} machines of {pool.devices} devices" for pool in result.cluster.pools]
    return escape("; ".join(parts))


def _facts(result: Result) -> list[tuple[str, str]]:
    done = [one for one in result.jobs.values() if math.isfinite(one.ended)]
    pairs = [
        (f"{len(done)} of {len(result.jobs)}", "training jobs have ended"),
        (_time(result.makespan), "until all were done"),
        (_time(result.mean), "on average"),
        (f"{result.used:.0%}", "of the devices' time was held"),
        (_time(result.gap), "longest time without devices"),
        (f"{result.moves}", "times a job was stopped"),
    ]
    late = [(f"{result.late:.2%}", "of requests were late")] if result.requests else []
    missed = [(f"{len(result.missed)}", "deadlines were missed")] if result.missed else []
    return [pair for pair in pairs if pair[0] != "-"] + late + missed


def _pool(result: Result, index: int, spans: list[Span], colours: dict[str, str], end: float) -> str:
    """The Gantt chart of one pool."""
    pool = result.cluster.pools[index]
    most = max(other.total for other in result.cluster.pools)
    high = min(max(TALL * pool.total / most, LEAST), UNIT * pool.total)
    step = high / pool.total
    across = (WIDE - 2 * LEFT) / end
    parts = list(_ticks(end, across, high))
    lines = [n * pool.units * step for n in range(1, pool.machines) if pool.units * step > 6]
    parts += [f'<line class="grid" x1="{LEFT}" x2="{WIDE - LEFT}" y1="{y:.1f}" y2="{y:.1f}"/>' for y in lines]
    for span in spans:
        parts.append(_bar(span, pool, colours[span.job], across, step))
    parts += _outages(result, index, across, step, end)
    words = f"{pool.name}, {pool.machines * pool.devices} devices"
    box, inside = f'viewBox="0 0 {WIDE:g} {high + BOTTOM:.1f}"', "".join(parts)
    picture = f'<svg {box} role="img" aria-label="{escape(words)}">{inside}</svg>'
    figure = f'<figure><figcaption>{escape(words)}</figcaption><div class="scroll">{picture}</div></figure>'
    return f'<div class="gantt">{figure}</div>'


def _bar(span: Span, pool: Pool, colour: str, across: float, step: float) -> str:
    x, wide = LEFT + span.start * across, max((span.end - span.start) * across, NARROW)
    y, high = span.place.first * step, span.place.size * step
    gap = min(0.6, high / 4)
    place = f'x="{x:.2f}" y="{y:.2f}" width="{wide:.2f}" height="{high - gap:.2f}"'
    pale = (span.ready - span.start) * across
    begin = (
        f'<rect class="begin" x="{x:.2f}" y="{y:.2f}" width="{pale:.2f}" height="{high - gap:.2f}"/>'
        if pale > NARROW
        else ""
    )
    room = high >= 12 and wide - pale > NAMED * len(span.gang)
    name = (
        f'<text class="in" x="{x + pale + 3:.1f}" y="{y + high / 2 + 4:.1f}">{escape(span.gang)}</text>' if room else ""
    )
    words = f"{span.gang}: {pool.words(span.place.size)} devices, {_time(span.start)} to {_time(span.end)}"
    return f'<g><title>{escape(words)}</title><rect class="{colour} full" {place}/>{begin}{name}</g>'


def _ticks(end: float, across: float, high: float) -> Iterator[str]:
    """Times below the chart."""
    unit = 3600.0 if end >= 7200 else 60.0 if end >= 120 else 1.0
    raw = end / unit / 8
    power = 10.0 ** math.floor(math.log10(raw))
    each = next(m * power for m in (1, 2, 5, 10) if m * power >= raw) * unit
    for n in range(int(end / each) + 1):
        x = LEFT + n * each * across
        anchor = "start" if n == 0 else "end" if x > WIDE - 30 else "middle"
        words = f"{n * each / unit:g} {'h' if unit == 3600 else 'min' if unit == 60 else 's'}"
        yield f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{high:.1f}"/>'
        yield f'<text class="big" x="{x:.1f}" y="{high + 13:.1f}" text-anchor="{anchor}">{words}</text>'


def _outages(result: Result, index: int, across: float, step: float, end: float) -> list[str]:
    """Machines that were not there."""
    units = result.cluster.pools[index].units
    since = dict.fromkeys(result.cluster.pools[index].down, 0.0)
    gone: list[tuple[int, float, float]] = []
    for event in result.events:
        if event.pool == index and event.kind == "lost":
            since[event.machine] = event.time
        elif event.pool == index and event.kind == "returned" and event.machine in since:
            gone.append((event.machine, since.pop(event.machine), event.time))
    gone += [(machine, start, end) for machine, start in since.items()]
    return [
        f'<rect class="off" x="{LEFT + start * across:.2f}" y="{machine * units * step:.2f}" '
        f'width="{max((stop - start) * across, NARROW):.2f}" height="{units * step:.2f}"/>'
        for machine, start, stop in gone
    ]


def _held(result: Result, spans: list[Span], end: float) -> str:
    """The share of each pool's units that are held."""
    times = [end * (n + 0.5) / POINTS for n in range(POINTS)]
    series: dict[str, list[float | None]] = {}
    for index, pool in enumerate(result.cluster.pools):
        own = [(s.start, s.end, s.place.size / pool.total) for s in spans if s.place.pool == index]
        series[pool.name] = list(_sampled(own, times))
    return curves(
        "Share of each pool that is held, by minutes",
        [round(t / 60) for t in times],
        series,
        "{:.0%}".format,
        zero=True,
    )


def _waiting(result: Result, spans: list[Span], end: float) -> str:
    """Training jobs that are there, and those that have devices."""
    times = [end * (n + 0.5) / POINTS for n in range(POINTS)]
    there = [(one.job.arrives, min(one.ended, end), 1.0) for one in result.jobs.values()]
    have = [(span.start, span.end, 1.0) for span in spans if span.job in result.jobs]
    series: dict[str, list[float | None]] = {
        "there": list(_sampled(there, times)),
        "have devices": list(_sampled(have, times)),
    }
    return curves("Training jobs, by minutes", [round(t / 60) for t in times], series, zero=True)


def _sampled(pieces: Iterable[tuple[float, float, float]], times: list[float]) -> Iterator[float]:
    """Sums of the values of pieces (start, end, value) at ascending times."""
    changes = sorted(change for start, end, value in pieces for change in ((start, value), (end, -value)))
    at, level = 0, 0.0
    for time in times:
        while at < len(changes) and changes[at][0] <= time:
            level += changes[at][1]
            at += 1
        yield max(level, 0.0)


def _jobs(result: Result) -> str:
    rows = sorted(result.jobs.items(), key=lambda row: -row[1].gap)
    note = "" if len(rows) <= MOST_ROWS else f"<p>The {MOST_ROWS} that were without devices longest.</p>"
    columns = ("job", "#priority", "#arrived", "~started", "#ended", "#without devices", "#stopped")
    cells: list[list[Any]] = []
    for name, one in rows[:MOST_ROWS]:
        times = (one.job.arrives, one.started, one.ended, one.gap)
        state = text_cell("failed", "poor") if one.failed else figure_cell(_time(times[2]))
        cells.append([
            name_cell(name), figure_cell(str(one.job.priority)), figure_cell(_time(times[0])),
            f'<td class="spare">{_time(times[1])}</td>', state, figure_cell(_time(times[3])),
            figure_cell(str(one.moves)),
        ])  # fmt: skip
    return note + table(columns, cells)


def _time(seconds: float) -> str:
    if not math.isfinite(seconds):
        return "-"
    if seconds >= 3600:
        return f"{seconds / 3600:.2f} h"
    return f"{seconds / 60:.1f} min" if seconds >= 60 else f"{seconds:.1f} s"
