"""How far our results are from LiteRT's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

import lite_runtime
from converter import convert
from tests.converter.frontends.tflite.builder import litert
from tests.converter.frontends.tflite.integers.drafts import Case, Drawn, drawn

__all__ = ["Apart", "Compared", "apart", "compared"]

RUNS = 2
"""Of a model with a state."""


class Apart(NamedTuple):
    """Elements, how many of them differ, and the largest difference: in steps, of real numbers as a share of the
    largest one."""

    count: int = 0
    differing: int = 0
    most: float = 0.0

    def __add__(self, other: object) -> Apart:
        assert isinstance(other, Apart)
        total = self.count + other.count, self.differing + other.differing
        return Apart(*total, max(self.most, other.most))


class Compared(NamedTuple):
    """With LiteRT's default, which has XNNPACK, and with its own kernels alone, which may refuse the model; which
    operators of ours have no native kernel, and whether results are real."""

    default: Apart
    own: Apart | None
    by_reference: tuple[str, ...]
    real: bool


def apart(ours: Sequence[np.ndarray], theirs: Sequence[np.ndarray]) -> Apart:
    """Over all results, which must have the same shapes and types."""
    total = Apart()
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.shape == other.shape and mine.dtype == other.dtype, (mine.shape, other.shape, mine.dtype)
        if other.size:
            wrong = np.abs(mine.astype(np.float64) - other.astype(np.float64))
            span = max(float(np.abs(other).max()), 1e-30) if other.dtype.kind == "f" else 1.0
            total += Apart(other.size, int(np.count_nonzero(wrong)), float(wrong.max()) / span)
    return total


def compared(one: Case, seed: int) -> Compared:
    """The case's model number `seed`. Raises Refused."""
    given = drawn(one, seed, RUNS)
    made = convert(given.model)
    ours = _run(lite_runtime.load(made.bundle, threads=1), given)
    try:
        own = apart(ours, litert(given.model, given.inputs, runs=RUNS))
    except (RuntimeError, ValueError):
        own = None
    real = any(y.dtype == np.float32 for y in given.results)
    return Compared(apart(ours, given.results), own, made.report.reference_ops, real)


def _run(model: lite_runtime.Model, given: Drawn) -> list[np.ndarray]:
    entries = dict(zip([v.name for v in model.inputs("predict")], given.inputs, strict=True))
    for _ in range(RUNS - 1):
        model.run(entries)
    return list(model.run(entries).values())
