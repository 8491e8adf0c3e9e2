"""One model on one topology: every expert's plan, a pipeline, and ours, each compiled and read back."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.parallel.models import MODELS
from cloud.errors import PlanError
from cloud.parallel import compilers
from cloud.parallel.apply import apply
from cloud.parallel.check import Measured, measure
from cloud.parallel.expert import EXPERTS
from cloud.parallel.pipeline import Pipelined
from cloud.parallel.plan import Mesh, Plan
from cloud.parallel.search import plans
from cloud.parallel.topology import Topology
from cloud.parallel.trace import trace
from cloud.train.step import StepOptions, TrainState

__all__ = ["CONTENDERS", "Contest", "Entry"]

CONTENDERS = (*EXPERTS, "pipeline", "searched")
"""Searched is the planner's own, chosen by its estimate; of these and the experts' ours is the best as compiled."""

STAGES = {"h100x8": (4, 2), "2x4-slow": (2, 4), "4-small": (4, 1)}
"""(stages, replicas) of the pipeline on each topology, stages over the slow links."""

MICROBATCHES = 8


@dataclass(frozen=True)
class Entry:
    """A contender's figures: seconds and bytes of one device. `said_*`: what the planner foretold. `error`: why there
    is no such plan, the figures then being 0."""

    contender: str
    mesh: tuple[int, ...] = ()
    regather: bool = False
    recompute: float = 0.0
    said_step: float = 0.0
    said_peak: int = 0
    said_moved: int = 0
    step: float = 0.0
    compute: float = 0.0
    exposed: float = 0.0
    peak: int = 0
    moved: int = 0
    fits: bool = False
    search_seconds: float = 0.0
    compile_seconds: float = 0.0
    error: str = ""

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        return asdict(self)


class Contest:
    """`model` and `place`: names of `MODELS` and of a topology. `backend`: "gpu" or "cpu", whose compiler is asked."""

    def __init__(self, model: str, place: str, backend: str = "gpu") -> None:
        self.model, self.topology, self.backend = MODELS[model](), Topology.named(place), backend
        gpu = backend == "gpu"
        self.compiler = compilers.gpu(self.topology) if gpu else compilers.cpu(self.topology.size)

    @cached_property
    def graph(self) -> Any:
        """The step, traced."""
        return trace(self.model.step, self.model.state, self.model.batch)

    def entries(self, contenders: tuple[str, ...] = CONTENDERS) -> Iterator[Entry]:
        """Of each contender."""
        for name in contenders:
            try:
                yield self._pipeline() if name == "pipeline" else self._planned(name)
            except PlanError as error:
                yield Entry(name, error=str(error))

    def _planned(self, name: str) -> Entry:
        start = time.monotonic()
        found = plans(self.graph, self.topology, expert=name if name in EXPERTS else "", backend=self.backend)
        return self.compiled(replace(found[0], name=name), time.monotonic() - start)

    def compiled(self, plan: Plan, searched: float) -> Entry:
        """A plan's entry."""
        start = time.monotonic()
        about = self.model.state, self.model.batch
        results = jax.eval_shape(self.model.step, *about)
        applied = apply(self.graph, plan, self.topology, about, results, self.compiler.devices)
        read = measure(self.compiler.compile(applied.lower()), plan.mesh, self.topology)
        said = plan.estimate
        entry = self._read(plan.name, plan.mesh, read, start)
        return replace(
            entry, regather=plan.regather, recompute=plan.recompute, said_step=said.step_seconds,
            said_peak=said.peak_bytes, said_moved=sum(one.bytes * one.times for one in said.collectives),
            search_seconds=searched,
        )  # fmt: skip

    def _pipeline(self) -> Entry:
        start = time.monotonic()
        stages, replicas = STAGES.get(self.topology.name, (self.topology.size, 1))
        levels = (0, len(self.topology.levels) - 1)
        given = self.model.state
        state = TrainState(given["params"], given["extra"], given["slots"], jax.eval_shape(lambda: jnp.int32(0)))

        def sums(*given: Any) -> tuple[Any, Any]:
            found, extra = self.model.loss_sums(*given)
            return {"loss": found["loss"], "examples": found["count"]}, extra

        piped = Pipelined(
            sums, self.model.optimizer, StepOptions(), state, self.model.batch, stages=stages,
            microbatches=MICROBATCHES, replicas=replicas, devices=self.compiler.devices,
        )  # fmt: skip
        mesh = Mesh((stages, replicas), levels)
        entry = self._read("pipeline", mesh, measure(self.compiler.compile(piped.lower()), mesh, self.topology), start)
        return replace(entry, said_moved=sum(one.bytes * one.times for one in piped.collectives))

    def _read(self, name: str, mesh: Mesh, read: Measured, start: float) -> Entry:
        return Entry(
            name, mesh.sizes, step=read.step_seconds, compute=read.compute_seconds, exposed=read.exposed_seconds,
            peak=read.peak_bytes, moved=sum(read.bytes.values()), fits=read.peak_bytes <= self.topology.memory,
            compile_seconds=time.monotonic() - start,
        )  # fmt: skip
