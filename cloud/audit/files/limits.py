"""Limits that a model must keep before it ships: `section.figure` at least or at most a number.

[limits]
"accuracy.accuracy" = {least = 0.9}
"corruptions.gaussian_noise" = {least = 0.7, most = 1}
"""

from __future__ import annotations

import difflib
import math
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from cloud.errors import AuditError
from federated.tables import Number, Reader, Table

__all__ = ["Limit", "Verdict", "judged", "parsed_limit", "read_limits", "refuse_unknown"]

_READER = Reader(AuditError, 'write [limits] with lines such as "accuracy.accuracy" = {least = 0.9}')
_LIMIT = re.compile(r"\s*([a-z0-9_.]+)\s*(>=|<=)\s*(\S+)\s*")
_SHOWN = 4


class _Bounds(Table, frozen=True):
    """At least one of both."""

    reader: ClassVar[Reader] = _READER
    least: Number | None = None
    most: Number | None = None


class _File(Table, frozen=True):
    """A file of limits."""

    reader: ClassVar[Reader] = _READER
    limits: dict[str, _Bounds]


@dataclass(frozen=True)
class Limit:
    """`figure`, as section.figure, is at least `least` and at most `most`."""

    figure: str
    least: float = -math.inf
    most: float = math.inf

    @property
    def text(self) -> str:
        """Such as "at least 0.9"."""
        words = (("at least", self.least), ("at most", self.most))
        return " and ".join(f"{word} {value:g}" for word, value in words if math.isfinite(value))


@dataclass(frozen=True)
class Verdict:
    """A limit and what was measured; None if it was not, which breaks the limit too."""

    limit: Limit
    value: float | None

    @property
    def held(self) -> bool:
        """Whether the limit is kept."""
        return self.value is not None and self.limit.least <= self.value <= self.limit.most

    def as_data(self) -> dict[str, Any]:
        """As JSON holds it."""
        ends = {"least": self.limit.least, "most": self.limit.most}
        return {
            "figure": self.limit.figure, **{key: v if math.isfinite(v) else None for key, v in ends.items()},
            "value": self.value, "held": self.held,
        }  # fmt: skip


def read_limits(path: str | os.PathLike[str]) -> list[Limit]:
    """The limits in a TOML file. Raises AuditError, which names the key, for anything else."""
    name = os.fspath(path)
    found = _READER.read(_File, _READER.file(path), f"{name}: ")
    limits = []
    for figure, bounds in found.limits.items():
        if bounds.least is None and bounds.most is None:
            raise AuditError(f'{name}: limits."{figure}": expected least or most, got neither; write {{least = 0.9}}')
        limits.append(_limit(f"{name}, {figure}", figure, bounds.least, bounds.most))
    return limits


def parsed_limit(text: str) -> Limit:
    """A limit such as `accuracy.accuracy>=0.9`. Raises AuditError."""
    found = _LIMIT.fullmatch(text)
    try:
        value = float(found[3]) if found else math.nan
    except ValueError:
        value = math.nan
    if found is None or not math.isfinite(value):
        raise AuditError(f"--limit: expected SECTION.FIGURE>=NUMBER or <=NUMBER, got {text!r}")
    return _limit("--limit", found[1], value if found[2] == ">=" else None, value if found[2] == "<=" else None)


def _limit(where: str, figure: str, least: float | None, most: float | None) -> Limit:
    if least is not None and most is not None and least > most:
        raise AuditError(f"{where}: expected least to be at most most, got {least:g} and {most:g}")
    return Limit(figure, -math.inf if least is None else least, math.inf if most is None else most)


def refuse_unknown(limits: Iterable[Limit], known: Mapping[str, str], lacking: Mapping[str, str]) -> None:
    """Raise AuditError for a limit whose figure is not measured, with the nearest names that are.

    known: figure -> meaning. lacking: section -> why it cannot be made of this model and data.
    """
    for limit in limits:
        section = limit.figure.partition(".")[0]
        if section in lacking:
            raise AuditError(f"limit {limit.figure!r}: section {section!r} cannot be made: {lacking[section]}")
        if limit.figure not in known:
            near = difflib.get_close_matches(limit.figure, known, _SHOWN, 0.5)
            own = [name for name in known if name.startswith(f"{section}.")][: 3 * _SHOWN]
            offered = ", ".join(near or own or sorted({name.partition(".")[0] for name in known}))
            raise AuditError(f"limit {limit.figure!r}: no such figure; near are {offered}")


def judged(limits: Iterable[Limit], figures: Mapping[str, float]) -> list[Verdict]:
    """Each limit beside its figure; figures by section.figure."""
    return [Verdict(limit, figures.get(limit.figure)) for limit in limits]
