"""Constraints on a plan before it is searched: by the user (pins), or from an expert's strategy."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from cloud.errors import PlanError
from cloud.parallel.graph import Graph, Split
from cloud.parallel.plan import Assignment
from cloud.parallel.searching.grouping.groups import Derived, Group

__all__ = ["Demands", "Partial", "Pin", "of_pins"]

Partial = tuple[tuple[int, ...] | None, ...]
"""A Split with only some dimensions given; None leaves a dimension free."""


@dataclass(frozen=True, slots=True)
class Pin:
    """Fixes the split of values whose name matches `glob` (case-sensitive), or of results of operators whose `where`
    does, if they have as many dimensions as `split`."""

    glob: str
    split: Partial


@dataclass(frozen=True)
class Demands:
    """Constraints on inputs, on operators' results, and on operators' loops, each by number."""

    entering: Mapping[int, Partial] = field(default_factory=dict)
    results: Mapping[int, Partial] = field(default_factory=dict)
    loops: Mapping[int, Mapping[int, tuple[int, ...]]] = field(default_factory=dict)

    def __or__(self, other: Demands) -> Demands:
        """Both; the other's constraints override."""
        loops = {k: {**self.loops.get(k, {}), **other.loops.get(k, {})} for k in {**self.loops, **other.loops}}
        return Demands({**self.entering, **other.entering}, {**self.results, **other.results}, loops)

    def mark(self, group: Group) -> Hashable:
        """A key that differs between similar groups with different constraints."""
        each = [(at, self.results.get(k), tuple(self.loops.get(k, {}).items())) for at, k in enumerate(group.ops)]
        return self.entering.get(group.value), tuple(one for one in each if one[1] is not None or one[2])

    def allowed(self, group: Group) -> Callable[[Derived, Assignment | Split], bool] | None:
        """A test whether an option of the group meets its constraints; None if it has none."""
        results = [(k, self.results[k]) for k in group.ops if k in self.results]
        loops = [(k, loop, axes) for k in group.ops for loop, axes in self.loops.get(k, {}).items()]
        lies = self.entering.get(group.value)
        if not results and not loops and lies is None:
            return None

        def allowed(derived: Derived, lead: Assignment | Split) -> bool:
            if lies is not None and not isinstance(lead, Assignment) and not _meets(lies, lead):
                return False
            if not all(_meets(split, derived[k].results[0]) for k, split in results):
                return False
            return all(derived[k].loops[loop] == axes for k, loop, axes in loops)

        return allowed


def of_pins(graph: Graph, pins: Sequence[Pin]) -> Demands:
    """Later pins override earlier ones. Raises `PlanError` for a pin that matches nothing."""
    entering: dict[int, Partial] = {}
    results: dict[int, Partial] = {}
    for pin in pins:
        rank = len(pin.split)
        values = [v for v in graph.entering if fnmatchcase(graph.values[v].name, pin.glob)]
        ops = [k for k, op in enumerate(graph.ops) if fnmatchcase(op.where, pin.glob)]
        fitting = {v: pin.split for v in values if len(graph.values[v].shape) == rank}
        made = {k: pin.split for k in ops if len(graph.values[graph.ops[k].outputs[0]].shape) == rank}
        if not fitting and not made:
            raise PlanError(_nothing(graph, pin, values))
        entering.update(fitting)
        results.update(made)
    return Demands(entering, results)


def _nothing(graph: Graph, pin: Pin, values: Sequence[int]) -> str:
    if values:
        one = graph.values[values[0]]
        rank = len(one.shape)
        return f"pin {pin.glob!r}: expected a split of {rank} dimensions for {one.name}; got one of {len(pin.split)}"
    names = sorted({graph.values[v].name for v in graph.entering})
    return f"pin {pin.glob!r}: no input or operator of that name; inputs: {', '.join(names[:8])} ({len(names)} in all)"


def _meets(demand: Partial, split: Split) -> bool:
    return all(want in (None, got) for want, got in zip(demand, split, strict=True))
