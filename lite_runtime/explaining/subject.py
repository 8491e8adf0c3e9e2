"""What is explained: a model as a function from one input to scores, with gradients where there are any, and the rows
that may be asked of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Self, TypeAlias

import numpy as np

from lite_runtime.errors import ExplainError, ExplainTimeError
from lite_runtime.graph import Array

__all__ = ["Embedding", "Limits", "Scores", "Slopes", "Subject"]

Scores: TypeAlias = Callable[[Array], Array]
"""Inputs (rows, *shape) to scores (rows, outputs)."""
Slopes: TypeAlias = Callable[[Array, int], Array]
"""Inputs (rows, *shape) and an output to the gradient of that output's score in each row, (rows, *shape)."""

_ELEMENTS, _MOST_ROWS = 1 << 22, 128
"""The most elements of the inputs of one call of the model, and the most rows."""


@dataclass(frozen=True)
class Limits:
    """What explanations may cost; None: no limit. A row with its gradient counts once."""

    rows: int | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        if self.rows is not None and self.rows < 1:
            raise ExplainError(f"rows: expected a limit of 1 row or more, got {self.rows}")
        if self.seconds is not None and not self.seconds > 0:
            raise ExplainError(f"seconds: expected a limit above 0, got {self.seconds}")


@dataclass(frozen=True)
class Embedding:
    """The vectors of a model's token ids, by which it can be differentiated.

    vectors: ids (rows, *shape) to float32 (rows, *shape, width). around: for the ids (*shape) of one sample, the model
    as a function of their vectors; all else in it that reads the ids, such as a mask of padding, reads these. tokens:
    how many there are.
    """

    vectors: Callable[[Array], Array]
    around: Callable[[Array], Subject]
    tokens: int
    has_steps: bool = False


class Subject:
    """A model to explain. `asked`: its rows so far; the limits count from when the subject was made."""

    has_steps = False
    """Whether methods that look inside the model work."""

    def __init__(
        self, name: str, shape: tuple[int, ...], outputs: int, scores: Scores, gradient: Slopes | None = None, *,
        dtype: Any = np.float32, meaning: str = "score", limits: Limits | None = None,
        embedding: Embedding | None = None,
    ) -> None:  # fmt: skip
        self.name, self.shape, self.outputs, self.meaning = name, shape, outputs, meaning
        self.dtype = np.dtype(dtype)
        self._scores, self._gradient, self.embedding = scores, gradient, embedding
        self.limits, self.asked, self._begun = limits or Limits(), 0, perf_counter()

    def within(self, limits: Limits) -> Self:
        """The same model with nothing asked yet, and these limits from now on."""
        made = copy(self)
        made.limits, made.asked, made._begun = limits, 0, perf_counter()
        return made

    @property
    def left(self) -> Limits:
        """What the limits leave; at least one row and a moment."""
        rows, seconds = self.limits.rows, self.limits.seconds
        return Limits(
            None if rows is None else max(1, rows - self.asked),
            None if seconds is None else max(1e-9, seconds - (perf_counter() - self._begun)),
        )

    @property
    def has_gradient(self) -> bool:
        """Whether methods by gradients work."""
        return self._gradient is not None

    def checked(self, x: Any) -> Array:
        """One sample (*shape) in the model's type; a leading batch axis of 1 is dropped. Raises ExplainError for
        another shape or type and for values that are not finite."""
        x = np.asarray(x)
        if x.shape == (1, *self.shape):
            x = x[0]
        if x.shape != self.shape:
            raise ExplainError(f"{self.name}: expected a sample of shape {list(self.shape)}, got {list(x.shape)}")
        if not (x.dtype.kind in "iub" or (x.dtype.kind == "f" and self.dtype.kind == "f")):
            raise ExplainError(f"{self.name}: expected a sample of {self.dtype}, got {x.dtype}")
        if not np.isfinite(x).all():
            raise ExplainError(f"{self.name}: expected finite values, got NaN or infinity in the sample")
        return np.asarray(x, self.dtype)

    @property
    def rows_at_once(self) -> int:
        """Rows of one call of the model; who makes more of them at once only needs more memory."""
        return max(1, min(_MOST_ROWS, _ELEMENTS // max(1, int(np.prod(self.shape)))))

    def target(self, target: int) -> int:
        """The output, checked. Raises ExplainError if the model does not have it."""
        if not 0 <= target < self.outputs:
            raise ExplainError(
                f"{self.name}: expected an output from 0 to {self.outputs - 1}, got {target}: the model has "
                f"{self.outputs}"
            )
        return target

    def needs(self, rows: int, what: str, fix: str) -> None:
        """Raise ExplainError, before anything is computed, if `what` needs more rows than the limit leaves."""
        left = None if self.limits.rows is None else self.limits.rows - self.asked
        if left is not None and rows > left:
            raise ExplainError(f"{what} needs {rows} rows of the model, and the limit leaves {max(0, left)}; {fix}")

    def scores(self, x: Array) -> Array:
        """Scores (rows, outputs) float64 of inputs (rows, *shape)."""
        parts = [self._answer(self._scores(part), (len(part), self.outputs)) for part in self._parts(x)]
        return np.concatenate(parts) if parts else np.zeros((0, self.outputs))

    def gradient(self, x: Array, target: int) -> Array:
        """Gradients (rows, *shape) float64 of an output's score. Raises ExplainError if the model has none."""
        if self._gradient is None:
            raise ExplainError(f"{self.name}: there is no gradient of a model that only predicts")
        return np.concatenate([self._answer(self._gradient(part, target), part.shape) for part in self._parts(x)])

    def _parts(self, x: Array) -> Iterator[Array]:
        for start in range(0, len(x), self.rows_at_once):
            part = x[start : start + self.rows_at_once].astype(self.dtype)
            self._take(len(part))
            yield part

    def _take(self, rows: int) -> None:
        self.needs(rows, "the next step", "allow more rows, or choose a method or settings that need fewer")
        spent = perf_counter() - self._begun
        if self.limits.seconds is not None and spent > self.limits.seconds:
            raise ExplainTimeError(
                f"{self.name}: not finished after {spent:.3g} s and {self.asked} rows, and the limit is "
                f"{self.limits.seconds:g} s; allow more, or choose a method or settings that need fewer rows"
            )
        self.asked += rows

    def _answer(self, found: Any, shape: tuple[int, ...]) -> Array:
        answer: Array = np.asarray(found, np.float64)
        if answer.shape != shape:
            raise ExplainError(f"{self.name}: expected an answer of shape {list(shape)}, got {list(answer.shape)}")
        if not np.isfinite(answer).all():
            raise ExplainError(f"{self.name}: its answer to a changed sample is not finite, so it cannot be compared")
        return answer
