"""Boosted trees for tables, and for series by statistics of their channels: what networks are to beat.

On tables of a few thousand examples trees are often better than networks (Grinsztajn et al., "Why do tree-based models
still outperform deep learning on typical tabular data?", NeurIPS 2022), and they compute in floats a few comparisons a
tree. They grow as the federation's do (`federated.trees`), from histograms of gradients; how many rounds are used is
chosen by the validation part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import onnx_ir as ir
from onnx import compose

import converter
from cloud.search.data import Data
from cloud.search.finish import answers
from cloud.search.goal import Classes, Values
from cloud.zoo.build import BATCH, Builder, dims
from converter.frontends.trees import forest
from federated.trees.ensemble import Tree, reach, to_arrays
from federated.trees.grow import Growth, grow, histograms
from federated.trees.objectives import OBJECTIVES
from lite_runtime.graph import Array
from lite_runtime.ops.trees import MODES

__all__ = ["trees"]

DEPTHS = (1, 2, 3, 4, 6)
_ROUNDS, _PATIENCE, _RATE, _BINS = 300, 30, 0.1, 64
"""Rounds at most, rounds without a better validation figure after which growing ends, how much of a leaf counts, and
bins of a column."""


def trees(data: Data, fits: Callable[[ir.Model], bool], until: Callable[[], bool]) -> Iterator[tuple[str, ir.Model]]:
    """For each depth a name and a model of the data's own inputs and output, of as many rounds as are best on the
    validation part among those that `fits` accepts; of one round, if it accepts none. `until`: asked before each depth
    but the first whether to end."""
    features = None if data.columns is not None else _statistics(data)
    parts = [x if features is None else answers(converter.convert(features.clone()).bundle, x)
             for x, _ in (data.train, data.validation)]  # fmt: skip
    for number, depth in enumerate(DEPTHS):
        if number and until():
            return
        booster = _Booster(data, parts[0], parts[1], depth)
        most = booster.grow()
        while True:
            rounds = 1 + int(np.argmax(booster.figures[:most]))
            model = booster.model(rounds) if features is None else _joined(features, booster.model(rounds))
            if most == 1 or fits(model):
                break
            most = max(1, min(rounds, most) // 2)
        yield f"boosted trees of depth {depth}, {rounds} round{'s' * (rounds > 1)}", model


@dataclass
class _Booster:
    """Trees of one depth for rows x (n, columns) float32. Numbers are learned in spreads from their mean."""

    data: Data
    x: Array
    held: Array
    depth: int
    rounds: list[list[Tree]] = field(default_factory=list)
    figures: list[float] = field(default_factory=list)
    """Of the validation part, by rounds."""

    def __post_init__(self) -> None:
        goal, outputs = self.data.goal, self.data.outputs
        classes = "binary:logistic" if outputs == 2 else "multi:softprob"
        self.objective = OBJECTIVES["reg:squarederror" if isinstance(goal, Values) else classes]
        self.targets = 1 if outputs == 2 else outputs
        self.y, self.base, self.unit = self.data.train[1], 0.0, 1.0
        if isinstance(goal, Values):
            self.base, self.unit = goal.mean, goal.spread
            self.y = (self.y - self.base) / self.unit
        self.edges = np.stack([_edges(column) for column in self.x.T])
        bins = [np.searchsorted(edges, column, "right") for edges, column in zip(self.edges, self.x.T, strict=True)]
        self.place = np.stack(bins, axis=1) + np.arange(self.x.shape[1]) * (_BINS + 1)

    def grow(self) -> int:
        """Grow until the validation figure is not better for a while; how many rounds there are."""
        scores, held = (np.zeros((len(x), self.targets)) for x in (self.x, self.held))
        columns = np.arange(self.x.shape[1])
        while len(self.rounds) < _ROUNDS and len(self.rounds) - np.argmax([*self.figures, -np.inf]) <= _PATIENCE:
            ask = partial(self._histograms, *self.objective.of(scores, self.y))
            self.rounds.append(grow(self.targets, self.edges, columns, Growth(self.depth, _RATE), ask))
            for x, total in ((self.x, scores), (self.held, held)):
                made = to_arrays(self.rounds[-1])
                leaves = reach(made, x)
                total += np.take_along_axis(made["value"].T, leaves, axis=0)
            self.figures.append(self.data.goal.value(self._answers(held), self.data.validation))
        return len(self.rounds)

    def _histograms(self, slopes: Array, curves: Array, growing: list[Tree], nodes: list[tuple[int, int]]) -> Array:
        """Sums of gradients and second derivatives [nodes, columns, bins + 1, 2] at leaves (tree, leaf)."""
        arrays = to_arrays(growing)
        leaves = reach(arrays, self.x)
        return np.asarray(histograms(self.place, _BINS + 1, leaves, nodes, arrays["target"], slopes, curves))

    def _answers(self, scores: Array) -> Array:
        """The form of the network's output."""
        if not isinstance(self.data.goal, Classes):
            return np.asarray(scores[:, 0] * self.unit + self.base)
        return scores if self.targets > 1 else np.concatenate([np.zeros_like(scores), scores], axis=1)

    def model(self, rounds: int) -> ir.Model:
        """The first rounds: `x` [batch, columns] -> the goal's output."""
        goal, outputs = self.data.goal, self.data.outputs
        first = outputs - self.targets  # of two classes the second has trees
        made = [_tree(tree, first + tree.target, self.unit) for one in self.rounds[:rounds] for tree in one]
        base = np.full(outputs, self.base)
        model = forest.to_ir(forest.Forest(made, self.x.shape[1], outputs, base))
        model.graph.outputs[0].name = goal.output
        return model


def _edges(column: Array) -> Array:
    """Between the values of a column if they are few, else its quantiles: float32 [bins - 1], ascending."""
    values = np.unique(column).astype(np.float64)
    if len(values) > _BINS:
        return np.asarray(np.quantile(column, np.arange(1, _BINS) / _BINS), np.float32)
    between = (values[1:] + values[:-1]) / 2
    return np.concatenate([between, np.full(_BINS - 1 - len(between), values[-1])]).astype(np.float32)


def _tree(tree: Tree, target: int, unit: float) -> forest.Tree:
    """The converter's form: inner nodes and leaves are numbered apart, and "less than" an edge is "at most" the float32
    before it, which all nodes have in common with other libraries' trees."""
    feature = np.array(tree.feature)
    inner, ends = np.flatnonzero(feature >= 0), np.flatnonzero(feature < 0)
    link = np.zeros(len(feature), np.int64)
    link[inner], link[ends] = np.arange(len(inner)), ~np.arange(len(ends))
    left = np.array(tree.left)[inner].astype(np.int64)
    edges = np.nextafter(np.array(tree.threshold, np.float32)[inner], np.float32(-np.inf))
    return forest.Tree(
        feature[inner], np.full(len(inner), MODES.index("BRANCH_LEQ")), edges, link[left], link[left + 1],
        np.array(tree.missing_left, bool)[inner], np.array(tree.value)[ends] * unit, target=target,
    )  # fmt: skip


def _statistics(data: Data) -> ir.Model:
    """`x` [batch, channels, height, steps] -> `features`: mean, spread, least, most and roughness of each channel."""
    b = Builder("statistics")
    x = b.input("x", (BATCH, *data.shape))
    batch, channels, height, steps = dims(x)
    axes = b.constant("axes", [3])

    def over(op: str, value: ir.Value) -> ir.Value:
        return b.op(op, value, axes, shape=(batch, channels, height, 1), keepdims=1)

    def part(begin: int, end: int) -> ir.Value:
        ends = [b.constant(f"{name}{begin}", [at]) for name, at in (("begin", begin), ("end", end))]
        return b.op("Slice", x, *ends, axes, shape=(batch, channels, height, end - begin))

    assert isinstance(steps, int)
    mean = over("ReduceMean", x)
    away = b.op("Sub", x, mean)
    spread = b.op("Sqrt", over("ReduceMean", b.op("Mul", away, away)))
    rough = over("ReduceMean", b.op("Abs", b.op("Sub", part(1, steps), part(0, steps - 1))))
    found = b.concat(mean, spread, over("ReduceMin", x), over("ReduceMax", x), rough, axis=3)
    return b.model(features=b.flatten(found))


def _joined(features: ir.Model, last: ir.Model) -> ir.Model:
    """`last` of what `features` computes."""
    first = compose.add_prefix(ir.to_proto(features), "features.", rename_inputs=False)
    second = ir.to_proto(last)
    first.opset_import.clear()
    first.opset_import.extend(second.opset_import)
    first.ir_version = second.ir_version
    return ir.from_proto(compose.merge_models(first, second, [(first.graph.output[0].name, "x")]))
