"""How far nothing can change an answer: certified radii of the smoothed file, by randomised smoothing.

The noise's deviation is the audit's epsilon, so that noise is as long as a change by epsilon of every element.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from cloud.audit.section import Clock, Curves, Part, Section, Table
from cloud.audit.smoothing import ABSTAINED, Certified, certify
from cloud.audit.subject import Subject

__all__ = ["PART"]

MOST, LEAST = 64, 10
"""Examples that are certified, and without which nothing is said."""
SAMPLES, CHOOSING, ALPHA = 1000, 100, 0.001
_RADII = (0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0)
"""Where certified accuracy is stated, in multiples of the noise's deviation."""


def _figures(_: Subject) -> Mapping[str, str]:
    return {
        "smoothed_accuracy": "share that the smoothed file answers correctly",
        "accuracy_half": "share that is certified correct up to half of the noise's deviation in L2",
        "accuracy_one": "share that is certified correct up to the noise's deviation in L2",
        "average_radius": "mean certified radius in L2, 0 where the answer is wrong",
        "abstained": "share for which the smoothed file gives no answer",
    }


def _measure(subject: Subject, clock: Clock) -> Section:
    rows = subject.sample(MOST)
    found: list[Certified] = []
    for row in rows:
        if clock.over:
            break
        x, y, seed = subject.data.x[row : row + 1], subject.data.y[row : row + 1], subject.seed * 1_000_003 + int(row)
        found.append(
            certify(
                subject.model, x, y, sigma=subject.epsilon, samples=SAMPLES, choosing=CHOOSING, alpha=ALPHA, seed=seed
            )
        )
    if len(found) < min(LEAST, len(rows)):
        why = f"{len(found)} of {len(rows)} examples were certified in the time, too few to say anything."
        return Section(PART.name, PART.title, undone=(why,))
    whole = Certified(
        np.concatenate([one.classes for one in found]), np.concatenate([one.radii for one in found]),
        np.concatenate([one.labels for one in found]), subject.epsilon, ALPHA, SAMPLES,
    )  # fmt: skip
    return _section(subject, whole, len(rows))


def _section(subject: Subject, whole: Certified, asked: int) -> Section:
    sigma, count = whole.sigma, len(whole.classes)
    at = tuple(sigma * step for step in _RADII)
    certified = [whole.accuracy(radius) for radius in at]
    figures = {
        "smoothed_accuracy": certified[0],
        "accuracy_half": certified[_RADII.index(0.5)],
        "accuracy_one": certified[_RADII.index(1.0)],
        "average_radius": float(np.where(whole.right, whole.radii, 0).mean()),
        "abstained": float((whole.classes == ABSTAINED).mean()),
    }
    short = (f"{asked - count} of {asked} examples were not certified in the time.",) if count < asked else ()
    return Section(
        PART.name, PART.title, figures,
        tables=(Table("Certified accuracy", ("radius in L2", "certified"), tuple(zip(at, certified, strict=True)),
                      shares=("certified",), folded=True),),
        curves=(Curves("Certified accuracy by radius", at, {"certified": certified}, "radius in L2", share=True),),
        notes=(
            f"{count} examples, normal noise of deviation {sigma:.3g}, {SAMPLES} draws each; a radius is wrong with "
            f"probability {ALPHA:g} at most. What is certified is the most frequent answer under this noise, not the "
            "file without noise; a model that was not trained with noise has small radii.",
        ),
        undone=short, shares=("smoothed_accuracy", "accuracy_half", "accuracy_one", "abstained"),
    )  # fmt: skip


PART = Part("certified", "Certified radii", _figures, _measure)
