"""How far the file's confidence can be trusted, and what it says of inputs that are like nothing it was trained on."""

from __future__ import annotations

from collections.abc import Mapping

from cloud.audit.calibration import Measured, measure_calibration
from cloud.audit.section import Clock, Curves, Part, Section, Table
from cloud.audit.subject import Subject
from lite_runtime.calibration.description import Threshold
from lite_runtime.calibration.scores import are_probabilities, from_probabilities
from lite_runtime.graph import Array

__all__ = ["PART", "logits_of", "temperature_of"]

_SUM = 0.02
"""How far the sum of probabilities may be from 1: scores in 8 bits are rounded."""


def logits_of(subject: Subject) -> Array:
    """(n, classes): the scores, or the logarithms of scores that are probabilities."""
    return from_probabilities(subject.scores) if probabilities(subject) else subject.scores


def probabilities(subject: Subject) -> bool:
    """Whether the file's scores are probabilities: by its calibration, or by what they are."""
    if subject.calibration is not None:
        return subject.calibration.kind == "probabilities"
    return are_probabilities(subject.scores, _SUM * max(1.0, subject.model.classes / 10))


def temperature_of(subject: Subject) -> float:
    """That of the bundle's calibration; 1 without one."""
    return subject.calibration.temperature if subject.calibration is not None else 1.0


def _figures(subject: Subject) -> Mapping[str, str]:
    found = {
        "ece": "expected calibration error, 15 bins of equal width",
        "ece_mass": "the same with bins of equal mass",
        "nll": "negative log likelihood",
        "brier": "Brier score over all classes, 0 to 2",
    }
    if subject.calibration is not None:
        found |= {"uncalibrated_ece": "expected calibration error without the bundle's temperature"}
    if subject.confidence is not None and subject.confidence.out_of_distribution is not None:
        found |= {
            "out_of_distribution": "share of the examples that the bundle calls out of distribution",
            "accuracy_inside": "accuracy on the others",
        }
    return found


def _measure(subject: Subject, _: Clock) -> Section:
    logits, y = logits_of(subject), subject.data.y
    after = measure_calibration(logits, y, temperature_of(subject))
    figures = {"ece": after.ece, "ece_mass": after.ece_mass, "nll": after.nll, "brier": after.brier}
    shares = ["ece", "ece_mass"]
    notes = [
        "Scores are probabilities." if probabilities(subject) else "Scores are logits; confidence is their softmax."
    ]
    if subject.calibration is not None:
        before = measure_calibration(logits, y)
        figures["uncalibrated_ece"] = before.ece
        shares.append("uncalibrated_ece")
        notes.append(f"The bundle carries a temperature of {subject.calibration.temperature:.3g}, which is applied.")
    else:
        notes.append("The bundle carries no calibration; cloud.audit.fit_calibration fits one.")
    confidence = subject.confidence
    if confidence is not None and confidence.out_of_distribution is not None:
        outside = confidence.out_of_distribution
        figures["out_of_distribution"] = float(outside.mean())
        if not outside.all():
            figures["accuracy_inside"] = float(subject.right[~outside].mean())
        shares += ["out_of_distribution", "accuracy_inside"]
        stated = [one.false_alarms for one in _thresholds(subject)]
        notes.append(f"Its thresholds were set for false alarms of {', '.join(f'{rate:.1%}' for rate in stated)}.")
    return Section(
        PART.name, PART.title, figures, tables=(_bins(after),), curves=_reliability(after), notes=tuple(notes),
        shares=tuple(shares),
    )  # fmt: skip


def _thresholds(subject: Subject) -> list[Threshold]:
    calibration = subject.calibration
    assert calibration is not None
    found = [calibration.energy, calibration.mahalanobis.above if calibration.mahalanobis is not None else None]
    return [one for one in found if one is not None]


def _bins(found: Measured) -> Table:
    rows = tuple((one.confidence, one.accuracy, one.examples) for one in found.bins)
    return Table("Examples of similar confidence", ("confidence", "accuracy", "examples"), rows,
                 shares=("confidence", "accuracy"), folded=True)  # fmt: skip


def _reliability(found: Measured) -> tuple[Curves, ...]:
    """Accuracy by confidence, beside what it should be."""
    if len(found.bins) < 2:
        return ()
    x = tuple(one.confidence for one in found.bins)
    series = {"accuracy": [one.accuracy for one in found.bins], "as it should be": list(x)}
    return (Curves("Accuracy by confidence", x, series, "confidence", share=True),)


PART = Part("calibration", "Calibration", _figures, _measure, share=0.3)
