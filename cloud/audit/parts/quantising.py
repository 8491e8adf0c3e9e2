"""Which answers changed between the float model and the deployed file, for whom, and by how much."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from scipy import stats

from cloud.audit.pictures import pixels_of
from cloud.audit.section import Cell, Clock, Part, Picture, Section, Table
from cloud.audit.subject import Subject
from lite_runtime.calibration.scores import are_probabilities, log_softmax
from lite_runtime.graph import Array

__all__ = ["PART"]

SHOWN = 20
"""Changed answers with a row each."""
SURE = 0.01
_SUM = 0.1
"""How far from 1 the sum of probabilities may be: those of the float twin and of 8 bits."""


def _figures(_: Subject) -> Mapping[str, str]:
    return {
        "agreement": "share of examples that both answer alike",
        "flips": "share whose answer changed",
        "lost": "share that the float model has right and the file wrong",
        "gained": "share that the float model has wrong and the file right",
        "worst_class": "greatest share of changed answers in a class with 10 examples or more",
        "float_accuracy": "accuracy of the float model",
        "difference_mean": "mean over examples of the greatest difference of a probability",
        "difference_most": "the greatest difference of a probability",
    }


def _lacking(subject: Subject) -> str:
    return "" if subject.twin is not None else "no float model was given; name one by --float"


def _measure(subject: Subject, _: Clock) -> Section:
    assert subject.twin is not None
    y, right = subject.data.y, subject.right
    theirs = subject.twin.logits(subject.data.x)
    ours = subject.scores
    p, q = _probabilities(theirs), _probabilities(ours)
    before, after = theirs.argmax(1), ours.argmax(1)
    was = before == y
    flips, lost, gained = before != after, was & ~right, ~was & right
    difference = np.abs(p - q).max(1)
    figures = {
        "agreement": float((~flips).mean()), "flips": float(flips.mean()), "lost": float(lost.mean()),
        "gained": float(gained.mean()), "float_accuracy": float(was.mean()),
        "difference_mean": float(difference.mean()), "difference_most": float(difference.max()),
    }  # fmt: skip
    by_class = _groups(subject.classes_of(y), flips, lost, gained, difference)
    if judged := [float(row[2] or 0) for row in by_class if int(row[1] or 0) >= 10]:
        figures["worst_class"] = max(judged)
    tables = [_table("By class", "class", by_class)]
    tables += [_table(f"By {name}", name, _groups(values, flips, lost, gained, difference))
               for name, values in subject.data.columns.items()]  # fmt: skip
    tables.append(_largest(subject, flips, before, after, p, q))
    # McNemar's test: of the answers that became right or wrong, as many of each are expected by chance.
    chance = (
        float(stats.binomtest(int(lost.sum()), int((lost | gained).sum())).pvalue) if (lost | gained).any() else 1.0
    )
    words = (
        f"{int(flips.sum())} of {len(y)} answers changed: {int(lost.sum())} became wrong, {int(gained.sum())} became "
        f"right, {int((flips & ~was & ~right).sum())} were wrong before and after."
    )
    worse = lost.sum() > gained.sum() and chance < SURE
    notes = [words, f"If it were chance, as many would become right as wrong: p = {chance:.2g} (McNemar's test)."]
    warnings = ("The deployed file is less accurate than the float model, by more than chance.",) if worse else ()
    return Section(
        PART.name, PART.title, figures, tables=tuple(table for table in tables if table.rows),
        pictures=_pictures(subject, flips, before, after), notes=tuple(notes), warnings=warnings, shares=tuple(figures),
    )  # fmt: skip


def _probabilities(scores: Array) -> Array:
    """(n, classes): the scores if they are probabilities, else their softmax."""
    if are_probabilities(scores, _SUM):
        return np.asarray(scores, np.float64)
    return np.asarray(np.exp(log_softmax(scores)))


def _groups(values: Array, flips: Array, lost: Array, gained: Array, difference: Array) -> list[tuple[Cell, ...]]:
    """Most changed answers first."""
    rows: list[tuple[Cell, ...]] = []
    for value in np.unique(values):
        own = values == value
        rows.append((
            str(value), int(own.sum()), float(flips[own].mean()), int(lost[own].sum()), int(gained[own].sum()),
            float(difference[own].mean()),
        ))  # fmt: skip
    return sorted(rows, key=lambda row: (-float(row[2] or 0), str(row[0])))


def _table(title: str, head: str, rows: list[tuple[Cell, ...]]) -> Table:
    columns = (head, "examples", "changed", "became wrong", "became right", "mean difference")
    return Table(title, columns, tuple(rows), shares=("changed",), folded=len(rows) > 12)


def _largest(subject: Subject, flips: Array, before: Array, after: Array, p: Array, q: Array) -> Table:
    """The changed answers that were surest before."""
    rows = np.flatnonzero(flips)
    rows = rows[np.argsort(-p[rows, before[rows]], kind="stable")][:SHOWN]
    cells: list[tuple[Cell, ...]] = [
        (
            subject.classes[subject.data.y[i]], subject.classes[before[i]], subject.classes[after[i]],
            int(i), float(p[i, before[i]]), float(q[i, after[i]]),
        )
        for i in rows
    ]  # fmt: skip
    columns = ("class", "float answer", "the file's answer", "example", "float probability", "the file's")
    return Table("Changed answers, the surest of the float model first", columns, tuple(cells),
                 shares=("float probability", "the file's"), folded=len(cells) > 8)  # fmt: skip


def _pictures(subject: Subject, flips: Array, before: Array, after: Array) -> tuple[Picture, ...]:
    if subject.kind not in ("image", "spectrogram"):
        return ()
    names = subject.classes
    rows = np.flatnonzero(flips)[:8]
    if not len(rows):
        return ()
    shown = pixels_of(list(subject.data.x[rows]), subject.kind, subject.span)
    return tuple(
        Picture(f"example {i}, {names[subject.data.y[i]]}: {names[before[i]]} → {names[after[i]]}", pixels)
        for i, pixels in zip(rows, shown, strict=True)
    )


PART = Part("quantising", "What quantising changed", _figures, _measure, share=0.5, lacking=_lacking)
