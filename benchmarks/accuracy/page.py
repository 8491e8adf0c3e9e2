"""Scores as Markdown: figures of all contenders, and msedge's differences from each with their intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from benchmarks.accuracy.measures import Measure

__all__ = ["Score", "cell", "markdown", "paired"]

_DRAWS = 2000


@dataclass(frozen=True)
class Score:
    """One contender on one task with one calibration set. `snr`: the signal-to-noise ratio relative to fp32's outputs
    in decibels, the mean over outputs."""

    task: str
    seed: int
    contender: str
    size: int
    """Bytes of the file; 0 if there is none."""
    snr: float
    metric: float | None
    unit: str
    each: list[float] = field(default_factory=list)
    """The measure's number of every evaluation row."""


def cell(score: Score) -> str:
    """One score as text."""
    decibels = "" if score.contender == "fp32" else f"{score.snr:.1f} dB"
    return f"{score.metric:.4f} ({decibels})".replace(" ()", "") if score.metric is not None else decibels or "–"


def markdown(results: Sequence[Score]) -> str:
    """One row per task: the mean over calibration sets in percent, lowest and highest in brackets, and the mean
    signal-to-noise ratio."""
    names = list(dict.fromkeys(s.contender for s in results))
    lines = ["| task | measure | rows | " + " | ".join(names) + " |", "|" + "---|" * (3 + len(names))]
    for task in dict.fromkeys(s.task for s in results):
        found = {n: [s for s in results if (s.task, s.contender) == (task, n)] for n in names}
        first = next(s for scores in found.values() for s in scores)
        row = " | ".join(_spread(found[name]) for name in names)
        lines.append(f"| {task} | {first.unit} | {len(first.each) or '–'} | {row} |")
    return "\n".join(lines)


def _spread(scores: Sequence[Score]) -> str:
    if not scores:
        return "–"
    decibels = "" if scores[0].contender == "fp32" else f"{np.mean([s.snr for s in scores]):.1f} dB"
    figures = [100 * s.metric for s in scores if s.metric is not None]
    if not figures:
        return decibels or "–"
    span = f" ({min(figures):.2f} to {max(figures):.2f})" if max(figures) - min(figures) > 0.005 else ""
    return f"{np.mean(figures):.2f}{span}{', ' + decibels if decibels else ''}"


def paired(results: Sequence[Score], measures: Mapping[str, Measure | None]) -> str:
    """msedge minus each other contender in points, with the interval that holds 95 % of `_DRAWS` bootstrap samples of
    the evaluation rows: all contenders on the same rows, the mean over calibration sets."""
    names = [n for n in dict.fromkeys(s.contender for s in results) if n != "msedge"]
    lines = ["| msedge minus | " + " | ".join(names) + " |", "|" + "---|" * (1 + len(names))]
    for task in dict.fromkeys(s.task for s in results):
        measure, ours = measures.get(task), _by_seed(results, task, "msedge")
        if measure is not None and ours:
            cells = [_difference(ours, _by_seed(results, task, name), measure) for name in names]
            lines.append(f"| {task} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _by_seed(results: Sequence[Score], task: str, name: str) -> dict[int, np.ndarray]:
    return {s.seed: np.array(s.each) for s in results if (s.task, s.contender) == (task, name)}


def _difference(ours: Mapping[int, np.ndarray], theirs: Mapping[int, np.ndarray], measure: Measure) -> str:
    seeds = sorted(ours.keys() & theirs.keys())
    if not seeds:
        return "–"
    count = len(ours[seeds[0]])

    def gain(rows: np.ndarray) -> float:
        return 100 * float(np.mean([measure.whole(ours[s], rows) - measure.whole(theirs[s], rows) for s in seeds]))

    rng = np.random.default_rng(0)
    low, high = np.percentile([gain(rng.integers(0, count, count)) for _ in range(_DRAWS)], [2.5, 97.5])
    return f"{gain(np.arange(count)):+.2f} ({low:+.2f} to {high:+.2f})"
