"""Plans chosen by what compilers make of them: the few that look best are compiled, read back and compared.

No estimate knows how a compiler fuses, so that of plans a few per cent apart it may prefer the wrong one. Compiling
takes seconds, training hours.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from cloud.errors import PlanError
from cloud.parallel.check import Measured
from cloud.parallel.expert import EXPERTS
from cloud.parallel.graph import Graph
from cloud.parallel.plan import Plan
from cloud.parallel.search import plans
from cloud.parallel.solve import Infeasible
from cloud.parallel.topology import Topology

__all__ = ["Checked", "candidates", "checked"]

SLACK = 1.3
"""Plans said to take more than this times the best's seconds are not compiled."""


@dataclass(frozen=True)
class Checked:
    """A compiled plan: what its program would cost, whether that fits, and the seconds it took to compile."""

    plan: Plan
    measured: Measured
    fits: bool
    seconds: float


def candidates(graph: Graph, topology: Topology, *, experts: Iterable[str] = tuple(EXPERTS),
               **options: Any) -> list[Plan]:  # fmt: skip
    """The plans searched for on every mesh and the best that meets each expert's demands, cheapest first, none twice.
    `options`: those of `search.plans`. Raises `Infeasible` where nothing fits, `PlanError` where nothing was found."""
    found: list[Plan] = []
    short: list[PlanError] = []
    for expert in ("", *experts):
        try:
            found += plans(graph, topology, expert=expert, **options)[: None if not expert else 1]
        except PlanError as error:  # no such plan for this step, or it does not fit: others may
            short.append(error)
    if not found:
        raise next((error for error in short if isinstance(error, Infeasible)), short[0])
    different = {(plan.mesh, plan.entering, plan.ops, plan.regather): plan for plan in reversed(found)}
    return sorted(different.values(), key=lambda plan: plan.estimate.step_seconds)


def checked(plans: Sequence[Plan], measured: Callable[[Plan], Measured], limit: float, most: int = 3) -> list[Checked]:
    """The cheapest `most` of the plans (cheapest first), as compiled: those that fit within `limit` bytes first, the
    cheapest first. `measured`: compiles a plan and reads it back. Where none fits, the others are compiled one by one
    until one does. Raises `Infeasible` where none does."""
    near = [plan for plan in plans[:most] if plan.estimate.step_seconds <= SLACK * plans[0].estimate.step_seconds]
    found = [_checked(plan, measured, limit) for plan in near]
    for plan in plans[len(near) :]:
        if any(one.fits for one in found):
            break
        found.append(_checked(plan, measured, limit))
    if not any(one.fits for one in found):
        least = min(one.measured.peak_bytes for one in found)
        text = f"expected a plan that compiles to {limit / 2**30:.2f} GiB a device; the least has {least / 2**30:.2f} GiB"
        raise Infeasible(f"{text}: allow more memory, a smaller batch or recomputation", least, ())
    return sorted(found, key=lambda one: (not one.fits, one.measured.step_seconds))


def _checked(plan: Plan, measured: Callable[[Plan], Measured], limit: float) -> Checked:
    start = time.monotonic()
    read = measured(plan)
    done = replace(plan, name=plan.name)
    return Checked(done, read, read.peak_bytes <= limit, time.monotonic() - start)
