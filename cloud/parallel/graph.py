"""What a training step computes, as the planner sees it: values, and operators whose loops say how they may be split.

An operator is a nest of loops, as in an einsum: each dimension of each operand and result is walked by one loop or by
none. To split a loop over a mesh axis is to give every device of that axis a part of its trips. A dimension that no
loop walks must be whole wherever the operator runs. `[B, S, D] @ [D, F]` has the loops B, S, F, which its result has
too, and D, which it has not: where D is split, results are partial sums, to be added up over the axis.

The walked graph is flat: calls are inlined, so that operator k is equation k of `Graph.jaxpr`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

__all__ = ["Graph", "Loop", "Op", "Split", "Value", "remembered"]

remembered = lru_cache(maxsize=4)
"""Keeps what a function found out about the last few graphs: walking one of 20,000 operators takes a while."""

Split = tuple[tuple[int, ...], ...]
"""How one value lies on a mesh: for each dimension the indices of the mesh axes that split it, major first; of a matrix
`((), (1,))` has its columns split over axis 1. Axes named nowhere hold copies."""


@dataclass(frozen=True, slots=True)
class Value:
    """An array that a step takes or makes. `kind`: "state" (carried from step to step: parameters, slots, counters),
    "batch" (new each step), "constant", "computed". `name`: the path of what enters (`params.w1`), else ""."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    kind: str = "computed"
    name: str = ""

    @property
    def bytes(self) -> int:
        """Of the whole array."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class Loop:
    """`size` trips; axes whose product divides it may split it. `reduces`: "" where every result has the loop, else
    how partial results are put together: "add", "max", "min", "mul", "and", "or"."""

    size: int
    reduces: str = ""


@dataclass(frozen=True, slots=True)
class Op:
    """Equation `k` of the flat jaxpr. `inputs` are indices of values, -1 for a literal; `reads[i][d]` is the loop that
    walks dimension d of input i, None where it must be whole; `writes` likewise for results.

    `follows`: elementwise and layout-only operators, which cost no pass over memory of their own where they are fused,
    and never a collective of their own. `times`: trips of loops around it."""

    primitive: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    loops: tuple[Loop, ...]
    reads: tuple[tuple[int | None, ...], ...]
    writes: tuple[tuple[int | None, ...], ...]
    flops: float = 0.0
    follows: bool = False
    times: int = 1
    where: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Graph:
    """A whole step; equal to itself alone, so that `remembered` can tell graphs apart at once. `entering[i]` is the
    value of argument i (flattened), `leaving[j]` that of result j; `carried[j]` is the argument whose place result j
    takes in the next step, None where it is a mere result: the two lie alike. `jaxpr` is the flat closed jaxpr,
    equation k of which is `ops[k]`; it is no part of the graph's digest."""

    values: tuple[Value, ...]
    ops: tuple[Op, ...]
    entering: tuple[int, ...]
    leaving: tuple[int, ...]
    carried: tuple[int | None, ...]
    jaxpr: Any = field(default=None, repr=False, compare=False)
