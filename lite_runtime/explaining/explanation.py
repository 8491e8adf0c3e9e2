"""What a method returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from time import perf_counter
from types import TracebackType
from typing import Any

from lite_runtime.explaining.subject import Subject
from lite_runtime.graph import Array

__all__ = ["Explanation", "Making"]


@dataclass(frozen=True)
class Explanation:
    """How much each element of one sample contributed to the score of one output, as one method says."""

    method: str
    attributions: Array
    """(*shape) float64, as the sample; positive: it raised the score."""
    target: int
    score: float
    """Of the sample."""
    rows: int
    """Rows that were asked of the model."""
    seconds: float
    settings: Mapping[str, Any] = field(default_factory=dict)
    base: float | None = None
    """The mean score of the baselines, of methods that share out the difference from it."""

    @property
    def gap(self) -> float | None:
        """The completeness error: the sum of the attributions minus the difference that they share out; None of a
        method that shares out nothing."""
        return None if self.base is None else float(self.attributions.sum() - (self.score - self.base))


class Making:
    """Counts what an explanation costs, from `with` on."""

    def __init__(self, subject: Subject, method: str, target: int) -> None:
        self._subject, self._method, self._target = subject, method, subject.target(target)

    def __enter__(self) -> Making:
        self._asked, self._begun = self._subject.asked, perf_counter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def done(self, attributions: Array, score: float, base: float | None = None, **settings: Any) -> Explanation:
        """The explanation with its cost so far."""
        rows, seconds = self._subject.asked - self._asked, perf_counter() - self._begun
        return Explanation(
            self._method, attributions, self._target, float(score), rows, seconds, settings,
            None if base is None else float(base),
        )  # fmt: skip
