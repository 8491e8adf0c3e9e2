"""A growing model: what is asked to grow the next trees."""

from __future__ import annotations

from math import floor, log2
from typing import Any

import numpy as np

from federated.analytics.panel import Panel
from federated.server.rounds import seed_of
from federated.tree import Array
from federated.trees.config import TreesRun
from federated.trees.ensemble import Tree, to_arrays
from federated.trees.grow import grow
from federated.trees.objectives import OBJECTIVES
from federated.trees.questions import Gradients, Grids, Spans, span_edges

__all__ = ["Booster"]

GRID = 1024
"""Bins of a column from which its quantiles are computed."""


class Booster:
    """The trees so far, and what is asked to grow the next ones."""

    def __init__(self, config: TreesRun, panel: Panel) -> None:
        self.words, self.panel, self.seed = config.trees, panel, config.rounds.seed
        self.trees: list[Tree] = []
        self.history: list[dict[str, Any]] = []
        self.most, self.bits, self.edges = self.words.most, 0, np.zeros((0, 0), np.float32)

    def begin(self) -> None:
        """Ask where the columns lie, and settle how finely gradients are rounded."""
        panel = self.panel
        panel.meet()
        largest = max(member.examples for member in panel.members.values())
        self.most = self.words.most or largest
        if self.words.bits is None:
            # Room for as many devices again, which may join later, and for a device's own noise.
            question = Gradients(**self.fields, columns=self.words.features)
            local = panel.privacy.noise == "local"
            room = question.largest + (12 * panel.multiplier * question.bound if local else 0.0)
            self.bits = min(30, floor(30 - log2(2 * len(panel.members) * room)))
        else:
            self.bits = self.words.bits
        self.edges = self._edges(*self._ranges())

    @property
    def rows(self) -> dict[str, Any]:
        """The fields that all questions have."""
        words = self.words
        return {"input": words.input, "width": words.features, "most": self.most, "limited": words.most > 0}

    @property
    def fields(self) -> dict[str, Any]:
        """The fields that all questions for gradients have."""
        words = self.words
        base = OBJECTIVES[words.objective].to_score(words.base)
        fields = {"objective": words.objective, "classes": words.classes, "base": base, "bins": words.max_bin}
        labels = {} if words.label_low is None else {"label_low": words.label_low, "label_high": words.label_high}
        return {**self.rows, **fields, **labels}

    def round(self, number: int) -> list[Tree]:
        """Grow and keep the trees of a round."""
        words = self.words
        rng = np.random.default_rng(seed_of(self.seed, "columns", number))
        count = max(1, round(words.colsample_bytree * words.features))
        columns = np.sort(rng.choice(words.features, count, replace=False)).astype(np.int32)
        grown = {f"grown.{name}": value for name, value in to_arrays(self.trees).items()}

        def ask(trees: list[Tree], nodes: list[tuple[int, int]]) -> Array:
            question = Gradients(**self.fields, bits=self.bits, columns=count, nodes=tuple(nodes))
            growing = {f"growing.{name}": value for name, value in to_arrays(trees).items()}
            arrays = {"edges": self.edges, "columns": columns, **grown, **growing}
            total = self.panel.ask(question, arrays, step=2.0**-self.bits)
            return total.values.reshape(len(nodes), count, words.max_bin + 1, 2)

        made = grow(max(1, words.classes), self.edges, columns, words.growth, ask)
        self.trees += made
        return made

    def _ranges(self) -> tuple[Array, Array]:
        """The range of each column: float64 [features] each."""
        words = self.words
        if words.low:
            full = (np.broadcast_to(np.array(side, np.float64), words.features) for side in (words.low, words.high))
            low, high = full
            return low.copy(), high.copy()
        total = self.panel.ask(Spans(**self.rows))
        counts = total.values.reshape(words.features, -1)
        there = counts > max(0.5, 4 * total.deviation)
        there |= ~there.any(axis=1, keepdims=True)  # a column without values, or all hidden by noise
        first, last = there.argmax(axis=1), there.shape[1] - 1 - there[:, ::-1].argmax(axis=1)
        limit = float(np.finfo(np.float32).max)
        return span_edges(first)[0].clip(-limit, limit), span_edges(last)[1].clip(-limit, limit)

    def _edges(self, low: Array, high: Array) -> Array:
        """float32 [features, bins - 1], ascending."""
        words = self.words
        inner = np.arange(1, words.max_bin) / words.max_bin
        if words.edges == "uniform":
            return (low[:, None] + (high - low)[:, None] * inner).astype(np.float32)
        total = self.panel.ask(Grids(**self.rows, bins=GRID), {"low": low, "high": high})
        counts = total.values.reshape(words.features, GRID).clip(0)
        below = np.cumsum(counts, axis=1)
        made = np.empty((words.features, words.max_bin - 1), np.float32)
        for one in range(words.features):
            at = np.searchsorted(below[one], inner * below[one, -1]) + 1
            made[one] = low[one] + (high[one] - low[one]) * at.clip(1, GRID - 1) / GRID
        return made
