"""A plan as the user asks for it: searched with the user's constraints, compared with other plans and, if nothing
fits, an error that names the constraints to drop."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any

import jax

from cloud.errors import PlanError
from cloud.parallel.checking.compilers import reading
from cloud.parallel.explaining.pins import meshes_for, read_pin
from cloud.parallel.explaining.words import duration
from cloud.parallel.graph import Graph
from cloud.parallel.plan import Mesh, Plan
from cloud.parallel.searching.choose import FEW, Reader, different, fitting, smallest, with_experts
from cloud.parallel.searching.demands import Pin
from cloud.parallel.searching.expert import EXPERTS
from cloud.parallel.searching.search import AXES, LEAN, plans
from cloud.parallel.solving.solve import Infeasible
from cloud.parallel.topology import Topology, meshes
from converter.report.html import size_text

__all__ = ["Answer", "Wanted", "inquire", "rivals", "settle"]

BRIEF = 15.0
"""Seconds for the search of each plan that is only compared with the result."""

SEARCH = 0.7
"""Share of an inquiry's seconds for its search; the rest is for experts' plans."""

CUT = 0.9
"""A search that takes this share of its seconds was cut short, so that expert plans may be better."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """`memory`: bytes per device, None: the topology's. `expert`: one of `EXPERTS`, or "". `pins`: as `read_pin` reads
    them. `backend`: "gpu" or "cpu", whose compiler is predicted. `seconds`: for the solver. `recompute`: the share that
    the step was traced with, and `parts` those of its sums (`trace`), both recorded in the plan. `read`: as for
    `plans`."""

    memory: float | None = None
    expert: str = ""
    pins: tuple[str, ...] = ()
    backend: str = "gpu"
    seconds: float = 60.0
    recompute: float = 0.0
    parts: int = 1
    read: bool = False


@dataclass(frozen=True)
class Answer:
    """The best plan of a step, and those of other mesh shapes, best first. `said`: what was compiled to choose it, or
    why nothing was."""

    graph: Graph
    topology: Topology
    wanted: Wanted
    plan: Plan
    others: tuple[Plan, ...]
    said: str = ""

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
    the option that selects them. Of `wanted.seconds`, the search itself gets `SEARCH`. Raises `PlanError`; `Infeasible`
    names each constraint without which a plan fits."""
    begun, found, failed = time.monotonic(), list[Plan](), None
    given = replace(wanted, seconds=SEARCH * wanted.seconds)
    try:
        found = _plans(graph, topology, given)
    except Infeasible as error:
        raise _relaxed(error, _ways(graph, topology, wanted, leaner or {})) from error
    except PlanError as error:
        failed = error
    if not wanted.expert:
        names = tuple(EXPERTS) if time.monotonic() - begun > CUT * given.seconds else LEAN
        for number, name in enumerate(names):
            left = max(begun + wanted.seconds - time.monotonic(), 1.0) / (len(names) - number)
            expert = _expert(graph, topology, replace(wanted, seconds=left), name)
            found += [expert] if isinstance(expert, Plan) else []
    if not found:
        raise failed or PlanError("no plan was found")
    best, *others = sorted(found, key=lambda plan: plan.estimate.step_seconds)
    return Answer(graph, topology, wanted, best, tuple(others))


def settle(
    answers: Sequence[Answer], step: Callable[..., Any], arguments: Sequence[Any], compiled: int | None, end: float
) -> Answer:
    """The best of the `answers` for the variants of one step, as compiled if a compiler can read the target back.
    `compiled`: as for `choose`; `end`: of everything, by `time.monotonic`. If compiled programs need more memory than
    estimated, plans are searched again with that much less. Raises `Infeasible` if no program fits."""
    wanted, topology = answers[0].wanted, answers[0].topology
    of = {answer.wanted.parts: answer for answer in answers}
    found = different(plan for answer in answers for plan in (answer.plan, *answer.others))
    compiler = reading(topology, wanted.backend) if compiled != 0 else "none was asked for"
    if isinstance(compiler, str):
        best = smallest(found, lambda plan: (plan.estimate.step_seconds, plan.estimate.peak_bytes))
        return replace(_moved(of[best.parts], best), said=f"not compiled: {compiler}")
    graphs = {parts: answer.graph for parts, answer in of.items()}
    if not wanted.expert:
        pins = [pin for text in wanted.pins for pin in read_pin(text, answers[0].graph)]
        options = {"memory": wanted.memory, "backend": wanted.backend, "pins": pins, "read": True,
                   "meshes": _meshes(answers[0].graph, topology, pins)}  # fmt: skip
        experts = [name for name in EXPERTS if name not in LEAN]
        found = with_experts(found, graphs, topology, time.monotonic() + (end - time.monotonic()) / 4, experts, options)
        found = different(replace(plan, recompute=wanted.recompute) for plan in found)
    reader = Reader(graphs, topology, arguments, jax.eval_shape(step, *arguments), compiler, wanted.memory)
    most, until = (FEW, end) if compiled is None else (compiled, inf)

    def again(less: float, left: float) -> list[Plan]:
        share = min(left, wanted.seconds) / len(answers)
        given = [(each.graph, replace(each.wanted, memory=less, seconds=share)) for each in answers]
        return different(plan for graph, leaner in given for plan in _plans(graph, topology, leaner))

    choice = fitting(reader, found, again, most, until, False)
    return replace(_moved(of[choice.plan.parts], choice.plan), said=choice.said)


def _moved(answer: Answer, best: Plan) -> Answer:
    """The answer with another best plan of the same step."""
    others = different(plan for plan in (answer.plan, *answer.others) if plan.ops is not best.ops)
    return replace(answer, plan=best, others=tuple(others))


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
        backend=wanted.backend, seconds=wanted.seconds, read=wanted.read,
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
