"""Figures of the browser benchmark: rows, and the table of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from benchmarks.browser.subjects import Subject

__all__ = ["NAMES", "Row", "geometric_mean", "page", "row_of", "summary", "table"]

NAMES = {"msedge": "msedge", "onnxruntime": "ONNX Runtime Web", "litert": "LiteRT.js"}
"""The contenders as they are called."""


class Row(NamedTuple):
    """One model with one number of threads.

    seconds: of a run, by contender, the least over its turns, as other programs only ever add time. ratios: a
    contender's seconds divided by ours.
    first, weight: seconds to the first result, and bytes that a page downloads for it, compressed.
    differences: of outputs from ours, as a share of their largest magnitude. absent: why a contender did not run.
    """

    model: str
    threads: int
    seconds: Mapping[str, float]
    ratios: Mapping[str, float]
    differences: Mapping[str, float]
    first: Mapping[str, float]
    weight: Mapping[str, int]
    absent: Mapping[str, str]
    twin: bool
    """Whether ONNX Runtime ran the network as published in ONNX, with its own layout: outputs cannot be compared."""

    @property
    def best(self) -> float:
        """The ratio to the faster of the others; NaN without any."""
        return min(self.ratios.values(), default=math.nan)

    def line(self) -> str:
        """The row as text, for progress."""
        times = ", ".join(f"{name} {1000 * seconds:.3f} ms" for name, seconds in self.seconds.items())
        far = ", ".join(f"{name} {value:.1e}" for name, value in self.differences.items())
        return f"{self.model}, {self.threads}: {times}; best {self.best:.2f}; differences {far}; {dict(self.absent)}"


def row_of(
    subject: Subject, threads: int, answer: Mapping[str, Any] | None, firsts: Mapping[str, Any], twin: bool
) -> Row:
    """The row of what a page answered."""
    found = answer or {"ran": [], "failed": {}}
    times = {one["name"]: one["seconds"] for one in found["ran"]}
    least = {name: min(seconds) for name, seconds in times.items()}
    others = {name: seconds for name, seconds in least.items() if name != "msedge" and "msedge" in least}
    return Row(
        subject.name,
        threads,
        least,
        {name: seconds / least["msedge"] for name, seconds in others.items()},
        {one["name"]: one["difference"] for one in found["ran"] if one["name"] != "msedge"},
        {name: one["seconds"] for name, one in firsts.items() if one},
        {name: one["bytes"] for name, one in firsts.items() if one},
        {**subject.absent, **found["failed"]},
        twin,
    )


def geometric_mean(ratios: Sequence[float]) -> float:
    """NaN without any."""
    return math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else math.nan


def table(rows: Sequence[Row]) -> str:
    """Markdown: milliseconds, and the ratio to the faster of the others."""
    lines = [f"| model | threads | {' | '.join(NAMES.values())} | ratio |", "|---|---|---|---|---|---|"]
    for row in rows:
        times = [f"{1000 * row.seconds[name]:.3f}" if name in row.seconds else "–" for name in NAMES]
        ratio = "" if math.isnan(row.best) else f"{row.best:.2f}"
        lines.append(f"| {row.model} | {row.threads} | {' | '.join(times)} | {ratio} |")
    return "\n".join(lines)


def summary(rows: Sequence[Row]) -> str:
    """A sentence for each number of threads."""
    lines = []
    for threads in sorted({row.threads for row in rows}):
        best = [row.best for row in rows if row.threads == threads and not math.isnan(row.best)]
        won, count = sum(ratio >= 1 for ratio in best), f"{threads} thread{'s' * (threads > 1)}"
        mean = geometric_mean(best)
        lines.append(
            f"With {count} msedge is at least as fast as both others on {won} of {len(best)} models; the geometric"
        )
        lines[-1] += f" mean of the ratios is {mean:.2f}."
    return "\n".join(lines)


def starts(rows: Sequence[Row]) -> str:
    """Markdown: kilobytes to download, and milliseconds to the first result."""
    names = " | ".join(f"{name}, {unit}" for unit in ("KB", "ms") for name in NAMES.values())
    lines = [f"| model | {names} |", "|---" * 7 + "|"]
    for row in {row.model: row for row in rows}.values():
        cells = [f"{row.weight[name] / 1000:,.0f}" if name in row.weight else "–" for name in NAMES]
        cells += [f"{1000 * row.first[name]:.0f}" if name in row.first else "–" for name in NAMES]
        lines.append(f"| {row.model} | {' | '.join(cells)} |")
    return "\n".join(lines)


def page(rows: Sequence[Row], facts: Mapping[str, str]) -> str:
    """docs/browser.md. facts: by what it is, what was measured with."""
    absent = sorted({f"- {NAMES[n]}, {row.model}: {why}" for row in rows for n, why in row.absent.items()})
    measured = "\n".join(f"| {name} | {value} |" for name, value in facts.items())
    return f"""# In a browser, beside ONNX Runtime Web and LiteRT.js

Written by `python -m benchmarks.browser --models DIR --docs docs`, which loads all three in one page of headless
Chromium and lets them run in turns whose order rotates. A run takes JavaScript's arrays and gives JavaScript's arrays.
ONNX Runtime Web uses its WebAssembly provider with all optimisations, LiteRT.js its CPU kernels (XNNPACK, with relaxed
SIMD). Where a network is published in both formats, each runs its own; otherwise ONNX Runtime runs what `msedge convert
--to onnx` makes of the .tflite. LiteRT.js offers no arrays of int8: the benchmark adds a row to its table of types.

| measured with | |
|---|---|
{measured}

Milliseconds of a run, the least over turns of 12 ms or more, because other programs only ever add time; the ratio is
the time of the faster of the others divided by ours.

{table(rows)}

{summary(rows)}

## Download and start

Kilobytes (of 1,000 bytes) that a page fetches for the runtime, the kernels and the model, each file compressed by gzip;
and milliseconds from an empty page to the first result, the least of three, from a server on the same machine.

{starts(rows)}

## What did not run

{chr(10).join(absent) or "All ran."}
"""
