"""One section of an audit, as data: figures that limits name, tables, curves, pictures and notes.

A page renders sections and JSON carries them; neither knows what was measured. A limit names a figure as
`section.figure`. Whoever adds a section writes a `Part` and lists it in `cloud.audit.parts.PARTS`.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from cloud.errors import AuditError
from lite_runtime.graph import Array

if TYPE_CHECKING:
    from cloud.audit.subject import Subject

__all__ = ["Cell", "Clock", "Curves", "Part", "Picture", "Section", "Table"]

Cell: TypeAlias = str | int | float | None
"""None: there is no such value. Numbers stand to the right."""

_NAME = re.compile(r"[a-z0-9][a-z0-9_.]*")


@dataclass(frozen=True)
class Table:
    """Rows of cells, each as long as `columns`. shares: columns whose numbers, 0 to 1, are shown as percent. folded:
    shown only when a reader opens it."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    shares: tuple[str, ...] = ()
    folded: bool = False

    def __post_init__(self) -> None:
        """Raises AuditError for rows of another length, and for shares that are no columns."""
        if any(len(row) != len(self.columns) for row in self.rows) or not {*self.shares} <= {*self.columns}:
            raise AuditError(f"table {self.title!r}: expected rows of {len(self.columns)} cells, shares among columns")


@dataclass(frozen=True)
class Curves:
    """Lines over the same increasing `x`, by name; None is a gap."""

    title: str
    x: tuple[float, ...]
    series: Mapping[str, Sequence[float | None]]
    across: str = ""
    """What x is."""
    share: bool = False
    """Whether values are shares, shown as percent."""


@dataclass(frozen=True)
class Picture:
    """Pixels (height, width) grey or (height, width, 3) RGB, uint8, with what is said below them."""

    caption: str
    pixels: Array

    def __post_init__(self) -> None:
        """Raises AuditError for another dtype or shape."""
        shape = self.pixels.shape
        fits = len(shape) == 2 or (len(shape) == 3 and shape[2] == 3)
        if self.pixels.dtype != np.uint8 or not fits or not self.pixels.size:
            raise AuditError(
                f"picture {self.caption!r}: expected uint8 of shape (height, width) or (height, width, 3), got "
                f"{self.pixels.dtype} of {shape}"
            )


@dataclass(frozen=True)
class Section:
    """What one part of an audit found. `name` and the names of figures have letters a to z, digits, _ and dots."""

    name: str
    title: str
    figures: Mapping[str, float] = field(default_factory=dict)
    """Finite numbers; what could not be measured is left out, and said in `undone`."""
    tables: tuple[Table, ...] = ()
    curves: tuple[Curves, ...] = ()
    pictures: tuple[Picture, ...] = ()
    notes: tuple[str, ...] = ()
    """What a reader should know: findings and settings, a sentence each."""
    undone: tuple[str, ...] = ()
    """What was not measured, and why."""
    shares: tuple[str, ...] = ()
    """Figures that are shown as percent."""
    warnings: tuple[str, ...] = ()
    """Findings that a reader must not miss."""
    shown: tuple[str, ...] = ()
    """Figures that the page shows large; by default the first six."""

    def __post_init__(self) -> None:
        """Raises AuditError for a name that a limit could not hold, and for a figure that is not finite."""
        for name in (self.name, *self.figures):
            if not _NAME.fullmatch(name):
                raise AuditError(f"section {self.name!r}: expected names of a-z, 0-9, _ and dots, got {name!r}")
        for name, value in self.figures.items():
            if not math.isfinite(value):
                raise AuditError(f"{self.name}.{name}: expected a finite number, got {value}; leave it out")

    def as_data(self) -> dict[str, Any]:
        """As JSON holds it: everything but the pictures' pixels."""
        return {
            "name": self.name, "title": self.title, "figures": dict(self.figures),
            "tables": [{"title": t.title, "columns": list(t.columns), "rows": [list(row) for row in t.rows]}
                       for t in self.tables],
            "curves": [{"title": c.title, "x": list(c.x), "series": {k: list(v) for k, v in c.series.items()}}
                       for c in self.curves],
            "pictures": [picture.caption for picture in self.pictures],
            "notes": list(self.notes), "warnings": list(self.warnings), "undone": list(self.undone),
        }  # fmt: skip


class Clock:
    """Time that a part may take, in seconds; parts look at it between units of work, and leave the rest undone."""

    def __init__(self, seconds: float = math.inf, now: Callable[[], float] = time.monotonic) -> None:
        self._now, self._begun, self.seconds = now, now(), seconds

    @property
    def used(self) -> float:
        """Seconds since it began."""
        return self._now() - self._begun

    @property
    def left(self) -> float:
        """Seconds that are left, not below 0."""
        return max(0.0, self.seconds - self.used)

    @property
    def over(self) -> bool:
        """Whether the time is used up."""
        return self.used >= self.seconds

    def part(self, share: float) -> Clock:
        """A clock with this share of the time that is left."""
        return Clock(self.left * share, self._now)


@dataclass(frozen=True)
class Part:
    """One section's maker.

    figures: what it measures of this subject, name -> meaning in a few words; limits are checked against these names
    before anything is measured. measure: makes the section of the same name. share: of the time, relative to the other
    parts. lacking: why it cannot be made of this subject; "" if it can.
    """

    name: str
    title: str
    figures: Callable[[Subject], Mapping[str, str]]
    measure: Callable[[Subject, Clock], Section]
    share: float = 1.0
    lacking: Callable[[Subject], str] = lambda _: ""
