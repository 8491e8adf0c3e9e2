"""What planning makes and running takes: data alone, so that a kept program runs without the planner's modules."""

from __future__ import annotations

from collections.abc import Mapping

from lite_runtime.frozen import Frozen, NamedTuple
from lite_runtime.graph import Array, Graph, Node, Spec

__all__ = ["ALIGNMENT", "ARENA", "FAULT", "FIRST_FREE", "NULL", "Kernel", "Plan", "Step"]

NULL, FAULT, ARENA, FIRST_FREE = 0, 1, 2, 3
"""Entries of the table of base addresses: always 0; the fault cell; the arena; then constants, inputs and outputs."""
ALIGNMENT = 64
"""Bytes: a cache line, and the widest vector."""


class Step(NamedTuple):
    """One piece of a plan in order: a run of native steps, or a node for its reference."""

    nodes: tuple[Node, ...]
    begin: int = 0
    end: int = 0
    """Words [begin, end) of the program; both 0 for a reference step."""


class Kernel(NamedTuple):
    """One record of the program, for reports: what runs, for which nodes, on which operands."""

    name: str
    unit: int
    begin: int
    end: int
    operations: int
    bytes: int
    seconds: float
    """What it should take one worker (`cost.py`)."""
    shared: bool
    """All workers take part, not the first alone."""
    meets: bool
    """All workers must have finished what came before."""


class Plan(Frozen):
    """What a run of a graph with these input types does.

    `program` and `kernels` (names; a record's first word indexes them) drive native code; `where` gives each value's
    base and byte offset; `constants`, `inputs` and `outputs` say which base holds what. Outputs that are windows of
    something else are `copies`. `frontier` are nodes whose results' types only a run tells, to be run by reference when
    `steps` are done; `rest` is the graph that remains after them.
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
    """Bytes of the bases that hold one buffer each, when planned with `separate`."""
    inputs: Mapping[str, int]
    outputs: Mapping[str, int]
    copies: tuple[str, ...]
    known: Mapping[str, Array]
    frontier: tuple[Node, ...] = ()
    rest: Graph | None = None
