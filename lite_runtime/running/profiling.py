"""Profiling: the records of steps in profiles and traces, and a plan's totals.

Imported on demand; starts do not need it.
"""

from __future__ import annotations

from lite_runtime.frozen import NamedTuple
from lite_runtime.graph import Node
from lite_runtime.planning.program import Kernel

__all__ = ["Cost", "Piece", "Profile", "Row", "Span"]


class Row(NamedTuple):
    """Time of one step of a program: `node` names the operators that it computes, `kernel` the kernel."""

    node: str
    kernel: str
    seconds: float
    """Mean over runs, of the slowest worker."""
    operations: int
    """Arithmetic operations of a run, a multiply-add counted as two (`planning/cost.py`); 0 for a reference."""
    bytes: int
    """Bytes of operands and results; 0 for a reference."""


class Cost(NamedTuple):
    """Cost of a run with given input types: bytes of arena, native records, nodes by what runs them."""

    arena_bytes: int
    steps: int
    native: int
    reference: tuple[str, ...]
    """Operators of the nodes that are run by their references."""


class Span(NamedTuple):
    """One step of a run: when it began and ended, in seconds since the start of the run, and on which worker."""

    node: str
    kernel: str
    worker: int
    start: float
    end: float


class Piece(NamedTuple):
    """A step as it ran: its record, None for a reference; for each participating worker (worker, start, end)."""

    node: str
    record: Kernel | None
    times: tuple[tuple[int, float, float], ...]

    @property
    def kernel(self) -> str:
        """The kernel that computed it."""
        return self.record.name if self.record is not None else "reference"


class Profile:
    """Timed pieces of runs."""

    def __init__(self) -> None:
        self.pieces: list[Piece] = []

    def add(self, nodes: tuple[Node, ...], record: Kernel | None, *times: tuple[int, float, float]) -> None:
        """Record a step that computed `nodes`."""
        label = f"{'+'.join(node.op for node in nodes)} {nodes[-1].name or nodes[-1].outputs[0]}"
        self.pieces.append(Piece(label, record, times))

    def spans(self) -> list[Span]:
        """Every step of every worker, ordered by start."""
        flat = [(start, piece, worker, end) for piece in self.pieces for worker, start, end in piece.times]
        begin = min((start for start, *_ in flat), default=0.0)
        made = [Span(p.node, p.kernel, worker, start - begin, end - begin) for start, p, worker, end in flat]
        return sorted(made, key=lambda span: (span.start, span.worker))
