"""From a step written for one device to one that runs on many: trace, plan, apply."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax

from cloud.errors import PlanError
from cloud.parallel.checking.compilers import running
from cloud.parallel.plan import Plan
from cloud.parallel.running.apply import Applied, apply
from cloud.parallel.searching.choose import choose
from cloud.parallel.topology import Topology
from cloud.parallel.tracing.trace import digest, trace, variants

__all__ = ["prepare"]


def prepare(step: Callable[..., Any], state: Any, batch: Any, *, plan: Plan | None = None,
            topology: Topology | None = None, devices: Sequence[Any] | None = None, compiled: int | None = None,
            seconds: float = 60.0, **options: Any) -> Applied:  # fmt: skip
    """`step(state, batch) -> (state, metrics)` with `plan` applied, or the best plan found with `options` (those of
    `search.plans`). `state`, `batch`: trees of arrays or shapes. `topology`: of the devices; by default the table entry
    for their kind. `compiled`: how many of the plans with the best estimates, experts' among them, are compiled to take
    the best program, however long that takes; 0: the estimate decides; None: at most four, within seconds (`choose`).
    With several processes None is 0, because each would decide by its own clock. `seconds`: for all searches together.
    A step with loops that add up over the batch is planned in each of its `variants`. Raises `PlanError` for a plan
    that is not for this step, this topology or these devices."""
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
    graphs = variants(step, state, batch, sizes=topology.shares)
    alone = compiled is not None or jax.process_count() == 1
    compiler = running(devices) if alone else "several processes would each decide by their own clock"
    best = choose(
        graphs, topology, *about, compiler, compiled=compiled, seconds=seconds, running=True, **options
    )  # fmt: skip
    applied = best.applied or apply(graphs[best.plan.parts], best.plan, topology, *about, devices)
    return replace(applied, said=best.said)
