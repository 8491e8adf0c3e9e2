"""What devices are asked for while trees grow: where features lie, and histograms of gradients at nodes.

Examples count one by one, at most `most` of a device, the same ones in every question of a run.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import sqrt
from typing import Annotated, ClassVar, Literal

import numpy as np
from msgspec import Meta

from federated.analytics.base import MOST_EXAMPLES, READ, Question
from federated.errors import FederatedError
from federated.learner import Batch
from federated.tables import Number
from federated.tree import Array
from federated.trees.ensemble import from_arrays, reach, scores
from federated.trees.grow import histograms
from federated.trees.objectives import OBJECTIVES

__all__ = ["Gradients", "Grids", "Rows", "Spans", "span_edges"]

EXPONENTS = 256
"""The exponents of float32, for each sign."""


class Rows(Question, frozen=True):
    """A question about all columns of the array `input` [n, ...], flattened to `width` columns."""

    input: str = "x"
    width: Annotated[int, Meta(ge=1, le=1 << 16)] = 1
    most: Annotated[int, Meta(ge=1, le=MOST_EXAMPLES)] = MOST_EXAMPLES
    limited: bool = False
    """Whether `most` is a limit that the run set, not only the largest number of examples of a device."""

    @property
    def features(self) -> tuple[str, ...]:
        """The input."""
        return (self.input,)

    def table(self, data: Batch, rng: np.random.Generator) -> tuple[Array, Array]:
        """The examples that count (float32 [n, width]), and their labels [n]. Infinities are missing values."""
        if self.input not in data.inputs:
            raise FederatedError(f"trees.input: expected one of {', '.join(sorted(data.inputs))}, got {self.input!r}")
        found = np.asarray(data.inputs[self.input])
        if found.dtype.kind not in "fiub":
            raise FederatedError(f"trees.input: expected numbers in {self.input!r}, got {found.dtype}")
        with np.errstate(over="ignore"):
            x = found.reshape(len(found), -1).astype(np.float32)
        if x.shape[1] != self.width:
            raise FederatedError(f"trees.features: expected {x.shape[1]} columns of {self.input!r}, got {self.width}")
        labels = np.asarray(data.labels)
        if len(x) > self.most:
            kept = np.sort(rng.choice(len(x), self.most, replace=False))
            x, labels = x[kept], labels[kept]
        return np.where(np.isfinite(x), x, np.float32(np.nan)), labels


class Spans(Rows, frozen=True):
    """How many examples have each sign and exponent, for each column: [width, 2 * EXPONENTS], in ascending order."""

    @property
    def size(self) -> int:
        """All."""
        return self.width * 2 * EXPONENTS

    @property
    def bound(self) -> float:
        """An example counts once in every column."""
        return self.most * sqrt(self.width) if self.limited else float("inf")

    @property
    def largest(self) -> float:
        """All examples in one place."""
        return float(self.most)

    def of(self, data: Batch, arrays: Mapping[str, Array], rng: np.random.Generator) -> Array:
        """The counts."""
        x, _ = self.table(data, rng)
        bits = x.view(np.uint32)
        exponent = (bits.astype(np.int64) >> 23) & 0xFF
        place = np.where(np.signbit(x), EXPONENTS - 1 - exponent, EXPONENTS + exponent)
        return _counted(place, ~np.isnan(x), 2 * EXPONENTS)


def span_edges(place: Array) -> tuple[Array, Array]:
    """The numbers (float64) between which the values in a place of `Spans` lie."""
    exponent: Array = np.where(place < EXPONENTS, EXPONENTS - 1 - place, place - EXPONENTS).astype(np.float64)
    low = np.where(exponent > 0, 2.0 ** (exponent - 127), 0.0)
    high = 2.0 ** (np.maximum(exponent, 1) - 126)
    return np.where(place < EXPONENTS, -high, low), np.where(place < EXPONENTS, -low, high)


class Grids(Rows, frozen=True):
    """How many examples lie in each of `bins` equal bins of [low, high] (arrays float64 [width]), for each column;
    values outside count at the nearest end."""

    bins: Annotated[int, Meta(ge=2, le=1 << 14)] = 1024

    @property
    def size(self) -> int:
        """All bins."""
        return self.width * self.bins

    @property
    def bound(self) -> float:
        """An example counts once in every column."""
        return self.most * sqrt(self.width) if self.limited else float("inf")

    @property
    def largest(self) -> float:
        """All examples in one bin."""
        return float(self.most)

    def of(self, data: Batch, arrays: Mapping[str, Array], rng: np.random.Generator) -> Array:
        """[width, bins], flat."""
        x, _ = self.table(data, rng)
        low, high = _array(arrays, "low", (self.width,)), _array(arrays, "high", (self.width,))
        if not (low < high).all():
            raise FederatedError("trees: expected ranges with low below high")
        known = ~np.isnan(x)
        values = np.asarray(np.where(known, x, low), np.float64).clip(low, high)
        at = np.floor((values - low) / (high - low) * self.bins).astype(np.int64).clip(0, self.bins - 1)
        return _counted(at, known, self.bins)


class Gradients(Rows, frozen=True):
    """Histograms of gradients and second derivatives at `nodes`, pairs of a growing tree and its leaf.

    Arrays: `edges` float32 [width, bins - 1], ascending; `columns` int32, the columns that are asked for; `grown`, the
    finished trees, and `growing`, those of this round (`ensemble.to_arrays`), each with a prefix and a dot. The answer
    is [nodes, columns, bins + 1, 2]: a value is in the bin whose number is that of the edges up to it; the last bin
    holds missing values. Each number is a sum of multiples of 2^-bits: sums do not depend on how examples are divided
    among devices.
    """

    signed: ClassVar[bool] = True
    objective: Literal["binary:logistic", "reg:squarederror", "multi:softprob"] = "binary:logistic"
    classes: Annotated[int, Meta(ge=0, le=1000)] = 0
    base: Number = 0.0
    """The score before the first tree."""
    label_low: Number = 0.0
    label_high: Number = 1.0
    """The range of a regression's labels; gradients are cut to its width."""
    bits: Annotated[int, Meta(ge=-40, le=40)] = 16
    bins: Annotated[int, Meta(ge=2, le=1 << 12)] = 64
    columns: Annotated[int, Meta(ge=1)] = 1
    nodes: tuple[tuple[int, int], ...] = ((0, 0),)

    def __post_init__(self) -> None:
        super().__post_init__()
        READ.need(self.label_low < self.label_high, "trees.label_high", "a number above label_low", self.label_high)
        READ.need((self.classes > 1) == (self.objective == "multi:softprob"), "trees.classes",
                  "2 or more with multi:softprob, none otherwise", self.classes)  # fmt: skip
        READ.need(0 < len(self.nodes) <= 1 << 16, "trees.nodes", "at least one", len(self.nodes))

    @property
    def features(self) -> tuple[str, ...]:
        """The input and the labels."""
        return (self.input, "labels")

    @property
    def targets(self) -> int:
        """Trees per round."""
        return max(1, self.classes)

    @property
    def slope(self) -> float:
        """The largest magnitude of an example's gradient."""
        fixed = OBJECTIVES[self.objective].slope
        return self.label_high - self.label_low if fixed is None else fixed

    @property
    def size(self) -> int:
        """Two numbers per node, column and bin."""
        return len(self.nodes) * self.columns * (self.bins + 1) * 2

    @property
    def bound(self) -> float:
        """An example is in one node of each tree, and in one bin of each column."""
        if not self.limited:
            return float("inf")
        each = (self.slope + 2.0**-self.bits) ** 2 + (OBJECTIVES[self.objective].curvature + 2.0**-self.bits) ** 2
        return self.most * sqrt(self.targets * self.columns * each)

    @property
    def largest(self) -> float:
        """All examples in one bin."""
        return self.most * (max(self.slope, OBJECTIVES[self.objective].curvature) + 2.0**-self.bits)

    def of(self, data: Batch, arrays: Mapping[str, Array], rng: np.random.Generator) -> Array:
        """The histograms, flat."""
        x, labels = self.table(data, rng)
        slopes, curves = self._derivatives(x, labels, arrays)
        edges = _array(arrays, "edges", (self.width, self.bins - 1), np.float32)
        columns = _array(arrays, "columns", (self.columns,), np.int32)
        if columns.min() < 0 or columns.max() >= self.width or (np.diff(edges, axis=1) < 0).any():
            raise FederatedError("trees: expected ascending edges, and columns of the input")
        growing = from_arrays(_under(arrays, "growing."), self.width, self.targets)
        leaves = reach(growing, x)
        bins = np.stack([np.searchsorted(edges[one], x[:, one], "right") for one in columns], axis=1)
        bins[np.isnan(x[:, columns])] = self.bins
        for tree, _ in self.nodes:
            if not 0 <= tree < len(growing["target"]):
                raise FederatedError(f"trees: expected a node of {len(growing['target'])} trees, got of tree {tree}")
        place = bins + np.arange(self.columns) * (self.bins + 1)
        made = histograms(place, self.bins + 1, leaves, self.nodes, growing["target"], slopes, curves)
        return made.reshape(-1) * 2.0**-self.bits

    def _derivatives(self, x: Array, labels: Array, arrays: Mapping[str, Array]) -> tuple[Array, Array]:
        """Gradients and second derivatives as whole multiples of 2^-bits: float64 [n, targets]."""
        objective = OBJECTIVES[self.objective]
        if objective.classifies:
            labels = objective.classes_of(labels, max(2, self.classes))
        else:
            labels = labels.reshape(len(labels), -1)[:, 0].astype(np.float64).clip(self.label_low, self.label_high)
        grown = from_arrays(_under(arrays, "grown."), self.width, self.targets)
        slopes, curves = objective.of(scores(grown, x, self.base, self.targets), labels)
        scale = 2.0**self.bits
        return np.rint(slopes.clip(-self.slope, self.slope) * scale), np.rint(curves * scale)


def _counted(place: Array, known: Array, bins: int) -> Array:
    """How often each place occurs in each column where `known`: float64 [columns * bins]."""
    flat = place + np.arange(place.shape[1]) * bins
    return np.bincount(flat[known], minlength=place.shape[1] * bins).astype(np.float64)


def _under(arrays: Mapping[str, Array], prefix: str) -> dict[str, Array]:
    return {name.removeprefix(prefix): value for name, value in arrays.items() if name.startswith(prefix)}


def _array(arrays: Mapping[str, Array], name: str, shape: tuple[int, ...], kind: type = np.float64) -> Array:
    found = arrays.get(name)
    if found is None or found.shape != shape or found.dtype != kind or not np.isfinite(found).all():
        raise FederatedError(f"trees: expected {name} of {np.dtype(kind).name} {list(shape)}, finite")
    return found
