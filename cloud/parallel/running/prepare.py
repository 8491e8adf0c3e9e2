"""From a step written for one device to one that runs on many: trace, plan, apply."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from cloud.parallel.checking.compilers import Compiler
from cloud.parallel.plan import Plan
from cloud.parallel.running.apply import Applied, apply
from cloud.parallel.searching.choose import choose
from cloud.parallel.searching.search import search
from cloud.parallel.topology import Topology
from cloud.parallel.tracing.trace import trace

__all__ = ["prepare"]


def prepare(step: Callable[..., Any], state: Any, batch: Any, *, plan: Plan | None = None,
            topology: Topology | None = None, devices: Sequence[Any] | None = None, compiled: int = 0,
            **options: Any) -> Applied:  # fmt: skip
    """`step(state, batch) -> (state, metrics)` with `plan` applied, or the best plan found with `options` (those of
    `search.plans`). `state`, `batch`: trees of arrays or shapes. `topology`: of the devices; by default the table entry
    for their kind. `compiled`: the number of plans with the best estimates, experts' among them, to compile; the best
    compiled one is taken (`choose`). 0: the estimate decides. Raises `PlanError` for a plan that is not for this step
    or these devices."""
    devices = devices if devices is not None else jax.devices()
    topology = topology or Topology.of_devices(devices)
    graph, about = trace(step, state, batch), ((state, batch), jax.eval_shape(step, state, batch))
    backend = "cpu" if devices[0].platform == "cpu" else "gpu"
    if plan is None and compiled:
        plan = choose(graph, topology, *about, Compiler(backend, tuple(devices)), compiled, **options)[0].plan
    elif plan is None:
        plan = search(graph, topology, **{"backend": backend, **options})
    return apply(graph, plan, topology, *about, devices)
