"""Plans chosen by what compilers make of them: the few that look best are compiled, read back and compared.

No estimate knows how a compiler fuses, so that of plans a few per cent apart it may prefer the wrong one. Compiling
takes seconds, training hours.
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
"""So many plans are compiled, of those said to take at most this times the seconds of the best."""


@dataclass(frozen=True)
class Checked:
    """A compiled plan: what its program would cost, whether that fits, and the seconds it took to compile."""

    plan: Plan
    measured: Measured
    fits: bool
    seconds: float


def choose(graph: Graph, topology: Topology, arguments: Sequence[Any], results: Any, compiler: Compiler,
           most: int = FEW, **options: Any) -> list[Checked]:  # fmt: skip
    """The `most` best of `candidates` as `compiler` makes them, best first. `arguments`, `results`: as `apply` takes
    them; `options`: those of `search.plans`. Raises `PlanError`, `Infeasible` where nothing fits."""

    def measured(plan: Plan) -> Measured:
        applied = apply(graph, plan, topology, arguments, results, compiler.devices)
        return measure(compiler.compile(applied.lower()), plan.mesh, topology)

    found = candidates(graph, topology, backend=compiler.name, **options)
    return checked(found, measured, options.get("memory") or topology.memory, most)


def candidates(graph: Graph, topology: Topology, *, experts: Iterable[str] = tuple(EXPERTS),
               **options: Any) -> list[Plan]:  # fmt: skip
    """What is found on every mesh, and the best that meets each expert's demands, cheapest first, none twice.
    `options`: those of `search.plans`. Raises `Infeasible` where nothing fits, `PlanError` where nothing was found."""
    found = plans(graph, topology, **options)
    for expert in experts:
        try:
            found.append(plans(graph, topology, expert=expert, **options)[0])
        except PlanError:  # no such plan for this step, or none that fits
            continue
    return different(found)


def different(plans: Iterable[Plan]) -> list[Plan]:
    """Cheapest first; of plans that do the same the first."""
    found: dict[Any, Plan] = {}
    for plan in plans:
        found.setdefault((plan.mesh, plan.entering, plan.ops, plan.regather, plan.recompute), plan)
    return sorted(found.values(), key=lambda plan: plan.estimate.step_seconds)


def checked(
    plans: Sequence[Plan], measured: Callable[[Plan], Measured], limit: float, most: int = FEW
) -> list[Checked]:
    """The cheapest `most` of `plans` (cheapest first) as compiled, those that fit within `limit` bytes first, by their
    seconds. `measured`: compiles a plan and reads it back. Where none of them fits, the others are compiled, one by
    one, until one does. Raises `Infeasible` where none does."""
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
            f"expected a plan that compiles to {size_text(limit)} a device; the least takes"
            f" {size_text(least)}: allow more memory or devices, a smaller batch, or recomputation", least, (),
        )  # fmt: skip
    return sorted(found, key=lambda one: (not one.fits, one.measured.step_seconds))
