"""`parallel="auto"`: the planner decides how a step is sharded over the devices present, or an earlier plan does."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

import jax
import numpy as np

from cloud._jax import rows_over
from cloud.errors import PlanError, TrainError, take_multiple
from cloud.parallel.compressed.method import AUTO, Compress
from cloud.parallel.compressed.price import Price
from cloud.parallel.compressed.telling import told
from cloud.parallel.explaining.notes import notes
from cloud.parallel.explaining.strategy import strategy
from cloud.parallel.plan import Estimate, Figures, Plan
from cloud.parallel.running.apply import Applied
from cloud.parallel.running.prepare import prepare
from cloud.parallel.searching.search import Pin
from cloud.parallel.solving.solve import Infeasible
from cloud.parallel.staged.staging import Staging, choose_stages
from cloud.parallel.topology import Topology
from cloud.train.ledger import Packed
from cloud.train.optim.thor import states_of
from cloud.train.placing.compressed import Compressed, expected, price_of
from cloud.train.placing.placement import Placement, digest, packing
from cloud.train.stepping.step import Batch, Recipe, Sums, TrainState
from converter.report.html import size_text

__all__ = ["Auto", "Planned", "Staged"]

SHARES = (0.25, 0.5, 0.75, 1.0)
"""Shares of the forward pass to recompute, tried in order if nothing fits with less."""

LEAST = 5.0
"""Seconds for a search although none are left, while nothing was found."""

SLOWER = 1.2
"""Pipeline parallelism takes up to this factor longer than estimated (0.98 to 1.15 times as compiled)."""


@dataclass(frozen=True)
class Auto:
    """Decides when shapes are known, at the first batch; an argument of `Trainer(parallel=...)`.

    `topology`: of the devices, by default from a table by their kind. `memory`: bytes per device, by default the
    topology's. `plan`: one made earlier for exactly this step. `pins`: constraints (see
    `cloud.parallel.searching.demands`). `seconds`: for all searches together. `pipelines`: whether to consider pipeline
    parallelism too. `compiled`: how many of the best plans, including the experts', are compiled to use the one with
    the best program; 0: the estimate decides; None: as many as the seconds allow, at most four (see `prepare`).
    `compress`: how gradients cross slow links (`cloud.parallel.compressed.method`): data parallelism with compressed
    gradients; with its method "auto", instead of the best plan where its estimate is lower.
    `said`: called with the decision, one sentence.

    If no plan fits, or memory prevents a cheaper one, larger and larger shares of the forward pass are recomputed, and
    the cheapest of these plans is used. Pipeline parallelism is used if its estimate is faster than the best plan by
    more than the factor by which it is slower than estimated (`SLOWER`), or if nothing else fits. Raises
    `Infeasible` if nothing fits.
    """

    topology: Topology | None = None
    memory: float | None = None
    plan: Plan | None = None
    pins: Sequence[Pin] = ()
    seconds: float = 60.0
    pipelines: bool = True
    compiled: int | None = None
    compress: Compress | None = None
    said: Callable[[str], None] | None = None

    def __post_init__(self) -> None:
        if self.compress is not None and (self.plan is not None or self.pins):
            raise TrainError("compress: expected neither a plan nor pins with it, which say what is exchanged")

    def __call__(self, recipe: Recipe, state: TrainState, batch: Batch) -> Placement:
        """See `cloud.train.placing.placement.Prepare`."""
        topology, devices = self.topology or Topology.of_devices(jax.devices()), jax.device_count()
        if topology.size != devices:
            raise PlanError(
                f"the topology {topology.name} has {topology.size} devices, this machine {devices}: name one of "
                "that size, or none for the devices present"
            )
        begun = time.monotonic()
        price = self._price(recipe, state, batch, topology)
        if price is not None and self.compress is not None and self.compress.method != AUTO:
            return self._compressed(recipe, state, price, topology)
        staged = self._stages(recipe, state, batch, topology)
        found: Planned | None = None
        try:
            found = self._plan(recipe, state, batch, topology, begun + self.seconds)
        except Infeasible:
            if staged is None and price is None:
                raise
        planned = inf if found is None else found.plan.figures.step_seconds
        best = inf if found is None else found.plan.estimate.step_seconds  # as the price, which is not compiled either
        best = min(best, inf if staged is None else SLOWER * staged.estimate.step_seconds)
        if price is not None and price.estimate.step_seconds < best:
            return self._compressed(recipe, state, price, topology)
        if staged is not None and SLOWER * staged.estimate.step_seconds < planned:
            self._say(_of_stages(staged))
            return Staged(recipe, state, batch, staged)
        assert found is not None
        self._say(_of_plan(found))
        return found

    def _price(self, recipe: Recipe, state: TrainState, batch: Batch, topology: Topology) -> Price | None:
        """What compressed gradients cost; None if they are not wanted or, for "auto", not possible."""
        how = self.compress
        if how is None:
            return None
        try:
            price = price_of(recipe, state, batch, how, topology, self.memory)
        except (PlanError, TrainError):
            if how.method != AUTO:
                raise
            return None
        limit = self.memory or topology.memory
        if price.estimate.peak_bytes <= limit:
            return price
        if how.method == AUTO:
            return None
        need = size_text(price.estimate.peak_bytes)
        raise PlanError(
            f"compress: data parallelism with {price.how} needs {need} per device, of {size_text(limit)}: use smaller "
            "batches, recompute more, or leave compress out"
        )

    def _compressed(self, recipe: Recipe, state: TrainState, price: Price, topology: Topology) -> Placement:
        self._say(told(price, topology))
        return Compressed(recipe, state, price.how, topology, seconds=expected(price))

    def _plan(self, recipe: Recipe, state: TrainState, batch: Batch, topology: Topology, end: float) -> Planned:
        asked = recipe.options.recompute if self.plan is None else self.plan.recompute
        options: dict[str, Any] = {"memory": self.memory, "pins": tuple(self.pins), "compiled": self.compiled}
        shares = [asked, *(share for share in SHARES if share > asked and self.plan is None)]
        found: list[Planned] = []
        for number, share in enumerate(shares):
            left = max(end - time.monotonic(), 0.0) / (len(shares) - number)
            if found and not left:
                break
            given = options | {"seconds": max(left, LEAST)} if self.plan is None else {"plan": self.plan}
            step, names = packing(recipe.step(share))
            try:
                found.append(Planned(prepare(step, state, batch, topology=topology, **given), names, share))
            except Infeasible:
                if not found and share == shares[-1]:
                    raise
            if found and not found[-1].plan.estimate.crowded:
                break
        return min(found, key=lambda one: one.plan.figures.step_seconds)

    def _stages(self, recipe: Recipe, state: TrainState, batch: Batch, topology: Topology) -> Staging | None:
        """The best pipeline parallelism; None if it is not wanted or not possible."""
        if not self.pipelines or self.plan is not None or self.pins or topology.size == 1 or not Staged.can(recipe):
            return None
        try:
            backend = "cpu" if jax.devices()[0].platform == "cpu" else "gpu"
            return choose_stages(
                recipe.objective.loss_sums,
                state,
                batch,
                topology,
                memory=self.memory,
                backend=backend,
                freeze=recipe.options.freeze,
                seconds=self.seconds / 3,
            )
        except PlanError:  # for example, rows depend on each other: such a step has no stages
            return None

    def _say(self, text: str) -> None:
        if self.said is not None:
            self.said(text)


class Planned:
    """A step sharded by a plan. `recompute`: share of the forward pass that is recomputed."""

    def __init__(self, applied: Applied, names: list[str], recompute: float) -> None:
        self.applied, self.recompute = applied, recompute
        self._names = names
        self.ways = int(np.prod(applied.plan.mesh.sizes))
        self._rows = rows_over(applied.mesh)
        self._parts: Any = jax.tree.structure(applied.shardings[1])
        self._exchange: Any = jax.jit(lambda batch: batch, out_shardings=applied.shardings[1])

    @property
    def plan(self) -> Plan:
        """The plan in use."""
        return self.applied.plan

    @property
    def facts(self) -> dict[str, Any]:
        """See `Placement`."""
        plan = self.plan
        about = {
            "strategy": strategy(self.applied.graph, plan), "mesh": list(plan.mesh.sizes), "regather": plan.regather,
            "recompute": self.recompute, "graph": plan.graph, "topology": plan.topology,
            **_figures(plan.estimate, plan.figures), "compiled": plan.compiled is not None,
        }  # fmt: skip
        return {"digest": digest([about, repr(plan.entering), repr(plan.ops)]), **about}

    def place(self, state: TrainState) -> TrainState:
        """See `Placement`."""
        placed: TrainState = self.applied.place(state)
        return placed

    def place_batch(self, batch: Batch) -> Batch:
        """See `Placement`. Each process provides its own rows; the plan determines which devices need them. A batch
        with other parts than the planned one (validation without weights of examples) has its rows over all devices."""
        processes, parts = jax.process_count(), jax.tree.structure(dict(batch))
        planned: bool = parts == self._parts
        if processes == 1 and not planned:
            spread: Batch = jax.device_put(dict(batch), self._rows)
            return spread
        if processes == 1:
            placed: Batch = self.applied.place_batch(dict(batch))
            return placed
        rows = len(batch["mask"]) * processes
        if rows % self.ways:
            raise TrainError(
                f"a batch of {rows} rows does not divide among {self.ways} devices of {processes} processes: "
                f"{take_multiple(rows, self.ways)}"
            )
        from_rows: Any = jax.make_array_from_process_local_data
        shared = jax.tree.map(lambda a: from_rows(self._rows, np.asarray(a)), dict(batch))
        exchanged: Batch = self._exchange(shared) if planned else shared
        return exchanged

    def step(self, state: TrainState, batch: Batch) -> tuple[TrainState, Sums | Packed]:
        """See `Placement`."""
        state, vector = self.applied.step(state, batch)
        return state, Packed(self._names, vector)

    def gather(self, state: TrainState) -> TrainState:
        """See `Placement`."""
        whole: TrainState = self.applied.gather(state)
        return whole


class Staged:
    """A step with pipeline parallelism, by `cloud.parallel.staged.pipeline`."""

    def __init__(self, recipe: Recipe, state: TrainState, batch: Batch, choice: Staging) -> None:
        self.choice, self.ways = choice, choice.replicas * choice.microbatches
        loss_sums = recipe.objective.loss_sums
        self._pipeline = choice.pipelined(loss_sums, recipe.optimizer, recipe.options, state, dict(batch))
        self.place: Any = self._pipeline.place
        self.place_batch: Any = self._pipeline.place_batch
        self.gather: Any = self._pipeline.gather
        self.step: Any = self._pipeline.step

    @property
    def facts(self) -> dict[str, Any]:
        """See `Placement`."""
        about = {"strategy": "pipeline", **self.choice.options, **_figures(self.choice.estimate, self.choice.estimate)}
        return {"digest": digest(about), **about}

    @staticmethod
    def can(recipe: Recipe) -> bool:
        """Whether pipeline parallelism supports everything that the recipe asks for. Not `thor`, whose state is
        not named after parameters, and which decides for all of them together."""
        options = recipe.options
        return (
            options.accumulate == 1 and not (options.recompute or options.gradient_norm)
            and recipe.objective.precision != "float16" and jax.process_count() == 1
            and not states_of(jax.eval_shape(recipe.optimizer.init, jax.eval_shape(recipe.objective.task.init)[0]))
        )  # fmt: skip


def _figures(about: Estimate, cost: Estimate | Figures) -> dict[str, Any]:
    return {
        "collectives": len(about.collectives), "step_seconds": cost.step_seconds, "peak_bytes": cost.peak_bytes,
        "state_bytes": about.state_bytes,
    }  # fmt: skip


def _of_plan(found: Planned) -> str:
    about = found.plan.estimate
    again = f", {found.recompute:.0%} of the forward pass recomputed" if found.recompute else ""
    sizes = " x ".join(map(str, found.plan.mesh.sizes))
    known = "".join(f"; {note}" for note in notes(found.applied.graph, found.plan))
    said = f"; {found.applied.said}" if found.applied.said else ""
    cost = _expected(found.plan.figures)
    return f"plan: mesh {sizes}, {len(about.collectives)} collectives{again}; {cost}{said}{known}"


def _of_stages(choice: Staging) -> str:
    stages = len(choice.stages) + 1
    shared = f" × {choice.tensor} by tensor parallelism" if choice.tensor > 1 else ""
    return (
        f"plan: {stages} stages of {choice.replicas} devices{shared}, {choice.microbatches} microbatches, "
        f"{choice.schedule}; {_expected(choice.estimate)}"
    )


def _expected(about: Estimate | Figures) -> str:
    return f"expected {1e3 * about.step_seconds:.3g} ms per step, {about.peak_bytes / 2**20:.0f} MiB per device"
