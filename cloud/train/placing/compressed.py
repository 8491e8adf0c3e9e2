"""Data parallelism whose gradients cross slow links compressed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from cloud._jax import everywhere, rows_over, shaped
from cloud.errors import TrainError
from cloud.parallel.compressed.across import Across, arrays_of
from cloud.parallel.compressed.method import AUTO, METHODS, Compress
from cloud.parallel.compressed.price import Price, plain, priced
from cloud.parallel.topology import DEVICES, Topology
from cloud.parallel.tracing.trace import trace
from cloud.train.placing.placement import Jitted, digest, packing, spread
from cloud.train.stepping.freeze import parts, which_frozen
from cloud.train.stepping.step import Batch, Recipe, TrainState

__all__ = ["Compressed", "expected", "price_of", "topology_of", "weighed"]


def topology_of(how: Compress, count: int) -> Topology:
    """The topology that `how` names, of `count` devices, or that of the devices present. Raises TrainError."""
    given = how.topology
    found = Topology.of_devices(jax.devices()) if given is None else given
    found = Topology.named(found) if isinstance(found, str) else found
    if found.size != count:
        raise TrainError(f"compress: the topology {found.name} has {found.size} devices, this machine {count}")
    return found


class Compressed:
    """Every device holds the whole state but for the memory of the exchange, and computes its share of each batch's
    rows. Batches that cannot be divided evenly raise TrainError. `recipe`, `state`: as for `Prepare`."""

    def __init__(
        self, recipe: Recipe, state: TrainState, how: Compress, topology: Topology | None = None,
        devices: Sequence[Any] | None = None, seconds: Mapping[str, float] | None = None,
    ) -> None:  # fmt: skip
        """`seconds`: what the step was expected to take, for `facts`."""
        devices = jax.devices() if devices is None else devices
        trained, _ = parts(state.params, which_frozen(state.params, recipe.options.freeze))
        self.across = Across(how, how.mesh(topology or topology_of(how, len(devices))), trained, devices)
        self.ways, self._expected = len(devices), dict(seconds or {})
        whole, self._rows = everywhere(self.across.mesh), rows_over(self.across.mesh)
        self._memory = jax.eval_shape(self.across.memory)
        about = replace(state, memory=self._memory)
        self._places: TrainState = replace(
            jax.tree.map(lambda _: whole, about), memory=self.across.shardings()
        )  # fmt: skip
        self._jitted = Jitted(recipe.step(across=self.across), out_shardings=(self._places, whole))
        self._shapes = jax.tree.map(lambda a, at: shaped(a.shape, a.dtype, at), about, self._places)

    @property
    def facts(self) -> dict[str, Any]:
        """See `Placement`."""
        held = {name: [list(a.shape), str(a.dtype)] for name, a in self._memory.items()}
        about = {"strategy": "data parallel", "compress": str(self.across.how), "groups": self.across.groups,
                 "mesh": [self.across.groups, self.across.fast], "memory": held}  # fmt: skip
        return {"digest": digest(about), **about, **self._expected}

    def place(self, state: TrainState) -> TrainState:
        """See `Placement`. Memory of other groups is shared out anew (`Across.fitted`)."""
        placed: TrainState = jax.device_put(replace(state, memory=self.across.fitted(state.memory)), self._places)
        return placed

    def place_batch(self, batch: Batch) -> Batch:
        """See `Placement`."""
        return spread(batch, self._rows, self.ways)

    def step(self, state: TrainState, batch: Batch) -> tuple[TrainState, Any]:
        """See `Placement`."""
        return self._jitted(state, batch)

    def lower(self, batch: Batch) -> Any:
        """The step lowered for the mesh's devices, which need not be present. `batch`: shapes of all rows."""
        rows = jax.tree.map(lambda a: shaped(a.shape, a.dtype, self._rows), dict(batch))
        return self._jitted.lower(self._shapes, rows)

    def gather(self, state: TrainState) -> TrainState:
        """See `Placement`. The memory stays as it lies."""
        return state


def price_of(
    recipe: Recipe, state: TrainState, batch: Batch, how: Compress, topology: Topology, memory: float | None = None
) -> Price:
    """What compressing costs and saves for this step, "auto" as int8. Raises `PlanError` if data parallelism has no
    plan that fits."""
    how = replace(how, method=METHODS[0]) if how.method == AUTO else how
    step, _ = packing(recipe.step())
    graph = trace(step, replace(state, memory=None), dict(batch))
    trained, _ = parts(state.params, which_frozen(state.params, recipe.options.freeze))
    means = [a for a in jax.tree.leaves(state.state) if np.issubdtype(a.dtype, np.inexact)]
    return priced(
        graph, topology, how, plain(graph, topology, how, memory=memory), trained=arrays_of(trained), state=means,
        reduce_scatter=topology.device != DEVICES["cpu"][0],
    )  # fmt: skip


def weighed(recipe: Recipe, state: TrainState, batch: Batch, how: Compress) -> Compressed | None:
    """Data parallelism with compressed gradients if it is expected to be faster than with exact sums."""
    topology = topology_of(how, jax.device_count())
    price = price_of(recipe, state, batch, how, topology)
    return Compressed(recipe, state, price.how, topology, seconds=expected(price)) if price.pays else None


def expected(price: Price) -> dict[str, float]:
    """For `facts`."""
    return {"step_seconds": price.estimate.step_seconds, "exact_seconds": price.plan.estimate.step_seconds}
