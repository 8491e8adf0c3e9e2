"""Check of a plan: communication, memory and time of the compiled program compared with the plan's predictions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from cloud.parallel import cost
from cloud.parallel.checking.compilers import Compiler
from cloud.parallel.checking.hlo import Branch, Found, Program, read_program
from cloud.parallel.plan import Collective, Estimate, Mesh
from cloud.parallel.topology import Topology

__all__ = ["Measured", "Report", "Row", "check", "compare", "footprint", "measure", "spent"]

Key = tuple[str, tuple[int, ...]]
"""The kind of a collective, and the mesh axes it runs over."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A compiled step on one device, in seconds and bytes, computed from the program with the planner's cost model."""

    program: Program
    peak_bytes: int
    compute_seconds: float
    collective_seconds: float
    exposed_seconds: float

    @property
    def collectives(self) -> tuple[Collective, ...]:
        """All collectives, with the mesh axes they run over."""
        return self.program.collectives

    @property
    def flops(self) -> float:
        """Of contractions."""
        return self.program.flops

    @property
    def step_seconds(self) -> float:
        """Computing, and the collectives that it does not hide."""
        return self.compute_seconds + self.exposed_seconds

    @property
    def bytes(self) -> Mapping[Key, int]:
        """Bytes of all collectives, by kind and axes."""
        return _bytes(self.collectives)


def measure(compiled: Any, mesh: Mesh, topology: Topology) -> Measured:
    """The cost of a compiled program (`lowered.compile()`) for `mesh` on `topology`. Raises `PlanError` if the program
    cannot be parsed."""
    program = read_program(compiled.as_text(), mesh)
    return Measured(program, footprint(compiled), *spent(program, mesh, topology))


def spent(ran: Program | Branch, mesh: Mesh, topology: Topology) -> tuple[float, float, float]:
    """Seconds of computing, of collectives, and of those that computing does not hide."""
    compute = sum(one.times * cost.compute(one.flops, one.bytes, one.dtype, topology.device) for one in ran.work)
    times = [_seconds(one.collective, mesh, topology) for one in ran.found]
    shown = sum(time * (1 - topology.overlap * one.hideable) for time, one in zip(times, ran.found, strict=True))
    return compute, sum(times), shown


def footprint(compiled: Any) -> int:
    """Bytes that the program needs on one device: arguments, results that do not reuse an argument's buffer, and
    temporaries, which XLA packs into one block (its `peak_memory_in_bytes` omits that block on CPUs)."""
    memory = compiled.memory_analysis()
    held = memory.argument_size_in_bytes + memory.output_size_in_bytes - memory.alias_size_in_bytes
    return int(held + memory.temp_size_in_bytes)


def _seconds(one: Collective, mesh: Mesh, topology: Topology) -> float:
    return one.times * cost.seconds(one.kind, one.bytes, one.axes, mesh, topology)


def _bytes(collectives: Iterable[Collective]) -> Mapping[Key, int]:
    total: Counter[Key] = Counter()
    for one in collectives:
        total[one.kind, one.axes] += one.bytes * one.times
    return total


@dataclass(frozen=True, slots=True)
class Row:
    """`what` is "all-reduce over m0", "peak bytes", ...; `notes` name the values that cause the difference."""

    what: str
    predicted: float
    compiled: float
    notes: tuple[str, ...] = ()

    @property
    def gap(self) -> float:
        """The difference relative to the compiled figure; infinite if that is zero."""
        if self.predicted == self.compiled:
            return 0.0
        return abs(self.predicted - self.compiled) / self.compiled if self.compiled else float("inf")


@dataclass(frozen=True, slots=True)
class Report:
    """`collectives`: one row for each kind and axes, in bytes; `totals`: their sum, peak bytes, and seconds."""

    compiler: str
    collectives: tuple[Row, ...]
    totals: tuple[Row, ...]
    measured: Measured
    limit: float

    @property
    def fits(self) -> bool:
        """Whether the compiled program fits the device's memory."""
        return self.measured.peak_bytes <= self.limit

    def agrees(self, bytes: float = 0.05, peak: float = 0.10) -> bool:
        """Whether the bytes of all collectives and the peak are predicted within the given gap."""
        moved, held = (next(row for row in self.totals if row.what == what) for what in (_MOVED, _HELD))
        return moved.gap <= bytes and held.gap <= peak

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        rows = {
            name: [{"what": row.what, "predicted": row.predicted, "compiled": row.compiled, "notes": list(row.notes)}
                   for row in table]
            for name, table in (("collectives", self.collectives), ("totals", self.totals))
        }  # fmt: skip
        return {"compiler": self.compiler, "fits": self.fits, "limit": self.limit, **rows}

    def text(self) -> str:
        """A table, and below it the causes of the differences."""
        rows = (*self.collectives, *self.totals)
        width = max(len(row.what) for row in rows)
        lines = [f"{'':{width}}  {'predicted':>16}  {'compiled':>16}  {'gap':>7}"]
        lines += [f"{row.what:{width}}  {_figure(row.predicted)}  {_figure(row.compiled)}  {row.gap:7.2%}"
                  for row in rows]  # fmt: skip
        lines += [f"  {row.what}: {note}" for row in rows for note in row.notes]
        return "\n".join(lines)


def _figure(value: float) -> str:
    return f"{value:16,.0f}" if value >= 1 or value == 0 else f"{value:16.6f}"


_MOVED, _HELD = "bytes of all collectives", "peak bytes"


def check(applied: Any, estimate: Estimate, mesh: Mesh, topology: Topology, compiler: Compiler) -> Report:
    """Compile a step that a plan was applied to (any object with `.lower()`, for the compiler's devices) and
    compare."""
    return compare(estimate, measure(compiler.compile(applied.lower()), mesh, topology), topology, compiler.name)


def compare(estimate: Estimate, measured: Measured, topology: Topology, compiler: str = "cpu") -> Report:
    """The predicted figures and the compiled ones, by kind and axes of collectives, and in total."""
    predicted, compiled = _bytes(estimate.collectives), measured.bytes
    rows = [Row(_title(key), predicted.get(key, 0), compiled.get(key, 0), _notes(key, estimate, measured))
            for key in sorted({*predicted, *compiled})]  # fmt: skip
    totals = (
        Row(_MOVED, sum(predicted.values()), sum(compiled.values())),
        Row(_HELD, estimate.peak_bytes, measured.peak_bytes),
        Row("seconds of computing", estimate.compute_seconds, measured.compute_seconds),
        Row("seconds of collectives", estimate.collective_seconds, measured.collective_seconds),
        Row("seconds of the step", estimate.step_seconds, measured.step_seconds),
    )
    return Report(compiler, tuple(rows), totals, measured, topology.memory)


def _title(key: Key) -> str:
    return f"{key[0]} over {'+'.join(f'm{axis}' for axis in key[1])}"


def _notes(key: Key, estimate: Estimate, measured: Measured) -> tuple[str, ...]:
    """Where the bytes differ: values that were predicted but not compiled, and the reverse, matched by size."""
    expected = Counter[int]()
    why: dict[int, str] = {}
    for one in estimate.collectives:
        if (one.kind, one.axes) == key:
            expected[one.bytes] += one.times
            why.setdefault(one.bytes, one.why)
    there = Counter[int]()
    for bytes, times, name in _moved(key, measured.program.found):
        there[bytes] += times
        why.setdefault(bytes, name)
    if _sum(expected) == _sum(there):
        return ()
    missing, extra = expected - there, there - expected
    sides = (("predicted, not compiled", missing), ("compiled, not predicted", extra))
    return tuple(f"{side}: {n} x {bytes:,} B, {why[bytes]}" for side, sizes in sides for bytes, n in sizes.items())


def _moved(key: Key, found: Iterable[Found]) -> Iterable[tuple[int, int, str]]:
    for one in found:
        if (one.collective.kind, one.collective.axes) == key:
            yield from ((bytes, one.collective.times, name) for bytes, name in one.parts)


def _sum(sizes: Mapping[int, int]) -> int:
    return sum(bytes * times for bytes, times in sizes.items())
