"""The usual name of a plan's strategy, derived from what it splits and not from how it was found.

For every mesh axis: which loops of the heavy operators it splits (weighted by FLOPs), and how much of the state kept
between steps (weighted by bytes):

| the axis splits | name |
|---|---|
| examples; all state whole | data parallel |
| examples; state other than parameters, such as moments | ZeRO-1 |
| examples; parameters | FSDP (ZeRO-3) |
| loops of weights | tensor parallel |
| the same, and positions of the activations between | tensor and sequence parallel |
| the first loop of stacked weights, of which each example uses some | expert parallel |
| positions of a sequence | sequence parallel |
| positions of an image or volume, under windows that reach beyond them | spatial parallel |
| rows of lookup tables | split tables |
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from cloud.parallel.explaining.words import axes_text
from cloud.parallel.graph import Graph, Op, Split
from cloud.parallel.plan import Plan
from cloud.parallel.searching.expert import rows, weights
from cloud.parallel.searching.walk import lying, parameters

__all__ = ["Axis", "axes_of", "strategy"]

SOME, MOST = 0.2, 0.5
"""The share from which a use of an axis is named, and the share from which it alone is the name."""


@dataclass(frozen=True, slots=True)
class Axis:
    """What one mesh axis of `size` devices splits, as shares: of FLOPs by the role of the loop ("examples",
    "positions", "space", "weights", "experts"), of the bytes of parameters (without lookup tables where these are
    large) and of other state, of the bytes of computed values along positions, and of large lookup tables."""

    size: int
    flops: Mapping[str, float]
    parameters: float
    others: float
    positions: float
    tables: float

    @property
    def name(self) -> str:
        """The usual name; "" where the axis splits almost nothing."""
        names = [name for name in (self._examples(), self._weights()) if name]
        spread = self.parameters >= MOST or "tensor parallel" in names  # tables are then split like the rest
        if self.tables >= MOST and not spread:
            names.append("split tables")
        return " and ".join(names)

    def _examples(self) -> str:
        if self.flops.get("examples", 0.0) < SOME:
            if self.flops.get("space", 0.0) >= SOME:
                return "spatial parallel"
            return "" if self.flops.get("positions", 0.0) < SOME else "sequence parallel"
        if self.parameters >= MOST:
            return "FSDP (ZeRO-3)"
        return "ZeRO-1" if self.others >= MOST else "data parallel"

    def _weights(self) -> str:
        if self.flops.get("experts", 0.0) >= SOME:
            return "expert parallel"
        if self.flops.get("weights", 0.0) < SOME:
            return ""
        return "tensor and sequence parallel" if self.positions >= SOME else "tensor parallel"


def strategy(graph: Graph, plan: Plan) -> str:
    """For example `ZeRO-1 over m0 (2) × tensor parallel over m1 (4)`; "one device" or "copies" if nothing is split."""
    axes = axes_of(graph, plan)
    named: dict[str, list[int]] = {}
    for n, axis in enumerate(axes):
        if axis.size > 1 and axis.name:
            named.setdefault(axis.name, []).append(n)
    if not named:
        return "copies: every device does the same" if any(axis.size > 1 for axis in axes) else "one device"
    return " × ".join(f"{name} over {axes_text(at)} ({_sizes(axes, at)})" for name, at in named.items())


def _sizes(axes: Sequence[Axis], at: Sequence[int]) -> str:
    return "×".join(str(axes[n].size) for n in at)


def axes_of(graph: Graph, plan: Plan) -> tuple[Axis, ...]:
    """For each mesh axis, what it splits."""
    shares = _Shares(graph, plan)
    return tuple(shares.axis(n, size) for n, size in enumerate(plan.mesh.sizes))


class _Shares:
    """Shares of one plan; what does not depend on the axis is computed once."""

    def __init__(self, graph: Graph, plan: Plan) -> None:
        self.graph, self.plan = graph, plan
        self.lies = lying(graph, plan)
        self.examples = rows(graph)
        self.positions = rows(graph, 1) if _has_positions(graph) else {}
        self.weights = {(k, i): v for k, i, v in weights(graph)}
        self.params = parameters(graph)
        self.tables = self._tables()

    def axis(self, n: int, size: int) -> Axis:
        state = [(v, s) for v, s in zip(self.graph.entering, self.plan.entering, strict=True) if self._is_state(v)]
        tables = [(v, s) for v, s in state if v in self.tables]
        every = [(v, s) for v, s in state if v in self.params]
        others = [(v, s) for v, s in state if v not in self.params]
        kept = [(v, self.lies[v]) for v in self.positions if v in self.examples]
        along = {v: self.positions[v] for v, _ in kept}
        whole = sum(self.graph.values[v].bytes for v, _ in every)
        heavy = sum(self.graph.values[v].bytes for v, _ in tables) >= SOME * whole > 0
        params = [(v, s) for v, s in every if not heavy or v not in self.tables]
        return Axis(
            size, self._flops(n), self._share(params, n), self._share(others, n), self._share(kept, n, along),
            self._share(tables, n) if heavy else 0.0,
        )  # fmt: skip

    def _is_state(self, v: int) -> bool:
        return self.graph.values[v].kind == "state" and bool(self.graph.values[v].shape)

    def _tables(self) -> frozenset[int]:
        """Parameters used as lookup tables."""
        return frozenset(
            v for (k, i), v in self.weights.items() if i == 0 and self.graph.ops[k].primitive == "gather"
        )  # fmt: skip

    def _share(self, values: Iterable[tuple[int, Split]], n: int, along: Mapping[int, int] | None = None) -> float:
        """The share of the values' bytes that axis n splits (in dimension `along`, if given)."""
        total = split = 0
        for v, lies in values:
            bytes_ = self.graph.values[v].bytes
            total += bytes_
            split += bytes_ * any(n in axes and (along is None or along[v] == d) for d, axes in enumerate(lies))
        return split / total if total else 0.0

    def _flops(self, n: int) -> Mapping[str, float]:
        found: defaultdict[str, float] = defaultdict(float)
        total = 0.0
        for k, (op, chosen) in enumerate(zip(self.graph.ops, self.plan.ops, strict=True)):
            if op.follows or not op.flops:
                continue
            total += op.flops * op.times
            for loop, axes in enumerate(chosen.loops):
                if n in axes:
                    found[self._role(k, op, loop)] += op.flops * op.times
        return {role: flops / total for role, flops in found.items() if role}

    def _role(self, k: int, op: Op, loop: int) -> str:
        if loop in self._walked(op, self.examples):
            return "examples"
        if loop == op.slides:
            return "space"
        if loop in self._walked(op, self.positions):
            return "positions"
        for i, walked in enumerate(op.reads):
            if (k, i) in self.weights and loop in walked:
                stacked = len(walked) >= 3 and walked[0] == loop and self._every(op, loop)
                return "experts" if stacked else "weights"
        return self._of_gradient(op, loop)

    def _of_gradient(self, op: Op, loop: int) -> str:
        """A product of two computed values: a first loop in both is that of a stack, others are columns or rows."""
        walked = op.writes[0] if op.writes else ()
        stacked = len(walked) == 3 and walked[0] == loop and self._every(op, loop) and self._stacks
        return "experts" if stacked else "weights"

    @property
    def _stacks(self) -> bool:
        return any(len(self.graph.values[v].shape) >= 3 and i == 1 for (_, i), v in self.weights.items())

    def _every(self, op: Op, loop: int) -> bool:
        return all(loop in walked for walked in (*op.reads, *op.writes))

    def _walked(self, op: Op, dims: Mapping[int, int]) -> Sequence[int | None]:
        """The loops that iterate over the given dimension of operands and results."""
        read = (walked[dims[v]] for v, walked in zip(op.inputs, op.reads, strict=True) if v in dims)
        written = (walked[dims[v]] for v, walked in zip(op.outputs, op.writes, strict=True) if v in dims)
        return [loop for loop in (*read, *written) if loop is not None]


def _has_positions(graph: Graph) -> bool:
    """In arrays [examples, n], n counts features, not positions, unless the elements are integers (tokens)."""
    batch = [graph.values[v] for v in graph.entering if graph.values[v].kind == "batch"]
    return any(len(v.shape) > 2 or (len(v.shape) == 2 and np.issubdtype(v.dtype, np.integer)) for v in batch)
