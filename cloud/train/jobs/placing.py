"""The placement of a configured run's step when the planner decides."""

from __future__ import annotations

import jax

from cloud.errors import PlanError
from cloud.parallel.compressed.method import Compress
from cloud.parallel.explaining import planfile
from cloud.parallel.topology import Topology
from cloud.parallel.tracing.trace import trace
from cloud.train.jobs.config import Config, read_size
from cloud.train.placing.placement import Placement, Prepare, packing
from cloud.train.placing.planned import Auto
from cloud.train.stepping.step import Batch, Recipe, TrainState

__all__ = ["placing"]


def placing(config: Config) -> Prepare:
    """The placement by [parallel] with mode = "auto"; files are read when it is called, before the first step."""
    said = config.parallel

    def placed(recipe: Recipe, state: TrainState, batch: Batch) -> Placement:
        saved = planfile.read(config.path(said.plan)) if said.plan else None
        auto = Auto(
            topology=Topology.named(said.topology) if said.topology else None,
            memory=read_size(said.memory, "parallel.memory") if said.memory else None,
            plan=saved.plan if saved else None,
            compiled=said.compiled,
            compress=Compress.named(said.compress) if said.compress else None,
        )
        try:
            return auto(recipe, state, batch)
        except PlanError:
            if saved is not None:  # to say what differs
                step, _ = packing(recipe.step(saved.plan.recompute))
                topology = auto.topology or Topology.of_devices(jax.devices())
                saved.check(trace(step, state, batch, parts=saved.plan.parts), topology)
            raise

    return placed
