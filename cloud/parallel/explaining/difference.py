"""Comparison of two plans of one step: what is split differently, and the effect on communication and memory."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from cloud.parallel import cost
from cloud.parallel.explaining.strategy import strategy
from cloud.parallel.explaining.words import alike, axes_text, duration, mesh_text, place, rows_text, split_text
from cloud.parallel.graph import Graph, Split
from cloud.parallel.plan import Estimate, Mesh, Plan
from cloud.parallel.searching.walk import lying, parameters
from cloud.parallel.topology import Topology
from converter.report.html import size_text

__all__ = ["Change", "Difference", "Figure", "diff"]

MOST = 16
"""The most kinds of tensors that the text lists."""


@dataclass(frozen=True, slots=True)
class Change:
    """`times` similar tensors that are sharded differently."""

    name: str
    times: int
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class Figure:
    """`unit`: "seconds" or "bytes"."""

    what: str
    unit: str
    before: float
    after: float


@dataclass(frozen=True, slots=True)
class Difference:
    """`entering`: parameters and the batch; `others`: how many arrays of the optimiser are sharded
    differently; `made`: results of operators; `moved`: collectives by kind and axes, bytes and seconds; `totals`: of
    the step."""

    titles: tuple[str, str]
    entering: tuple[Change, ...]
    others: int
    made: tuple[Change, ...]
    moved: tuple[Figure, ...]
    totals: tuple[Figure, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self)

    def text(self) -> str:
        """For a terminal."""
        parts = [f"before: {self.titles[0]}\nafter:  {self.titles[1]}"]
        for title, changes in (("inputs of the step", self.entering), ("computed values", self.made)):
            lines = [(one.name, _times(one.times), one.before, "→", one.after) for one in changes[:MOST]]
            rest = f"\n  and {len(changes) - MOST} more kinds" if len(changes) > MOST else ""
            parts.append(f"{title}\n{rows_text(lines)}{rest}" if lines else f"{title}: no difference")
        if self.others:
            parts.insert(2, f"optimiser arrays that are sharded differently: {self.others}")
        for title, figures in (("collectives", self.moved), ("per step", self.totals)):
            rows = [(one.what, _figure(one, one.before), "→", _figure(one, one.after)) for one in figures]
            parts.append(f"{title}\n{rows_text(rows)}" if rows else f"{title}: no difference")
        return "\n\n".join(parts)


def diff(graph: Graph, before: Plan, after: Plan, topology: Topology) -> Difference:
    """Compare two plans for `graph`, both with estimates for `topology`."""
    return Difference(
        titles=(_title(graph, before, topology), _title(graph, after, topology)),
        entering=_entering(graph, before, after, _of_optimizer(graph, False)),
        others=sum(one.times for one in _entering(graph, before, after, _of_optimizer(graph, True))),
        made=_made(graph, before, after),
        moved=_moved(before, after, topology),
        totals=tuple(_totals(before.estimate, after.estimate)),
    )


def _title(graph: Graph, plan: Plan, topology: Topology) -> str:
    return f"{strategy(graph, plan)}; {mesh_text(plan.mesh, topology)}"


def _entering(graph: Graph, before: Plan, after: Plan, which: Collection[int]) -> tuple[Change, ...]:
    pairs = zip(graph.entering, before.entering, after.entering, strict=True)
    return _changes((alike(graph.values[v].name), graph.values[v].shape, a, b) for v, a, b in pairs if v in which)


def _of_optimizer(graph: Graph, wanted: bool) -> frozenset[int]:
    """Inputs of the step that are state but not parameters; or all other inputs."""
    params = parameters(graph)
    return frozenset(v for v in graph.entering if (graph.values[v].kind == "state" and v not in params) == wanted)


def _made(graph: Graph, before: Plan, after: Plan) -> tuple[Change, ...]:
    """Results of operators that do substantial work."""
    first, second = lying(graph, before), lying(graph, after)
    return _changes(
        (f"{op.primitive} at {place(op.where)}", graph.values[v].shape, first[v], second[v])
        for op in graph.ops if not op.follows for v in op.outputs
    )  # fmt: skip


def _changes(found: Iterable[tuple[str, tuple[int, ...], Split, Split]]) -> tuple[Change, ...]:
    counted: dict[tuple[str, str, str], int] = {}
    for name, shape, before, after in found:
        key = name, split_text(shape, before), split_text(shape, after)
        if key[1] != key[2]:
            counted[key] = counted.get(key, 0) + 1
    return tuple(Change(name, times, before, after) for (name, before, after), times in counted.items())


def _moved(before: Plan, after: Plan, topology: Topology) -> tuple[Figure, ...]:
    sums = [_by_kind(plan.estimate, plan.mesh, topology) for plan in (before, after)]
    found = []
    for what in dict.fromkeys([*sums[0], *sums[1]]):
        (bytes_, seconds), (bytes_after, seconds_after) = (one.get(what, (0.0, 0.0)) for one in sums)
        if bytes_ != bytes_after:
            found.append(Figure(what, "bytes", bytes_, bytes_after))
        if seconds != seconds_after:
            found.append(Figure(what, "seconds", seconds, seconds_after))
    return tuple(found)


def _by_kind(estimate: Estimate, mesh: Mesh, topology: Topology) -> Mapping[str, tuple[float, float]]:
    found: dict[str, tuple[float, float]] = {}
    for one in estimate.collectives:
        sizes = "×".join(str(mesh.sizes[axis]) for axis in one.axes)
        what = f"{one.kind} over {axes_text(one.axes)} ({sizes})"
        bytes_, seconds = found.get(what, (0.0, 0.0))
        took = cost.seconds(one.kind, one.bytes, one.axes, mesh, topology)
        found[what] = bytes_ + one.bytes * one.times, seconds + took * one.times
    return found


def _totals(before: Estimate, after: Estimate) -> list[Figure]:
    return [
        Figure(what, unit, getattr(before, name), getattr(after, name))
        for what, unit, name in (
            ("step", "seconds", "step_seconds"), ("computing", "seconds", "compute_seconds"),
            ("collectives not hidden", "seconds", "exposed_seconds"),
            ("peak memory", "bytes", "peak_bytes"), ("state between steps", "bytes", "state_bytes"),
        )
    ]  # fmt: skip


def _times(count: int) -> str:
    return f"×{count}" if count > 1 else ""


def _figure(one: Figure, value: float) -> str:
    return duration(value) if one.unit == "seconds" else size_text(value)
