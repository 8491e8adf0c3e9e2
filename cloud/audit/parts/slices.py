"""Where the deployed file is wrong most often, and where quantising changed answers for the worse: found by search."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from cloud.audit.section import Clock, Part, Section, Table
from cloud.audit.slices import Slice, statistics_of, worst_slices
from cloud.audit.subject import Subject

__all__ = ["PART"]

_NAMED = 6
"""Statistics of inputs that are named; a table may have hundreds."""


def _figures(subject: Subject) -> Mapping[str, str]:
    found = {
        "found": "slices that are wrong more often than by chance",
        "worst": "share answered wrongly in the worst of them",
    }
    if subject.twin is not None:
        found |= {"lost_found": "slices where answers became wrong more often than by chance",
                  "lost_worst": "share of answers that became wrong in the worst of them"}  # fmt: skip
    return found


def _measure(subject: Subject, _: Clock) -> Section:
    statistics = statistics_of(subject.data.x, subject.kind)
    features = {"true class": subject.classes_of(subject.data.y), **statistics, **subject.data.columns}
    slices, tests = worst_slices(~subject.right, features)
    figures = _summary(slices, "")
    warnings = _warned(slices, "wrong")
    tables = [_table("Slices with more wrong answers", slices)]
    notes = [_searched(subject, list(statistics)), _note(slices, tests, "wrong answers")]
    if subject.twin is not None:
        was = subject.twin.logits(subject.data.x).argmax(1) == subject.data.y
        lost, tests = worst_slices(np.asarray(was & ~subject.right), features)
        figures |= _summary(lost, "lost_")
        warnings += _warned(lost, "answered wrongly since quantising")
        tables.append(_table("Slices with more answers that became wrong by quantising", lost))
        notes.append(_note(lost, tests, "answers that became wrong"))
    return Section(PART.name, PART.title, figures, tuple(table for table in tables if table.rows), notes=tuple(notes),
                   warnings=tuple(warnings), shares=("worst", "lost_worst"))  # fmt: skip


def _summary(slices: list[Slice], prefix: str) -> dict[str, float]:
    worst = {f"{prefix}worst": max(one.rate for one in slices)} if slices else {}
    return {f"{prefix}found": float(len(slices)), **worst}


def _warned(slices: list[Slice], what: str) -> list[str]:
    """The surest."""
    return [f"Where {one.name}, {one.rate:.1%} are {what}, beside {one.elsewhere:.1%} elsewhere." for one in slices[:1]]


def _table(title: str, slices: list[Slice]) -> Table:
    rows = tuple((one.name, one.examples, one.rate, one.elsewhere, one.chance) for one in slices)
    return Table(title, ("slice", "examples", "rate inside", "elsewhere", "p, corrected"), rows,
                 shares=("rate inside", "elsewhere"))  # fmt: skip


def _searched(subject: Subject, statistics: list[str]) -> str:
    """What slices are made of."""
    few = ", ".join(statistics[:_NAMED]) + (", …" if len(statistics) > _NAMED else "")
    words = f", and {len(statistics)} statistics of the inputs ({few})" if statistics else ""
    return f"Slices are of the values of {', '.join(['true class', *subject.data.columns])}{words}."


def _note(slices: list[Slice], tests: int, what: str) -> str:
    found = f"{len(slices)} slices have" if slices else "No slice has"
    return (
        f"{found} more {what} than chance explains, of {tests} of one or two values (hypergeometric test, p < 0.01 "
        "after Bonferroni's correction)."
    )


PART = Part("slices", "Worst slices", _figures, _measure, share=0.5)
