"""Choice of a plan by compiled programs: the few with the best estimates are compiled, parsed and compared.

No estimate knows how a compiler fuses, so it may prefer the wrong one of two plans that are a few per cent apart, and
its peak of memory may be too low. Compiling takes seconds, training hours. By default as many plans are compiled as a
bound of seconds allows.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax

from cloud.errors import PlanError
from cloud.parallel.checking.check import Measured, measure
from cloud.parallel.checking.compilers import Compiler
from cloud.parallel.graph import Graph
from cloud.parallel.plan import Figures, Plan
from cloud.parallel.running.apply import Applied, apply
from cloud.parallel.searching.expert import EXPERTS
from cloud.parallel.searching.search import LEAN, leanest, plans, usable
from cloud.parallel.solving.solve import Infeasible
from cloud.parallel.topology import Topology
from converter.report.html import size_text

__all__ = ["EQUAL", "FEW", "SLACK", "Checked", "Choice", "Reader", "checked", "choose",
           "different", "fitting", "smallest", "with_experts", "worth"]  # fmt: skip

FEW, SLACK = 4, 1.3
"""The most plans that are compiled; each one's predicted time is at most this multiple of the best one's."""

EQUAL = 0.005
"""Costs that differ by at most this share are equal: of such plans the one that needs least memory is taken."""

DATA = *LEAN, "zero1"
"""Experts that split nothing but the rows of the batch, and what lies between steps."""

ERR = 2.0
"""How far two estimates may be wrong against each other: computing was estimated up to 1.5 times too high (small
kernels of a loop) and too low (convolutions)."""

EACH = 0.005
"""Seconds that compilers take for an operator of the step, until a first plan was compiled; 0.001 to 0.1 were seen."""

ROUNDS = 2
"""How often the search is repeated with less memory because no compiled plan fits."""


@dataclass(frozen=True)
class Checked:
    """A compiled plan: the cost of its program, whether it fits, and the seconds it took to compile."""

    plan: Plan
    measured: Measured
    fits: bool
    seconds: float
    applied: Applied | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Choice:
    """The plan to use, with its compiled figures if it was compiled. `compiled`: all compiled plans, best first;
    `others`: further plans, cheapest first; `said`: what was compiled, or why nothing was, one phrase."""

    plan: Plan
    said: str
    compiled: tuple[Checked, ...] = ()
    others: tuple[Plan, ...] = ()

    @property
    def applied(self) -> Applied | None:
        """The step of the chosen plan if that was compiled: with the running backend its program need not be compiled
        again."""
        return self.compiled[0].applied if self.compiled else None


@dataclass(frozen=True)
class Reader:
    """Applies plans to the variants of one step (`graphs`, by their parts), compiles them and reads the programs.
    `arguments`, `results`: those of `apply`. `memory`: bytes of a device, by default the topology's."""

    graphs: Mapping[int, Graph]
    topology: Topology
    arguments: Sequence[Any]
    results: Any
    compiler: Compiler
    memory: float | None = None

    @property
    def limit(self) -> float:
        """Bytes that a program may need."""
        return self.memory or self.topology.memory

    def read(self, plan: Plan) -> Checked:
        """The plan's program. Raises `PlanError` if it cannot be compiled or read."""
        start, graph = time.monotonic(), self.graphs[plan.parts]
        applied = apply(graph, plan, self.topology, self.arguments, self.results, self.compiler.devices)
        try:
            program = self.compiler.compile(applied.lower())
        except jax.errors.JaxRuntimeError as error:
            raise PlanError(f"the compiler refused the plan {plan.name!r}: {str(error).splitlines()[0]}") from error
        found = measure(program, plan.mesh, self.topology)
        plan = replace(plan, compiled=Figures(found.step_seconds, found.peak_bytes))
        fits = found.peak_bytes <= self.limit
        return Checked(plan, found, fits, time.monotonic() - start, replace(applied, plan=plan))

    def guess(self, plan: Plan) -> float:
        """Seconds to compile, before anything was compiled."""
        return EACH * len(self.graphs[plan.parts].ops)


def choose(graphs: Mapping[int, Graph], topology: Topology, arguments: Sequence[Any], results: Any,
           compiler: Compiler | str, *, compiled: int | None = None, seconds: float = 60.0, running: bool = False,
           experts: Iterable[str] = tuple(EXPERTS), **options: Any) -> Choice:  # fmt: skip
    """The best plan of all variants of a step (`graphs`, by their parts). `arguments`, `results`: those of `apply`.

    `compiler`: reads the target back; a text says why there is none, and the estimates decide. `compiled`: the most
    plans to compile, 0 for none, however long that takes. None: at most `FEW`, begun only if they are expected to end
    within `seconds`. `running`: the compiler is that of the devices that will run the
    step, so that one program is needed anyway. `seconds`: for all searches together. `options`: of `search.plans`; a
    `backend` that is not the compiler's leaves the choice to the estimates. If compiled programs need more memory than
    estimated, plans are searched again with that much less. Raises `PlanError`; `Infeasible` if nothing fits."""
    begun, name = time.monotonic(), options.pop("backend", "gpu" if isinstance(compiler, str) else compiler.name)
    if not isinstance(compiler, str) and name != compiler.name:
        compiler = f"the plan is for the compiler {name!r}, and this one is {compiler.name!r}"
    reads = compiled != 0 and not isinstance(compiler, str)
    options |= {"backend": name}
    experts = () if options.get("expert") else experts
    end = begun + seconds
    found = _searched(graphs, topology, seconds / 2 if reads else seconds, options | {"read": reads})
    if not reads or isinstance(compiler, str):
        why = compiler if isinstance(compiler, str) else "none was asked for"
        return Choice(smallest(found, _told), f"not compiled: {why}", (), tuple(found))
    options |= {"read": True}
    found = with_experts(found, graphs, topology, time.monotonic() + (end - time.monotonic()) / 4, experts, options)
    reader = Reader(graphs, topology, arguments, results, compiler, options.get("memory"))
    until = end if compiled is None else float("inf")
    most = FEW if compiled is None else compiled

    def again(less: float, left: float) -> list[Plan]:
        return _searched(graphs, topology, min(left, seconds / 2), options | {"memory": less})

    return fitting(reader, found, again, most, until, running)


def fitting(
    reader: Reader, found: Sequence[Plan], again: Callable[[float, float], Sequence[Plan]], most: int, until: float,
    running: bool,
) -> Choice:  # fmt: skip
    """`read_back`. If no program fits because programs need more memory than estimated, plans are searched again, at
    most `ROUNDS` times: `again(memory, seconds)`, with less memory by what the estimates missed."""
    for _ in range(ROUNDS):
        try:
            return read_back(reader, found, most, until, running)
        except Infeasible as error:
            less = _less(error, reader.limit)
            left = until - time.monotonic()
            if less is None or left < 1.0:
                raise
            found = again(less, left / 2)
    return read_back(reader, found, most, until, running)


def with_experts(
    found: Sequence[Plan], graphs: Mapping[int, Graph], topology: Topology, end: float, experts: Iterable[str],
    options: Mapping[str, Any],
) -> list[Plan]:  # fmt: skip
    """`found` and the experts' plans, cheapest first, without duplicates. No expert's search begins after `end`; the
    experts that are found quickly come first."""
    named = sorted(experts, key=lambda name: name not in DATA)
    found, todo = list(found), [(name, parts) for name in named for parts in graphs]
    for number, (expert, parts) in enumerate(todo):
        left = end - time.monotonic()
        if left <= 0:
            break
        try:
            given = {**options, "seconds": left / (len(todo) - number)}
            best = plans(graphs[parts], topology, expert=expert, **given)[0]
            found.append(replace(best, parts=parts))
        except PlanError:  # the expert has no plan for this step, or none that fits
            continue
    return different(found)


def different(plans: Iterable[Plan]) -> list[Plan]:
    """Sort by cost, and keep the first of equal plans."""
    found: dict[Any, Plan] = {}
    for plan in plans:
        found.setdefault((plan.parts, plan.mesh, plan.entering, plan.ops, plan.regather, plan.recompute), plan)
    return sorted(found.values(), key=lambda plan: plan.estimate.step_seconds)


def smallest(found: Sequence[Any], figures: Callable[[Any], tuple[float, float]]) -> Any:
    """Of those whose seconds are equal to the least (`EQUAL`), the one with the least bytes; both by `figures`."""
    least = min(figures(one)[0] for one in found)
    return min((one for one in found if figures(one)[0] <= (1 + EQUAL) * least), key=lambda one: figures(one)[::-1])


def checked(
    plans: Sequence[Plan], measured: Callable[[Plan], Measured], limit: float, most: int = FEW
) -> list[Checked]:
    """Those of `plans` (cheapest first) that are `worth` it, compiled: first the best that fits within `limit` bytes
    (`smallest`), then the others that fit, by seconds. `measured`: compiles a plan and parses the program. If none
    fits, further plans are compiled one by one until one does. Raises `Infeasible` if none does."""
    found: list[Checked] = []
    near, rest = _first(plans, most)
    for number, plan in enumerate([*near, *rest]):
        if number >= len(near) and any(one.fits for one in found):
            break
        start = time.monotonic()
        read = measured(plan)
        found.append(Checked(plan, read, read.peak_bytes <= limit, time.monotonic() - start))
    return _ordered(found, limit)


def read_back(reader: Reader, plans: Sequence[Plan], most: int, until: float, running: bool) -> Choice:
    """As `checked`, without plans that the compiler refuses. A plan that is expected to be compiled only after `until`
    is not begun, but for the first if one program is needed anyway (`running`)."""
    near, rest = _first(plans, most)
    begun, found, failed = time.monotonic(), list[Checked](), list[PlanError]()
    longest, cut = 0.0, False
    for number, plan in enumerate([*near, *rest]):
        if number >= len(near) and any(one.fits for one in found):
            break
        free = running and not found and not failed
        if not free and time.monotonic() + (longest or reader.guess(plan)) > until:
            cut = True
            break
        start = time.monotonic()
        try:
            found.append(reader.read(plan))
        except PlanError as error:
            failed.append(error)
        longest = max(longest, time.monotonic() - start)
    if not found:
        why = str(failed[0]) if failed else f"that may take {reader.guess(plans[0]):.0f} s"
        sure = [one for one in plans if _told(one)[1] <= usable(reader.graphs[one.parts], reader.limit, False)]
        why += "" if sure else "; its peak may be higher than estimated and not fit"
        return Choice(smallest(sure or plans, _told), f"not compiled: {why}", (), tuple(plans))
    ordered = _ordered(found, reader.limit)
    count = f"{len(found)} of the {max(len(near), len(found))} best plans" if cut else f"the {len(found)} best plans"
    said = f"compiled {count} in {time.monotonic() - begun:.1f} s"
    read = {id(one.plan.ops) for one in ordered}
    return Choice(ordered[0].plan, said, tuple(ordered), tuple(one for one in plans if id(one.ops) not in read))


def worth(plans: Sequence[Plan], most: int) -> list[Plan]:
    """At most `most` of `plans` (cheapest first), in the order in which they are compiled, because the time may end
    before all are. The cheapest is first. The cheapest with data parallelism (`DATA`) is second, if within `ERR`: its
    kernels are those of one device, and the estimate of a plan that splits otherwise or repeats work may be wrong
    (`mamba`: estimates of 91 ms compile to 61 with data parallelism and to 89 without). Then, within `SLACK`, the best
    of each origin (an expert or the search, for one number of parts), which differ most; at last other plans with data
    parallelism, which lie so close together that only programs tell them apart."""
    best = plans[0].estimate.step_seconds
    data = [plan for plan in plans if plan.name in DATA and plan.estimate.step_seconds <= ERR * best]
    first = [plans[0], *(data[:1] if plans[0].name not in DATA else [])][:most]
    near = [plan for plan in plans if plan.estimate.step_seconds <= SLACK * best]
    others = [plan for plan in near if not any(plan is one for one in first)][: most - len(first)]
    seen, ranks = Counter((plan.name, plan.parts) for plan in first), list[int]()
    for plan in others:
        ranks.append(seen[plan.name, plan.parts])
        seen[plan.name, plan.parts] += 1
    ordered = first + [others[number] for number in sorted(range(len(others)), key=lambda number: ranks[number])]
    return (ordered + [plan for plan in data if not any(plan is one for one in ordered)])[:most]


def _first(plans: Sequence[Plan], most: int) -> tuple[list[Plan], list[Plan]]:
    """Those that are `worth` it, and the others."""
    near = worth(plans, most)
    return near, [plan for plan in plans if not any(plan is one for one in near)]


def _ordered(found: Sequence[Checked], limit: float) -> list[Checked]:
    fitting = [one for one in found if one.fits]
    if not fitting:
        least = min(found, key=lambda one: one.measured.peak_bytes)
        need = least.measured.peak_bytes
        error = Infeasible(
            f"expected a plan that compiles to at most {size_text(limit)} per device; the least takes"
            f" {size_text(need)}: allow more memory or devices, a smaller batch, or recomputation", need, (),
        )  # fmt: skip
        error.over = max(one.measured.peak_bytes / max(one.plan.estimate.peak_bytes, 1) for one in found)
        raise error
    best = smallest(fitting, lambda one: (one.measured.step_seconds, one.measured.peak_bytes))
    return sorted(found, key=lambda one: (one is not best, not one.fits, one.measured.step_seconds))


def _less(error: Infeasible, limit: float) -> float | None:
    """The memory to search with if compiled programs need `over` times what was estimated; None if that is not why."""
    return limit / error.over if error.over > 1 else None


def _told(plan: Plan) -> tuple[float, float]:
    return plan.estimate.step_seconds, plan.estimate.peak_bytes


def _searched(
    graphs: Mapping[int, Graph], topology: Topology, seconds: float, options: Mapping[str, Any]
) -> list[Plan]:
    """The plans of all variants, which share the seconds, cheapest first."""
    end, found, failed = time.monotonic() + seconds, list[Plan](), list[PlanError]()
    for number, (parts, graph) in enumerate(graphs.items()):
        left = (end - time.monotonic()) / (len(graphs) - number)
        if found and left <= 0:
            break
        try:
            given = {**options, "seconds": max(left, 1.0)}
            found += [replace(plan, parts=parts) for plan in plans(graph, topology, **given)]
        except PlanError as error:
            failed.append(error)
    if not found:
        raise leanest(failed)
    return different(found)
