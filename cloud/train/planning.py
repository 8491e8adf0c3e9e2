"""A configured run as the planner meets it: the pure step and the shapes it takes; a plan held against a compiler."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import jax

from cloud.parallel import compilers
from cloud.parallel.apply import apply
from cloud.parallel.check import Report, check
from cloud.parallel.graph import Graph
from cloud.parallel.plan import Plan
from cloud.parallel.topology import Topology
from cloud.train.config import Config
from cloud.train.feed import feed_of
from cloud.train.job import job_of
from cloud.train.step import Step

__all__ = ["checked", "step_of", "topology_of"]


def topology_of(name: str) -> Topology:
    """The topology of that name or file; of "" the devices that are here. Raises `PlanError`."""
    return Topology.named(name) if name else Topology.of_devices(jax.devices())


def step_of(config: Config) -> tuple[Step, Any, Any]:
    """The pure step, and its state and a whole batch as `jax.ShapeDtypeStruct`s."""
    job = job_of(config)
    feed = feed_of(job.examples.train, job.trainer.task.inputs, size=job.batch, last="pad", seed=0)
    state = jax.eval_shape(job.trainer.whole_state)
    return job.trainer.pure_step, state, jax.eval_shape(lambda: dict(next(feed.epoch(0))))


def checked(
    graph: Graph, plan: Plan, topology: Topology, step: Step, arguments: Sequence[Any], compiler: Literal["cpu", "gpu"]
) -> Report:
    """The plan applied to the step, compiled for as many devices, and compared with what was predicted."""
    used = compilers.cpu(topology.size) if compiler == "cpu" else compilers.gpu(topology)
    applied = apply(graph, plan, topology, arguments, jax.eval_shape(step, *arguments), used.devices)
    return check(applied, plan.estimate, plan.mesh, topology, used)
