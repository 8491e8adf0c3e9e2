"""A training step as the planner sees it: values, and operators whose loops define how they may be split.

An operator is a nest of loops, as in an einsum: each dimension of each operand and result belongs to one loop or to
none. Splitting a loop over a mesh axis gives every device of that axis a part of its trips. A dimension without a loop
must be whole on every device that runs the operator. `[B, S, D] @ [D, F]` has the loops B, S and F, which are
dimensions of its result, and D, which is not: if D is split, results are partial sums, to be added over the axis.

The graph is flat: calls are inlined, so that operator k is equation k of `Graph.jaxpr`. So are the bodies of scans and
`while` loops (`Body`): each is a run of operators that every trip repeats.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

__all__ = ["Body", "Graph", "Loop", "Op", "Split", "Value", "remembered"]

remembered = lru_cache(maxsize=4)
"""Caches a function's results for the last few graphs: analysing one of 20,000 operators takes a while."""

Split = tuple[tuple[int, ...], ...]
"""How one value is sharded over a mesh: for each dimension the indices of the mesh axes that split it, major first; for
a matrix, `((), (1,))` splits its columns over axis 1. Over the other axes it is replicated."""


@dataclass(frozen=True, slots=True)
class Value:
    """An array that a step reads or computes. `kind`: "state" (carried from step to step: parameters, slots, counters),
    "batch" (new each step), "constant", "computed". `name`: the path of an input (`params.w1`), else "". `inside`: the
    number of the loop body that makes it in each trip; -1 outside of all."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    kind: str = "computed"
    name: str = ""
    inside: int = -1

    @property
    def bytes(self) -> int:
        """Bytes of the whole array."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class Loop:
    """`size` trips; axes whose product divides it may split it. `reduces`: "" if every result has the loop, else how
    partial results are combined: "add", "max", "min", "mul", "and", "or"."""

    size: int
    reduces: str = ""


@dataclass(frozen=True, slots=True)
class Op:
    """Equation `k` of the flat jaxpr. `inputs` are indices of values, -1 for a literal; `reads[i][d]` is the loop of
    dimension d of input i, None if it must be whole; `writes` likewise for results.

    `follows`: elementwise and layout-only operators, which need no separate pass over memory when they are fused, and
    never a collective. `times`: trips of loops around it, `inside`: the innermost of their bodies, else -1.
    `slides`: the loop of the first operand's positions under a window that reaches beyond them, else -1; if it is
    split, a device needs `edges`: so many elements of the parts before and after its own."""

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
    inside: int = -1
    slides: int = -1
    edges: tuple[int, int] = (0, 0)


@dataclass(frozen=True, slots=True)
class Body:
    """The body of a loop: operators `start` to `stop` - 1, and those bodies inside it whose `outer` it is. A loop that
    stops by a condition on computed values has `trips` 1 and is not `bounded`: its work is counted for one trip. `loop`
    is the equation of the loop."""

    start: int
    stop: int
    trips: int
    outer: int = -1
    bounded: bool = True
    loop: Any = field(default=None, repr=False, compare=False)


@dataclass(frozen=True, slots=True, eq=False)
class Graph:
    """A whole step; compared by identity, so that `remembered` is fast. `entering[i]` is the value of argument i
    (flattened), `leaving[j]` that of result j; `carried[j]` is the argument that result j replaces in the next step,
    sharded in the same way, None for other results. `jaxpr` is the flat closed jaxpr, whose equation k is `ops[k]`; it
    is not part of the graph's digest."""

    values: tuple[Value, ...]
    ops: tuple[Op, ...]
    entering: tuple[int, ...]
    leaving: tuple[int, ...]
    carried: tuple[int | None, ...]
    jaxpr: Any = field(default=None, repr=False, compare=False)
    bodies: tuple[Body, ...] = ()

    def times(self, value: int) -> int:
        """How often a step makes `value`: the trips of the loops around it."""
        return self.trips(self.values[value].inside)

    def trips(self, body: int) -> int:
        """The trips of a body in one step, those of the loops around it included; 1 for -1."""
        found = 1
        while body >= 0:
            found, body = found * self.bodies[body].trips, self.bodies[body].outer
        return found

    def around(self, body: int, within: int) -> int:
        """Of the bodies around `body`, itself included, the outermost that is inside `within`; -1 if there is none."""
        found = -1
        while body not in (within, -1):
            found, body = body, self.bodies[body].outer
        return found
