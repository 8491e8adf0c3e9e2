"""An audit: its parts one after the other, each with its share of the time, and the limits that the figures keep."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cloud.audit.files.limits import Limit, Verdict, judged, refuse_unknown
from cloud.audit.parts import PARTS
from cloud.audit.section import Clock, Part, Section
from cloud.audit.subject import Subject
from cloud.errors import AuditError
from federated.tables import closest

__all__ = ["Audit", "audit", "chosen", "figures_of"]


@dataclass(frozen=True)
class Audit:
    """What was found of a model."""

    model: str
    data: str
    examples: int
    kind: str
    sections: tuple[Section, ...]
    verdicts: tuple[Verdict, ...]
    meanings: Mapping[str, str]
    """section.figure -> what it is."""
    notes: tuple[str, ...] = ()
    seconds: float = 0.0
    budget: float = math.inf

    @property
    def figures(self) -> dict[str, float]:
        """Every figure, by section.figure."""
        return {f"{one.name}.{name}": value for one in self.sections for name, value in one.figures.items()}

    @property
    def held(self) -> bool:
        """Whether every limit is kept."""
        return all(verdict.held for verdict in self.verdicts)

    def as_data(self) -> dict[str, Any]:
        """As JSON holds it."""
        return {
            "model": self.model, "data": self.data, "examples": self.examples, "kind": self.kind, "held": self.held,
            "limits": [verdict.as_data() for verdict in self.verdicts], "figures": self.figures,
            "sections": [section.as_data() for section in self.sections], "notes": list(self.notes),
            "seconds": round(self.seconds, 3), "budget": self.budget if math.isfinite(self.budget) else None,
        }  # fmt: skip


def chosen(only: Sequence[str] = (), without: Sequence[str] = ()) -> tuple[Part, ...]:
    """The parts of these names, or all, without those. Raises AuditError for a name that is no part's."""
    names = [part.name for part in PARTS]
    for name in (*only, *without):
        if name not in names:
            raise AuditError(f"section {name!r}: no such section{closest(name, names)}")
    return tuple(part for part in PARTS if (not only or part.name in only) and part.name not in without)


def figures_of(subject: Subject, parts: Sequence[Part]) -> tuple[dict[str, str], dict[str, str]]:
    """What can be measured, section.figure -> meaning, and which sections cannot be made, with the reason."""
    lacking = {part.name: reason for part in parts if (reason := part.lacking(subject))}
    known = {
        f"{part.name}.{name}": meaning
        for part in parts if part.name not in lacking
        for name, meaning in part.figures(subject).items()
    }  # fmt: skip
    return known, lacking


def audit(
    subject: Subject, *, parts: Sequence[Part] | None = None, limits: Sequence[Limit] = (), budget: float = math.inf,
    notes: Sequence[str] = (), progress: Callable[[str], None] = lambda _: None,
) -> Audit:  # fmt: skip
    """Measure a subject. parts: None is all of them. budget: seconds, divided by their shares; what one does not use is
    left for the others. Raises AuditError for limits of figures that are not measured, before anything is."""
    if not budget > 0:
        raise AuditError(f"--budget: expected more than 0 seconds, got {budget:g}")
    parts = PARTS if parts is None else parts
    known, lacking = figures_of(subject, parts)
    left_out = {part.name: "it was left out by --only or --without" for part in PARTS if part not in parts}
    refuse_unknown(limits, known, left_out | lacking)
    clock = Clock(budget)
    sections = []
    for i, part in enumerate(parts):
        if part.name in lacking:
            sections.append(Section(part.name, part.title, undone=(f"{lacking[part.name]}.",)))
            continue
        progress(part.title)
        left = sum(other.share for other in parts[i:] if other.name not in lacking)
        sections.append(part.measure(subject, clock.part(part.share / left)))
    figures = {f"{one.name}.{name}": value for one in sections for name, value in one.figures.items()}
    return Audit(
        subject.name, subject.data.name, len(subject.data), subject.kind, tuple(sections),
        tuple(judged(limits, figures)), known, tuple(notes), clock.used, budget,
    )  # fmt: skip
