"""One model on one topology: every expert's plan, pipeline parallelism, and ours, each compiled and read back.

Where a contender does not fit, or memory stands in the way of a cheaper plan, it computes a part of its forward pass
again in its backward pass, the smaller part first, and the best of these programs counts: experts do so too.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.parallel.models import MODELS
from benchmarks.parallel.models.model import Model
from cloud.errors import PlanError
from cloud.parallel.checking import compilers
from cloud.parallel.checking.check import Measured, measure
from cloud.parallel.graph import Graph
from cloud.parallel.plan import Plan
from cloud.parallel.running.apply import apply
from cloud.parallel.searching.choose import Checked, checked, different
from cloud.parallel.searching.expert import EXPERTS
from cloud.parallel.searching.search import plans
from cloud.parallel.staged.staging import choose_stages
from cloud.parallel.topology import Topology
from cloud.parallel.tracing.trace import trace
from cloud.train.stepping.step import StepOptions, TrainState

__all__ = ["CONTENDERS", "Contest", "Entry"]

CONTENDERS = (*EXPERTS, "pipeline", "searched", "ours")
"""`searched` is what the planner finds by itself and likes best; `ours` the best, as compiled, of the few that it likes
best among what it found and the experts' plans."""

SECONDS = 120.0
"""For each search."""
SHARES = (0.0, 0.5, 1.0)
"""Of the forward pass, computed again."""


@dataclass(frozen=True)
class Entry:
    """A contender's figures: seconds and bytes of one device. `said_*`: the planner's predictions. `picked`: whose plan
    ours is. `error`: why there is no such plan, the figures then being 0."""

    contender: str
    mesh: tuple[int, ...] = ()
    regather: bool = False
    recompute: float = 0.0
    said_step: float = 0.0
    said_compute: float = 0.0
    said_peak: int = 0
    said_moved: int = 0
    step: float = 0.0
    compute: float = 0.0
    exposed: float = 0.0
    peak: int = 0
    moved: int = 0
    fits: bool = False
    crowded: bool = False
    search_seconds: float = 0.0
    compile_seconds: float = 0.0
    picked: str = ""
    error: str = ""

    @property
    def rank(self) -> tuple[bool, bool, float]:
        """What there is comes first, of that what fits, of that the quickest."""
        return not self.step, not self.fits, self.step

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        return asdict(self)


class Contest:
    """`model` and `place`: names of `MODELS` and of a topology. `backend`: "gpu" or "cpu", whose compiler is asked."""

    def __init__(self, model: str, place: str, backend: str = "gpu") -> None:
        self.topology, self.backend = Topology.named(place), backend
        self.models = {share: MODELS[model]().recomputed(share) for share in SHARES}
        gpu = backend == "gpu"
        self.compiler = compilers.gpu(self.topology) if gpu else compilers.cpu(self.topology.size)
        self.graphs: dict[float, Graph] = {}
        self.found: dict[tuple[str, float], list[Plan]] = {}
        self.read: dict[Any, Checked] = {}
        self.searching = 0.0

    def entries(self, contenders: tuple[str, ...] = CONTENDERS) -> Iterator[Entry]:
        """Of each contender."""
        for name in contenders:
            found: list[Entry] = []
            for share in SHARES if name != "pipeline" else (1.0,):  # which computes again as it is
                try:
                    found.append(self._entry(name, share))
                except PlanError as error:
                    found.append(Entry(name, recompute=share, error=str(error)))
                last = found[-1]
                if (last.fits and not last.crowded) or "has no plan for this step" in last.error:
                    break
            yield min(found, key=lambda entry: entry.rank)

    def _entry(self, name: str, share: float) -> Entry:
        if name == "pipeline":
            return self._pipeline(self.models[0.0])
        start = time.monotonic()
        plan = self._plans(name, share)[0]
        searching = time.monotonic() - start
        best = replace(self._checked(plan, share), plan=plan) if name != "ours" else self._ours(share)
        said, read = best.plan.estimate, best.measured
        return replace(
            _read(name, best.plan.mesh.sizes, read, best.fits), regather=best.plan.regather, recompute=share,
            said_step=said.step_seconds, said_compute=said.compute_seconds, said_peak=said.peak_bytes,
            said_moved=sum(one.bytes * one.times for one in said.collectives), crowded=plan.estimate.crowded,
            search_seconds=searching,
            compile_seconds=best.seconds, picked=best.plan.name,
        )  # fmt: skip

    def _ours(self, share: float) -> Checked:
        found = []
        for name in ("searched", *EXPERTS):
            try:
                found += self._plans(name, share)[: None if name == "searched" else 1]
            except PlanError:
                continue
        chosen = checked(different(found), lambda plan: self._checked(plan, share).measured, self.topology.memory)
        return replace(chosen[0], seconds=sum(self._checked(one.plan, share).seconds for one in chosen))

    def _plans(self, name: str, share: float) -> list[Plan]:
        if name == "ours":
            name = "searched"
        if share not in self.graphs:
            self.graphs[share] = trace(self.models[share].step, self.models[share].state, self.models[share].batch)
        if (name, share) not in self.found:
            expert = name if name in EXPERTS else ""
            found = plans(self.graphs[share], self.topology, expert=expert, backend=self.backend, seconds=SECONDS)
            self.found[name, share] = [replace(plan, name=name, recompute=share) for plan in found]
        return self.found[name, share]

    def _checked(self, plan: Plan, share: float) -> Checked:
        """A plan compiled, once."""
        key = share, plan.mesh, plan.entering, plan.ops, plan.regather
        if key not in self.read:
            start, model = time.monotonic(), self.models[share]
            about = model.state, model.batch
            results = jax.eval_shape(model.step, *about)
            applied = apply(self.graphs[share], plan, self.topology, about, results, self.compiler.devices)
            read = measure(self.compiler.compile(applied.lower()), plan.mesh, self.topology)
            self.read[key] = Checked(plan, read, read.peak_bytes <= self.topology.memory, time.monotonic() - start)
        return self.read[key]

    def _pipeline(self, model: Model) -> Entry:
        """The pipeline-parallel plan of the lowest estimate."""
        start, given = time.monotonic(), model.state
        state = TrainState(given["params"], given["extra"], given["slots"], jax.eval_shape(lambda: jnp.int32(0)))

        def sums(*given: Any) -> tuple[Any, Any]:
            found, extra = model.loss_sums(*given)
            return {"loss": found["loss"], "examples": found["count"]}, extra

        choice = choose_stages(sums, state, model.batch, self.topology, backend=self.backend, seconds=SECONDS)
        if choice is None:
            raise PlanError("there is no pipeline of this step")
        searching, start = time.monotonic() - start, time.monotonic()
        step = choice.pipelined(sums, model.optimizer, StepOptions(), state, model.batch, self.compiler.devices)
        read, said = choice.measured(step, self.compiler, self.topology), choice.estimate
        entry = _read("pipeline", choice.mesh.sizes, read, read.peak_bytes <= self.topology.memory)
        return replace(
            entry, said_step=said.step_seconds, said_compute=said.compute_seconds, said_peak=said.peak_bytes,
            said_moved=sum(one.bytes * one.times for one in said.collectives), search_seconds=searching,
            compile_seconds=time.monotonic() - start, picked=f"{choice.schedule}, {choice.microbatches} microbatches",
        )  # fmt: skip


def _read(name: str, mesh: tuple[int, ...], read: Measured, fits: bool) -> Entry:
    return Entry(
        name, mesh, step=read.step_seconds, compute=read.compute_seconds, exposed=read.exposed_seconds,
        peak=read.peak_bytes, moved=sum(read.bytes.values()), fits=fits,
    )  # fmt: skip
