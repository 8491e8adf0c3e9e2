"""The result of planning: data only, so that a cached program runs without importing the planner."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from lite_runtime.frozen import Frozen, NamedTuple
from lite_runtime.graph import Array, Graph, Node, Spec

__all__ = ["ALIGNMENT", "ARENA", "FAULT", "FIRST_FREE", "NULL", "TOO_MANY", "Kernel", "Plan", "Step"]

NULL, FAULT, ARENA, FIRST_FREE = 0, 1, 2, 3
"""Entries of the table of base addresses: always 0; the fault cell; the arena; then constants, inputs and outputs."""
TOO_MANY = 64
"""Bit of the fault cell: a loop took more turns than a run may. The bits above 7 are the number of the unit."""
ALIGNMENT = 64
"""Bytes of a cache line, and of the widest vector."""


class Step(NamedTuple):
    """A part of a plan: a run of native steps, or a node for its reference. Parts are executed in order."""

    nodes: tuple[Node, ...]
    begin: int = 0
    end: int = 0
    """Words [begin, end) of the program; both 0 for a reference step."""


class Kernel(NamedTuple):
    """One record of the program, for reports: the kernel, the nodes it computes, its operands."""

    name: str
    unit: int
    begin: int
    end: int
    operations: int
    bytes: int
    seconds: float
    """Estimated time for one worker (`cost.py`)."""
    shared: bool
    """All workers take part, not only the first."""
    meets: bool
    """All workers must have finished the steps before it."""


class Plan(Frozen):
    """The steps of running a graph with these input types.

    `program` and `kernels` (names; a record's first word is an index into them) drive native code; `where` gives each
    value's base and byte offset; `constants`, `inputs` and `outputs` map bases to their contents. Outputs that are
    views of other memory are `copies`. `frontier` lists nodes whose result types are known only at run time; they are
    run by reference after `steps`. `rest` is the graph that remains after them.
    """

    program: Array
    kernels: tuple[str, ...]
    records: tuple[Kernel, ...]
    units: tuple[tuple[Node, ...], ...]
    steps: tuple[Step, ...]
    where: Mapping[str, tuple[int, int, Spec]]
    bases: int
    arena_bytes: int
    constants: Mapping[int, Array]
    slots: Mapping[int, int]
    """Sizes of the bases with one buffer each, if planned with `separate`."""
    inputs: Mapping[str, int]
    outputs: Mapping[str, int]
    copies: tuple[str, ...]
    known: Mapping[str, Array]
    refusals: Mapping[int, str] = MappingProxyType({})
    """By unit: the message of a run that fails there."""
    extents: tuple[tuple[int, ...], ...] = ()
    """By record: the bytes that each operand has from its offset on, 0 for one that is left out. Empty in a cached
    plan."""
    frontier: tuple[Node, ...] = ()
    rest: Graph | None = None
