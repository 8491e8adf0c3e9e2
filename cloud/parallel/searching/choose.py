"""Choice of a plan by compiled programs: the few with the best estimates are compiled, parsed and compared.

No estimate knows how a compiler fuses, so it may prefer the wrong one of two plans that are a few per cent apart.
Compiling takes seconds, training hours.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from cloud.errors import PlanError
from cloud.parallel.checking.check import Measured, measure
from cloud.parallel.checking.compilers import Compiler
from cloud.parallel.graph import Graph
from cloud.parallel.plan import Plan
from cloud.parallel.running.apply import apply
from cloud.parallel.searching.expert import EXPERTS
from cloud.parallel.searching.search import plans
from cloud.parallel.solving.solve import Infeasible
from cloud.parallel.topology import Topology
from converter.report.html import size_text

__all__ = ["FEW", "SLACK", "Checked", "candidates", "checked", "choose", "different"]

FEW, SLACK = 4, 1.3
"""The most plans that are compiled; each one's predicted time is at most this multiple of the best one's."""


@dataclass(frozen=True)
class Checked:
    """A compiled plan: the cost of its program, whether it fits, and the seconds it took to compile."""

    plan: Plan
    measured: Measured
    fits: bool
    seconds: float


def choose(graph: Graph, topology: Topology, arguments: Sequence[Any], results: Any, compiler: Compiler,
           most: int = FEW, **options: Any) -> list[Checked]:  # fmt: skip
    """The `most` best of `candidates` as compiled by `compiler`, best first. `arguments`, `results`: those of `apply`;
    `options`: those of `search.plans`. Raises `PlanError`; `Infeasible` if nothing fits."""

    def measured(plan: Plan) -> Measured:
        applied = apply(graph, plan, topology, arguments, results, compiler.devices)
        return measure(compiler.compile(applied.lower()), plan.mesh, topology)

    found = candidates(graph, topology, backend=compiler.name, **options)
    return checked(found, measured, options.get("memory") or topology.memory, most)


def candidates(graph: Graph, topology: Topology, *, experts: Iterable[str] = tuple(EXPERTS),
               **options: Any) -> list[Plan]:  # fmt: skip
    """The plan found on every mesh, and the best plan of each expert, cheapest first, without duplicates. `options`:
    those of `search.plans`. Raises `Infeasible` if nothing fits, `PlanError` if nothing was found."""
    found = plans(graph, topology, **options)
    for expert in experts:
        try:
            found.append(plans(graph, topology, expert=expert, **options)[0])
        except PlanError:  # the expert has no plan for this step, or none that fits
            continue
    return different(found)


def different(plans: Iterable[Plan]) -> list[Plan]:
    """Sort by cost, and keep the first of equal plans."""
    found: dict[Any, Plan] = {}
    for plan in plans:
        found.setdefault((plan.mesh, plan.entering, plan.ops, plan.regather, plan.recompute), plan)
    return sorted(found.values(), key=lambda plan: plan.estimate.step_seconds)


def checked(
    plans: Sequence[Plan], measured: Callable[[Plan], Measured], limit: float, most: int = FEW
) -> list[Checked]:
    """The cheapest `most` of `plans` (cheapest first), compiled: those that fit within `limit` bytes first, ordered by
    seconds. `measured`: compiles a plan and parses the program. If none of them fits, the others are compiled one by
    one until one does. Raises `Infeasible` if none does."""
    found: list[Checked] = []
    for number, plan in enumerate(plans):
        near = number < most and plan.estimate.step_seconds <= SLACK * plans[0].estimate.step_seconds
        if not near and any(one.fits for one in found):
            break
        start = time.monotonic()
        read = measured(plan)
        found.append(Checked(plan, read, read.peak_bytes <= limit, time.monotonic() - start))
    if not any(one.fits for one in found):
        least = min(one.measured.peak_bytes for one in found)
        raise Infeasible(
            f"expected a plan that compiles to at most {size_text(limit)} per device; the least takes"
            f" {size_text(least)}: allow more memory or devices, a smaller batch, or recomputation", least, (),
        )  # fmt: skip
    return sorted(found, key=lambda one: (not one.fits, one.measured.step_seconds))
