"""The data, and how many examples the deployed file answers correctly, by class."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from cloud.audit.intervals import wilson
from cloud.audit.section import Cell, Clock, Part, Section, Table
from cloud.audit.subject import Subject

__all__ = ["PART"]

MOST_CLASSES = 200
"""Classes with a row each; of more, the worst."""


def _figures(subject: Subject) -> Mapping[str, str]:
    found = {
        "examples": "examples in the data",
        "accuracy": "share answered correctly",
        "accuracy_low": "lower end of its 95 % interval (Wilson 1927)",
        "balanced": "mean accuracy over classes",
        "worst_class": "least accuracy of a class with 10 examples or more",
    }
    if subject.members is not None:
        found |= {"members": "accuracy on the examples of training", "gap": "how much greater that is"}
    return found


def _measure(subject: Subject, _: Clock) -> Section:
    right, y = subject.right, subject.data.y
    answers = subject.scores.argmax(1)
    rows: list[tuple[Cell, ...]] = []
    accuracies, judged = [], []
    for label in np.unique(y):
        own = y == label
        share = float(right[own].mean())
        accuracies.append(share)
        judged += [share] if own.sum() >= 10 else []
        others = np.bincount(answers[own & ~right], minlength=subject.model.classes)
        said = answers == label
        rows.append((
            subject.classes[label], subject.classes[int(others.argmax())] if others.any() else "", int(others.max()),
            int(own.sum()), share, float(right[said].mean()) if said.any() else None,
        ))  # fmt: skip
    figures = {
        "examples": float(len(y)),
        "accuracy": float(right.mean()),
        "accuracy_low": wilson(int(right.sum()), len(y))[0],
        "balanced": float(np.mean(accuracies)),
    }
    if judged:
        figures["worst_class"] = min(judged)
    if subject.members is not None:
        there = subject.model.logits(subject.members.x).argmax(1) == subject.members.y
        figures |= {"members": float(there.mean()), "gap": float(there.mean() - right.mean())}
    missing = subject.model.classes - len(rows)
    rows.sort(key=lambda row: (row[4], row[0]))
    low, high = (f"{end:.1%}" for end in wilson(int(right.sum()), len(y)))
    notes = [f"{len(y)} examples; the accuracy of others like them is {low} to {high} with a confidence of 95 %."]
    if missing:
        notes.append(f"{missing} of {subject.model.classes} classes have no example here.")
    title = "By class" if len(rows) <= MOST_CLASSES else f"The worst {MOST_CLASSES} of {len(rows)} classes"
    columns = ("class", "most often taken for", "times", "examples", "accuracy", "precision")
    table = Table(title, columns, tuple(rows[:MOST_CLASSES]), shares=("accuracy", "precision"), folded=len(rows) > 20)
    return Section(
        PART.name, PART.title, figures, tables=(table,), notes=tuple(notes),
        shares=("accuracy", "accuracy_low", "balanced", "worst_class", "members", "gap"),
    )  # fmt: skip


PART = Part("accuracy", "Accuracy", _figures, _measure, share=0.5)
