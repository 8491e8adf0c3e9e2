"""Accuracy by the data's columns: devices, people, places."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from scipy import stats

from cloud.audit.calibration import measure_groups, worst_decile
from cloud.audit.intervals import wilson
from cloud.audit.names import names_of
from cloud.audit.parts.calibration import logits_of, temperature_of
from cloud.audit.section import Cell, Clock, Part, Section, Table
from cloud.audit.subject import Subject
from lite_runtime.graph import Array

__all__ = ["PART"]

LEAST = 10
"""Groups with fewer examples are listed, and judged by no figure."""
SURE = 0.01
"""A difference between groups is called one if chance alone makes it this seldom."""


def _figures(subject: Subject) -> Mapping[str, str]:
    found = {}
    for column, name in names_of(subject.data.columns).items():
        found[f"{name}.worst"] = f"least accuracy of a group by {column}, of {LEAST} examples or more"
        found[f"{name}.worst_decile"] = f"mean accuracy of the worst tenth of groups by {column}"
        found[f"{name}.gap"] = f"difference between the best and the worst group by {column}"
        found[f"{name}.worst_ece"] = f"greatest calibration error of a group by {column}"
    return found


def _lacking(subject: Subject) -> str:
    if subject.data.columns:
        return ""
    return f"{subject.data.name} has no columns; add an array with one text or number an example, such as a device"


def _measure(subject: Subject, _: Clock) -> Section:
    figures: dict[str, float] = {}
    tables, notes, warnings, shares = [], [], [], []
    logits, temperature = logits_of(subject), temperature_of(subject)
    for column, name in names_of(subject.data.columns).items():
        values = subject.data.columns[column]
        found = measure_groups(logits, subject.data.y, values.tolist(), temperature)
        rows: list[tuple[Cell, ...]] = []
        for group, one in found.items():
            low, high = wilson(round(one.accuracy * one.examples), one.examples)
            rows.append((group, one.examples, one.accuracy, low, high, one.ece))
        rows.sort(key=lambda row: (row[2], row[0]))
        judged = {group: one for group, one in found.items() if one.examples >= LEAST}
        small = {group: one.examples for group, one in found.items() if one.examples < LEAST}
        if len(judged) > 1:
            accuracies = {group: one.accuracy for group, one in judged.items()}
            figures[f"{name}.worst"] = min(accuracies.values())
            figures[f"{name}.worst_decile"] = worst_decile(accuracies, higher_is_worse=False)
            figures[f"{name}.gap"] = max(accuracies.values()) - min(accuracies.values())
            figures[f"{name}.worst_ece"] = max(one.ece for one in judged.values())
            shares += [f"{name}.{part}" for part in ("worst", "worst_decile", "gap", "worst_ece")]
            chance = _chance(subject.right, values, list(judged))
            worst = min(accuracies, key=lambda group: accuracies[group])
            if chance < SURE:
                warnings.append(
                    f"Accuracy differs by {column} more than by chance (p = {chance:.1g}); the worst is {worst}."
                )
            else:
                notes.append(f"Differences by {column} may be chance (p = {chance:.2g}).")
        else:
            notes.append(f"{column}: fewer than two groups of {LEAST} examples, so none is judged.")
        if small:
            ones = sum(count == 1 for count in small.values())
            notes.append(
                f"{column}: {len(small)} groups have fewer than {LEAST} examples ({ones} a single one); they are "
                "listed, and not judged."
            )
        columns = (column, "examples", "accuracy", "from", "to", "calibration error")
        tables.append(Table(f"By {column}; from, to: 95 % interval", columns, tuple(rows), shares=columns[2:],
                            folded=len(rows) > 12))  # fmt: skip
    return Section(PART.name, PART.title, figures, tuple(tables), notes=tuple(notes), warnings=tuple(warnings),
                   shares=tuple(shares))  # fmt: skip


def _chance(right: Array, values: Array, groups: list[str]) -> float:
    """The probability of differences this large if all groups were alike: a chi-squared test."""
    counts = np.array([[right[values == group].sum(), (~right[values == group]).sum()] for group in groups])
    if (counts.sum(axis=0) == 0).any():
        return 1.0
    return float(stats.chi2_contingency(counts, correction=False).pvalue)


PART = Part("groups", "Groups", _figures, _measure, share=0.5, lacking=_lacking)
