"""Accuracy of the deployed file on inputs that noise, weather or wear have changed."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from cloud.audit.corruptions import Corruption, corrupted, corruptions_of
from cloud.audit.corruptions.rows import SEVERITIES
from cloud.audit.corruptions.runs import levels_of
from cloud.audit.pictures import side_by_side
from cloud.audit.section import Cell, Clock, Curves, Part, Picture, Section, Table
from cloud.audit.subject import Subject
from cloud.audit.victim import Victim
from lite_runtime.graph import Array

__all__ = ["PART"]

LEAST_ROWS, MOST_ROWS = 50, 1000
"""Examples that are changed, drawn by the seed; fewer if time is short."""
KNOWN_ROWS = 2000
"""Examples that levels in standard deviations are measured by."""


def _figures(subject: Subject) -> Mapping[str, str]:
    found = {
        "mean": "accuracy, mean over all corruptions and severities",
        "worst": "accuracy under the worst corruption, mean over severities",
        "mean_error": "mean corruption error: 1 - mean",
        "relative_error": "how much greater that is than the error without corruption",
    }
    if subject.twin is not None:
        found["error_to_float"] = "mean over corruptions of the error divided by the float twin's"
    rows = corruptions_of(subject.model.shape, subject.kind)
    return found | {row.name: f"accuracy under {row.name}, mean over severities" for row in rows}


def _measure(subject: Subject, clock: Clock) -> Section:
    known = _known(subject)
    rows = subject.sample(_affordable(subject, clock))
    x, y = subject.data.x[rows], subject.data.y[rows]
    clean = float(subject.right[rows].mean())
    listed = corruptions_of(subject.model.shape, subject.kind)
    found: dict[str, list[float]] = {}
    twins: dict[str, float] = {}
    for row in listed:
        if clock.over:
            break
        changed = [corrupted(row, s, x, subject.kind, subject.span, subject.seed, known)
                   for s in range(1, SEVERITIES + 1)]  # fmt: skip
        found[row.name] = [_accuracy(subject.model, one, y) for one in changed]
        if subject.twin is not None:
            twins[row.name] = float(np.mean([_accuracy(subject.twin, one, y) for one in changed]))
    lost = [row.name for row in listed if row.name not in found]
    undone = (f"Out of time before {', '.join(lost)}; so there are no means; raise --budget.",) if lost else ()
    notes = [f"{len(rows)} examples, five severities (Hendrycks and Dietterich 2019), changed alike for every model."]
    tables = (_table(subject, found, twins, clean),) if found else ()
    return Section(
        PART.name, PART.title, _summary(found, twins, clean, not lost), tables=tables,
        curves=_curves(found, clean), pictures=_pictures(subject, [row for row in listed if row.name in found]),
        notes=tuple(notes), undone=undone,
        shares=("mean", "worst", "mean_error", "relative_error", *found),
        shown=("mean", "worst", "mean_error", "relative_error", "error_to_float"),
    )  # fmt: skip


def _known(subject: Subject) -> Array:
    """The examples that give each channel's scale."""
    return np.asarray(subject.data.x[subject.sample(KNOWN_ROWS)])


def _affordable(subject: Subject, clock: Clock) -> int:
    """How many examples there is time for, by the time of one corruption of a few."""
    listed = corruptions_of(subject.model.shape, subject.kind)
    x, y = subject.data.x[:LEAST_ROWS], subject.data.y[:LEAST_ROWS]
    known, begun = _known(subject), clock.used
    for row in listed:
        changed = corrupted(row, SEVERITIES, x, subject.kind, subject.span, subject.seed, known)
    for victim in [subject.model, *([subject.twin] if subject.twin is not None else [])]:
        for _ in listed:
            _accuracy(victim, changed, y)
    seconds = (clock.used - begun) / len(x) * SEVERITIES
    return int(np.clip(0.8 * clock.left / max(seconds, 1e-9), LEAST_ROWS, MOST_ROWS))


def _accuracy(victim: Victim, x: Array, y: Array) -> float:
    return float((victim.logits(x).argmax(1) == y).mean())


def _summary(
    found: Mapping[str, list[float]], twins: Mapping[str, float], clean: float, whole: bool
) -> dict[str, float]:
    """whole: whether every corruption was measured; means over some would be compared with means over all."""
    if not found:
        return {}
    means = {name: float(np.mean(values)) for name, values in found.items()}
    mean = float(np.mean(list(means.values())))
    figures = dict(means)
    if whole:
        figures |= {"mean": mean, "worst": min(means.values()), "mean_error": 1 - mean, "relative_error": clean - mean}
    ratios = [(1 - means[name]) / (1 - twin) for name, twin in twins.items() if twin < 1]
    if ratios and whole:
        figures["error_to_float"] = float(np.mean(ratios))
    return figures


def _table(subject: Subject, found: Mapping[str, list[float]], twins: Mapping[str, float], clean: float) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for row in corruptions_of(subject.model.shape, subject.kind):
        if row.name in found:
            levels = ", ".join(f"{level:g}" for level in levels_of(row, subject.model.shape, subject.kind))
            values = found[row.name]
            mean = float(np.mean(values))
            more = (twins[row.name],) if twins else ()
            rows.append(
                (row.name.replace("_", " "), f"{row.unit}: {levels}", clean, *values, mean, clean - mean, *more)
            )
    rows.sort(key=lambda cells: float(cells[-2 - bool(twins)] or 0))
    severities = tuple(str(s) for s in range(1, SEVERITIES + 1))
    shares = ("unchanged", *severities, "mean", "lost", *(("float twin",) if twins else ()))
    return Table("Accuracy by corruption and severity, the worst first", ("corruption", "levels", *shares),
                 tuple(rows), shares=shares)  # fmt: skip


def _curves(found: Mapping[str, list[float]], clean: float) -> tuple[Curves, ...]:
    if not found:
        return ()
    order = sorted(found, key=lambda name: sum(found[name]))
    series: dict[str, list[float | None]] = {"mean": [clean, *np.mean(list(found.values()), axis=0).tolist()]}
    for name in dict.fromkeys((order[0], order[-1])):
        series[name.replace("_", " ")] = [clean, *found[name]]
    x = tuple(float(s) for s in range(SEVERITIES + 1))
    return (Curves("Accuracy by severity: mean, the worst and the mildest", x, series, "severity", share=True),)


def _pictures(subject: Subject, listed: list[Corruption]) -> tuple[Picture, ...]:
    """One example, unchanged and at severities 1, 3 and 5."""
    if subject.kind not in ("image", "spectrogram") or not listed:
        return ()
    row = subject.sample(1, subject.right if subject.right.any() else None)
    x, known = subject.data.x[row], _known(subject)
    found = []
    for one in listed:
        changed = [corrupted(one, s, x, subject.kind, subject.span, subject.seed, known)[0] for s in (1, 3, 5)]
        pixels = side_by_side([x[0], *changed], subject.kind, subject.span)
        found.append(Picture(f"{one.name.replace('_', ' ')}: unchanged, severities 1, 3, 5", pixels))
    return tuple(found)


PART = Part("corruptions", "Corruptions", _figures, _measure, share=3.0)
