"""A plan as the user asks for it: searched with the user's constraints, compared with other plans and, if nothing
fits, an error that names the constraints to drop."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from cloud.errors import PlanError
from cloud.parallel.explaining.pins import meshes_for, read_pin
from cloud.parallel.explaining.words import duration
from cloud.parallel.graph import Graph
from cloud.parallel.plan import Mesh, Plan
from cloud.parallel.searching.demands import Pin
from cloud.parallel.searching.expert import EXPERTS
from cloud.parallel.searching.search import AXES, LEAN, plans
from cloud.parallel.solving.solve import Infeasible
from cloud.parallel.topology import Topology, meshes
from converter.report.html import size_text

__all__ = ["Answer", "Wanted", "inquire", "rivals"]

BRIEF = 15.0
"""Seconds for the search of each plan that is only compared with the result."""

CUT = 0.9
"""A search that takes this share of its seconds was cut short, so that expert plans may be better."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """`memory`: bytes per device, None: the topology's. `expert`: one of `EXPERTS`, or "". `pins`: as `read_pin` reads
    them. `backend`: "gpu" or "cpu", whose compiler is predicted. `seconds`: for the solver. `recompute`: the share that
    the step was traced with, and `parts` those of its sums (`trace`), both recorded in the plan."""

    memory: float | None = None
    expert: str = ""
    pins: tuple[str, ...] = ()
    backend: str = "gpu"
    seconds: float = 60.0
    recompute: float = 0.0
    parts: int = 1


@dataclass(frozen=True)
class Answer:
    """The best plan of a step, and those of other mesh shapes, best first."""

    graph: Graph
    topology: Topology
    wanted: Wanted
    plan: Plan
    others: tuple[Plan, ...]

    @property
    def limit(self) -> float:
        """Allowed bytes per device."""
        return self.wanted.memory or self.topology.memory

    @property
    def reduce_scatter(self) -> bool:
        """Whether the predicted compiler emits reduce-scatters."""
        return self.wanted.backend == "gpu"


def inquire(
    graph: Graph, topology: Topology, wanted: Wanted, leaner: Mapping[str, Callable[[], Graph]] | None = None
) -> Answer:
    """The best of the searched plans and those of lean experts (of all experts, if the search was cut short), because
    the search counts twice some sums that compilers merge. `leaner`: variants of the step that need less memory, by
    the option that selects them. Raises `PlanError`; `Infeasible` names each constraint without which a plan fits."""
    begun, found, failed = time.monotonic(), list[Plan](), None
    try:
        found = _plans(graph, topology, wanted)
    except Infeasible as error:
        raise _relaxed(error, _ways(graph, topology, wanted, leaner or {})) from error
    except PlanError as error:
        failed = error
    if not wanted.expert:
        names = EXPERTS if time.monotonic() - begun > CUT * wanted.seconds else LEAN
        experts = (_expert(graph, topology, wanted, name) for name in names)
        found += [plan for plan in experts if isinstance(plan, Plan)]
    if not found:
        raise failed or PlanError("no plan was found")
    best, *others = sorted(found, key=lambda plan: plan.estimate.step_seconds)
    return Answer(graph, topology, wanted, best, tuple(others))


def rivals(answer: Answer) -> dict[str, Plan | PlanError]:
    """What `explain` compares with: plans of other mesh shapes, and every other expert's plan or why there is none."""
    found: dict[str, Plan | PlanError] = {}
    for other in answer.others:
        if other.mesh != answer.plan.mesh:
            found.setdefault(f"mesh {'×'.join(map(str, other.mesh.sizes))}", other)
    for name in EXPERTS:
        if name not in (answer.wanted.expert, answer.plan.name):
            found[name] = _expert(answer.graph, answer.topology, replace(answer.wanted, pins=()), name)
    return found


def _expert(graph: Graph, topology: Topology, wanted: Wanted, name: str) -> Plan | PlanError:
    """The expert's plan, or why there is none."""
    try:
        return _plans(graph, topology, replace(wanted, expert=name, seconds=min(wanted.seconds, BRIEF)))[0]
    except PlanError as error:
        return error


def _plans(graph: Graph, topology: Topology, wanted: Wanted) -> list[Plan]:
    pins = [pin for text in wanted.pins for pin in read_pin(text, graph)]
    found = plans(
        graph, topology, memory=wanted.memory, pins=pins, expert=wanted.expert, meshes=_meshes(graph, topology, pins),
        backend=wanted.backend, seconds=wanted.seconds,
    )  # fmt: skip
    return [replace(plan, recompute=wanted.recompute, parts=wanted.parts) for plan in found]


def _meshes(graph: Graph, topology: Topology, pins: Sequence[Pin]) -> list[Mesh] | None:
    """The meshes that the pins allow; None for all that the search tries."""
    return meshes_for(meshes(topology, AXES), pins, graph) if pins else None


def _ways(
    graph: Graph, topology: Topology, wanted: Wanted, leaner: Mapping[str, Callable[[], Graph]]
) -> dict[str, Callable[[], Plan]]:
    """Searches with one constraint less, by the change that the user would make."""
    brief = replace(wanted, seconds=min(wanted.seconds, BRIEF))

    def search(other: Wanted, graph: Callable[[], Graph] = lambda: graph) -> Callable[[], Plan]:
        return lambda: _plans(graph(), topology, other)[0]

    ways = {
        f"without --pin {pin}": search(replace(brief, pins=wanted.pins[:n] + wanted.pins[n + 1 :]))
        for n, pin in enumerate(wanted.pins)
    }
    if wanted.expert:
        ways[f"without --expert {wanted.expert}"] = search(replace(brief, expert=""))
    return ways | {f"with {words}": search(brief, step) for words, step in leaner.items()}


def _relaxed(error: Infeasible, ways: Mapping[str, Callable[[], Plan]]) -> Infeasible:
    """`error`, extended by the result of each of the `ways`."""
    found = []
    for words, way in ways.items():
        try:
            cost = way().estimate
        except PlanError:
            continue
        found.append(f"{words} ({duration(cost.step_seconds)} per step, {size_text(cost.peak_bytes)} per device)")
    if not ways:
        return error
    advice = f"a plan fits {' or '.join(found)}" if found else f"no plan fits {' or '.join(ways)} either"
    return Infeasible(f"{error}; {advice}", error.least, error.rows, error.options)
