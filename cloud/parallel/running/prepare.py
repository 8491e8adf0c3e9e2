"""From a step written for one device to one that runs on many: trace, plan, apply."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax

from cloud.errors import PlanError
from cloud.parallel.checking.compilers import Compiler
from cloud.parallel.plan import Plan
from cloud.parallel.running.apply import Applied, apply
from cloud.parallel.searching.choose import choose
from cloud.parallel.searching.search import search
from cloud.parallel.solving.solve import Infeasible
from cloud.parallel.topology import Topology
from cloud.parallel.tracing.trace import digest, trace, variants

__all__ = ["prepare"]


def prepare(step: Callable[..., Any], state: Any, batch: Any, *, plan: Plan | None = None,
            topology: Topology | None = None, devices: Sequence[Any] | None = None, compiled: int = 0,
            seconds: float = 60.0, **options: Any) -> Applied:  # fmt: skip
    """`step(state, batch) -> (state, metrics)` with `plan` applied, or the best plan found with `options` (those of
    `search.plans`). `state`, `batch`: trees of arrays or shapes. `topology`: of the devices; by default the table entry
    for their kind. `compiled`: the number of plans with the best estimates, experts' among them, to compile; the best
    compiled one is taken (`choose`). 0: the estimate decides. `seconds`: for all searches together. A step with loops
    that add up over the batch is planned in each of its `variants`. Raises `PlanError` for a plan that is not for this
    step, this topology or these devices."""
    devices = devices if devices is not None else jax.devices()
    topology = topology or Topology.of_devices(devices)
    about = (state, batch), jax.eval_shape(step, state, batch)
    if plan is not None:
        graph = trace(step, state, batch, parts=plan.parts)
        if plan.graph == digest(graph) and plan.topology != topology.digest:
            raise PlanError(
                f"the plan was made for another topology (digest {plan.topology[:8]}) than {topology.name} "
                f"({topology.digest[:8]}): give that topology, or make a new plan"
            )
        return apply(graph, plan, topology, *about, devices)
    backend = "cpu" if devices[0].platform == "cpu" else "gpu"
    graphs = variants(step, state, batch, sizes=topology.shares)
    found: list[tuple[float, int, Plan]] = []
    failed: list[PlanError] = []
    for parts, graph in graphs.items():
        given = {"seconds": seconds / len(graphs), **options}
        try:
            if compiled:
                best = choose(graph, topology, *about, Compiler(backend, tuple(devices)), compiled, **given)[0]
                found.append((best.measured.step_seconds, parts, best.plan))
            else:
                plan = search(graph, topology, **{"backend": backend, **given})
                found.append((plan.estimate.step_seconds, parts, plan))
        except PlanError as error:
            failed.append(error)
    if not found:
        raise min(failed, key=lambda error: error.least if isinstance(error, Infeasible) else 0.0)
    _, parts, plan = min(found, key=lambda one: one[:2])
    return apply(graphs[parts], replace(plan, parts=parts), topology, *about, devices)
