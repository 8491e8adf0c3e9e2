"""The best plan of a step on a topology: one integer program for each mesh shape."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from cloud.errors import PlanError
from cloud.parallel.graph import Graph
from cloud.parallel.plan import Estimate, Mesh, Plan
from cloud.parallel.searching.axes import axis_family, lifted, together
from cloud.parallel.searching.demands import Demands, Pin, of_pins
from cloud.parallel.searching.expert import EXPERTS
from cloud.parallel.searching.grouping.fold import ROUNDS, folded
from cloud.parallel.searching.grouping.groups import Group, grouped
from cloud.parallel.searching.grouping.parts import parts
from cloud.parallel.searching.grouping.satellites import merged
from cloud.parallel.searching.holding.memory import lives
from cloud.parallel.searching.holding.rows import Moments
from cloud.parallel.searching.holding.schedule import hides
from cloud.parallel.searching.predict import predict
from cloud.parallel.searching.question import Question, Shape, ask
from cloud.parallel.searching.walk import reading_times
from cloud.parallel.solving.solve import Infeasible, solve
from cloud.parallel.topology import Topology
from cloud.parallel.topology import meshes as every_mesh
from cloud.parallel.tracing.trace import digest
from converter.report.html import size_text

__all__ = ["Pin", "leanest", "plans", "search", "usable"]

ROWS = 32
"""Moments that get a memory row before the first solution; moments found too full afterwards are added."""

AXES = 2
"""The most mesh axes: a third is rarely useful, and operators then have too many options to evaluate in seconds."""

LEAN = "dp", "fsdp"
"""Experts whose plans are made quickly; the search starts from them if memory is short."""

GAP = 1e-4
"""The relative distance from the proven best at which the search may stop."""

PARTS = 2, 4
"""Numbers of parts of the step that are tried if memory is short, so that repeated blocks may be decided
differently."""

RESERVE = 0.05
"""Share of the memory reserved for what plans do not cover: fragmentation, the compiler's scratch, the runtime."""

LOOPS = 0.25
"""A further share for steps with loops whose programs are not read: in those the compiler copies stacked values to
other layouts, and peaks were up to 1.36 times the estimate (`mamba`, docs/parallel-results.md)."""


def search(graph: Graph, topology: Topology, **options: Any) -> Plan:
    """The cheapest of `plans`, which documents the options."""
    return plans(graph, topology, **options)[0]


def plans(graph: Graph, topology: Topology, *, memory: float | None = None, pins: Sequence[Pin] = (),
          expert: str = "", meshes: Sequence[Mesh] | None = None, backend: str = "gpu", seconds: float = 60.0,
          fold: bool = True, read: bool = False) -> list[Plan]:  # fmt: skip
    """The plans found, cheapest first, one or more for every mesh shape. `memory`: bytes per device, by default the
    topology's. `expert`: one of `EXPERTS`; pins override its constraints. `backend`: "gpu", whose compiler emits
    reduce-scatters, or "cpu". `seconds`: for all shapes together: after them nothing more is begun, and what is begun
    ends within seconds. `fold`: repeated blocks are decided once. `read`: the programs are compiled and their peaks
    read before one is used, so that no memory is kept back for wrong estimates (`LOOPS`).

    If memory is short, plans that gather parameters twice, forward and backward, are tried too, and plans in which some
    blocks are sharded more than others. Shapes without a plan are omitted; if there is no plan at all: raises
    `Infeasible` if none fits, else `PlanError` (constraints that cannot be met, too few seconds)."""
    shapes = meshes or every_mesh(topology, AXES)
    tried = [(mesh, demands) for mesh in shapes for demands in _demands(graph, mesh, pins, expert)]
    if not tried:
        raise PlanError(f"expert {expert!r} has no plan for this step on {topology.name}: use another one or more axes")
    limit = usable(graph, memory or topology.memory, read)
    found: list[Plan] = []
    failed: list[PlanError] = []
    one = _Search(graph, topology, limit, backend == "gpu", fold, memory or topology.memory)
    cut = PARTS if fold and not expert else ()
    start = time.monotonic()
    for n, (mesh, demands) in enumerate(tried, 1):
        if n > 1 and time.monotonic() > start + seconds:
            break
        end = start + seconds * n / len(tried)
        known: list[Plan] = []
        crowded = True
        for number, twice in ((1, False), (1, True), *((n, None) for n in cut)):
            if (known or number > 1) and time.monotonic() > end:
                break
            regather = any(plan.regather for plan in _sorted(known)[:1]) if twice is None else twice
            try:
                left = max(end - time.monotonic(), 1.0)
                plan = one.plan(mesh, demands, regather, left, number, known)
                crowded = plan.estimate.crowded
                found.append(replace(plan, name=expert or plan.name))
                known.append(plan)
            except PlanError as error:
                failed.append(error)
            if not crowded:
                break
    if not found:
        raise leanest(failed)
    return _sorted(found)


def usable(graph: Graph, memory: float, read: bool) -> float:
    """The most bytes that an estimate may have in this memory."""
    return memory * (1 - RESERVE - (LOOPS if graph.bodies and not read else 0.0))


def leanest(failed: Sequence[PlanError]) -> PlanError:
    """The error to report if every search failed: one that is no question of memory, else that of the least need."""
    return min(failed, key=lambda error: error.least if isinstance(error, Infeasible) else 0.0)


def _sorted(plans: Sequence[Plan]) -> list[Plan]:
    return sorted(plans, key=lambda plan: plan.estimate.step_seconds)


def _demands(graph: Graph, mesh: Mesh, pins: Sequence[Pin], expert: str) -> Iterator[Demands]:
    if expert and expert not in EXPERTS:
        raise PlanError(f"unknown expert {expert!r}; known: {', '.join(EXPERTS)}")
    found = EXPERTS[expert](graph, mesh) if expert else Demands()
    if found is not None:
        yield found | of_pins(graph, pins)


class _Search:
    """One graph on one topology; what does not depend on the mesh is made once. `limit`: bytes of an estimate at most,
    of `memory`."""

    def __init__(
        self, graph: Graph, topology: Topology, limit: float, reduce_scatter: bool, fold: bool,
        memory: float | None = None,
    ) -> None:  # fmt: skip
        self.graph, self.topology, self.limit, self.memory = graph, topology, limit, memory or limit
        self.reduce_scatter, self.fold = reduce_scatter, fold
        self.groups = grouped(graph)
        self.lives = lives(graph, hides(topology))
        self.digest = digest(graph)
        self.shapes: dict[Hashable, Shape] = {}

    def shape(self, marks: tuple[Hashable, ...], regather: bool) -> Shape:
        """The folded graph."""
        key = marks, regather
        if key not in self.shapes:
            times = reading_times(self.graph) if regather else {}
            folded_ = folded(self.graph, self.groups, marks, times, ROUNDS if self.fold else -1)
            reading = _reading(self.graph, self.groups, times)
            self.shapes[key] = Shape(self.graph, self.groups, folded_, self.lives, reading)
        return self.shapes[key]

    def plan(
        self, mesh: Mesh, demands: Demands, regather: bool, seconds: float, number: int = 1, known: Sequence[Plan] = ()
    ) -> Plan:
        """The best plan on one mesh. `number`: parts inside which repeated blocks are decided alike. `known`: crowded
        plans on this mesh to start from; if there are none and no constraints, the plans of lean experts are used."""
        marks = zip(map(demands.mark, self.groups), parts(self.graph, self.groups, number), strict=True)
        shape = self.shape(tuple(marks), regather)
        question = ask(shape, mesh, self.topology, demands, self.reduce_scatter)
        free = demands == Demands() and not known
        lean = (lambda: self._lean(mesh, seconds / 8)) if free else list[Plan]
        options, gap, crowded = self._solved(question, known, lean, seconds)
        entering, ops = question.choices(options)
        nothing = Estimate(0.0, 0.0, 0.0, 0, 0)
        plan = Plan(mesh, entering, ops, nothing, self.digest, self.topology.digest, regather)
        estimate = predict(self.graph, plan, self.topology, reduce_scatter=self.reduce_scatter)
        return replace(plan, estimate=replace(estimate, gap=gap, crowded=crowded))

    def _lean(self, mesh: Mesh, seconds: float) -> list[Plan]:
        found = []
        for expert in LEAN:
            try:
                demanded = _demands(self.graph, mesh, (), expert)
                found += [self.plan(mesh, demands, False, seconds) for demands in demanded]
            except PlanError:  # no plan of this expert fits
                continue
        return found

    def _solved(
        self, question: Question, known: Sequence[Plan], lean: Callable[[], list[Plan]], seconds: float
    ) -> tuple[tuple[int, ...], float, bool]:
        """Options of the whole question, the possible saving left, and whether memory excluded a cheaper choice."""
        end = time.monotonic() + seconds
        moments, small = Moments(question), merged(question)
        families = [axis_family(question, small, axis) for axis in range(len(question.mesh.sizes))]
        at = moments.fullest(ROWS) if known else []
        starts = [lifted(question, small, plan) for plan in known]
        while True:
            problem = replace(small.problem, rows=tuple(small.row(moments.row(m, self.limit)) for m in at))
            left = max(end - time.monotonic(), 1.0)
            try:
                solution = solve(problem, left, GAP, [*starts, *together(problem, question, left / 3)], families)
            except Infeasible as error:
                raise _short(error, self.limit, self.memory) if at else error from error
            starts = [solution.options]
            options = small.options(solution.options)
            curve = moments.curve(options)
            if curve.max() <= self.limit:
                gap = 1 - solution.bound / solution.cost if solution.cost > 0 else 0.0
                return options, min(max(gap, 0.0), 1.0), bool(at)
            fresh = {int(np.argmax(curve)), *([] if at else moments.fullest(ROWS))}.difference(at)
            if not fresh:
                raise PlanError("the memory constraints did not converge: allow some more memory or fewer mesh axes")
            if not at:
                starts += [lifted(question, small, plan) for plan in lean()]
            at += sorted(fresh)


def _short(error: Infeasible, limit: float, memory: float) -> Infeasible:
    text = (
        f"expected a plan within {size_text(limit)} per device (with {1 - limit / memory:.0%} kept in reserve); the"
        f" least found to fit is {size_text(error.least)}, fullest at {', '.join(error.rows) or 'every moment'}: allow"
        " more memory or devices, a smaller batch, recomputation, or fewer pins"
    )
    return Infeasible(text, error.least * memory / limit, error.rows, error.options)


Pair = tuple[int, int]


def _reading(graph: Graph, groups: Sequence[Group], times: Mapping[Pair, int]) -> dict[Pair, list[int]]:
    """Readers in other groups of each (value, reading time)."""
    home = {k: g for g, group in enumerate(groups) for k in group.ops}
    makers = {v: home[k] for k, op in enumerate(graph.ops) for v in op.outputs}
    makers.update({group.value: g for g, group in enumerate(groups) if group.value >= 0})
    found: dict[tuple[int, int], list[int]] = {}
    for k, op in enumerate(graph.ops):
        for i, value in enumerate(op.inputs):
            if value >= 0 and makers.get(value) != home[k]:
                found.setdefault((value, times.get((k, i), 0)), []).append(k)
    for value, argument in zip(graph.leaving, graph.carried, strict=True):
        if argument is not None:
            found.setdefault((value, 0), []).append(-1)
    return found
