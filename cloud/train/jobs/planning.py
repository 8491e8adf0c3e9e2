"""A configured run as the planner sees it: the pure step and its shapes; a plan compared with the compiler's result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import jax

from cloud.errors import PlanError
from cloud.parallel.checking import compilers
from cloud.parallel.checking.check import Report, check
from cloud.parallel.graph import Graph
from cloud.parallel.plan import Plan
from cloud.parallel.running.apply import apply
from cloud.parallel.staged.staging import Staging, choose_stages
from cloud.parallel.topology import Topology
from cloud.train.inputs.feed import feed_of
from cloud.train.jobs.config import Config
from cloud.train.jobs.job import Job, job_of
from cloud.train.placing.placement import packing
from cloud.train.placing.planned import Staged

__all__ = ["checked", "stages_of", "step_of", "topology_of"]


def topology_of(name: str) -> Topology:
    """The topology of that name or file; for "" the devices present. Raises `PlanError`."""
    return Topology.named(name) if name else Topology.of_devices(jax.devices())


def step_of(config: Config) -> tuple[Callable[..., Any], Any, Any]:
    """The step as the Trainer plans it, and its state and a whole batch as `jax.ShapeDtypeStruct`s."""
    job = job_of(config)
    return packing(job.trainer.pure_step)[0], *_shapes(job)


def _shapes(job: Job) -> tuple[Any, Any]:
    """The shapes of the state and of a whole batch."""
    feed = feed_of(job.examples.train, job.trainer.task.inputs, size=job.batch, last="pad", seed=0)
    return jax.eval_shape(job.trainer.whole_state), jax.eval_shape(lambda: dict(next(feed.epoch(0))))


def stages_of(config: Config, topology: Topology, memory: float | None = None) -> Staging | None:
    """The best pipeline-parallel plan for a run's step, None if there is none: see `choose_stages`."""
    job = job_of(config)
    if topology.size == 1 or not Staged.can(job.trainer.recipe):
        return None
    state, batch = _shapes(job)
    try:
        return choose_stages(
            job.trainer.objective.loss_sums, state, batch, topology, memory=memory, freeze=job.trainer.options.freeze
        )  # fmt: skip
    except PlanError:  # for example, its rows depend on each other
        return None


def checked(
    graph: Graph, plan: Plan, topology: Topology, step: Callable[..., Any], arguments: Sequence[Any],
    compiler: Literal["cpu", "gpu"],
) -> Report:  # fmt: skip
    """The plan applied to the step, compiled for that many devices, and compared with the prediction."""
    used = compilers.cpu(topology.size) if compiler == "cpu" else compilers.gpu(topology)
    applied = apply(graph, plan, topology, arguments, jax.eval_shape(step, *arguments), used.devices)
    return check(applied, plan.estimate, plan.mesh, topology, used)
