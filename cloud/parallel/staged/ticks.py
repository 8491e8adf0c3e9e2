"""What one device of a pipeline does in a step: the ticks of its stage, the sums with others, the update."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cloud.parallel.staged.holdings import Holdings
from cloud.parallel.staged.packing import Flats, empty
from cloud.parallel.staged.programs import Entering, Programs
from cloud.parallel.staged.schedule import Schedule
from cloud.train.step import StepOptions

__all__ = ["OnDevice"]

_LAX: Any = jax.lax


@dataclass(frozen=True, eq=False)
class OnDevice:
    """`(held, common, batch) -> (held, common, sums)` inside `shard_map` over the axes "stage" and "data"."""

    programs: Programs
    holdings: Holdings
    schedule: Schedule
    options: StepOptions
    replicas: int

    def __call__(self, held: Any, common: Any, batch: Any) -> tuple[Any, Any, Any]:
        """Of one device of the mesh: its stage's vectors [1, n], its rows of the batch."""
        held = jax.tree.map(lambda a: a[0], held)
        stage = jax.lax.axis_index("stage")
        gradients, sums = self._gradients(stage, held, common, batch)
        gradients, sums = self._summed(stage, gradients, sums)
        named = dict(zip(self.programs.sums, sums, strict=True))
        gradients = {dtype: (g / named["examples"]).astype(g.dtype) for dtype, g in gradients.items()}
        if self.options.clip is not None:
            gradients = self._clipped(stage, gradients, self.options.clip)
        update = [partial(self.holdings.updated, s, self.options) for s in range(self.schedule.stages)]
        after = jax.lax.switch(stage, update, held, gradients, common["step"], named["loss"] / named["examples"])
        return jax.tree.map(lambda a: a[None], after), {**common, "step": common["step"] + 1}, sums

    def _gradients(self, stage: Any, held: Any, common: Any, batch: Any) -> tuple[Flats, Any]:
        """Of this device's stage and rows: gradients of the loss's sum, and the sums."""
        table = self.schedule
        nowhere = np.full((table.ticks, 1), -1, np.int32)
        forward, backward = (np.asarray(rows, np.int32) for rows in (table.forward, table.backward))
        rows = forward, backward, np.hstack([nowhere, forward[:, :-1]]), np.hstack([backward[:, 1:], nowhere])
        tick = partial(self._tick, stage, held["params"], self._entering(common, batch))
        inputs = max(table.kept(s) for s in range(table.stages))
        waiting = max(table.waiting(s) for s in range(table.stages))
        begin = (
            empty(self.holdings.trained_sizes), jnp.zeros(len(self.programs.sums), jnp.float32),
            _rings(self.programs.sizes, inputs), _rings(self.programs.gradient_sizes, waiting),
        )  # fmt: skip
        (gradients, sums, _, _), _ = jax.lax.scan(lambda carry, row: (tick(carry, row), None), begin, rows)
        return gradients, sums

    def _tick(self, stage: Any, params: Flats, entering: Callable[[Any], Entering], carry: Any, row: Any) -> Any:
        gradients, sums, inputs, waiting = carry
        f, b, comes, returns = (numbers[stage] for numbers in row)
        y = self._switch(stage, f, self._forward, params, entering(f), _taken(inputs, f))
        gx, gradients, made = self._switch(
            stage, b, self._backward, params, entering(b), _taken(inputs, b), _taken(waiting, b), gradients
        )
        after = [(s, s + 1) for s in range(self.schedule.stages - 1)]
        arrived = {dtype: _LAX.ppermute(v, "stage", after) for dtype, v in y.items()}
        returned = {dtype: _LAX.ppermute(v, "stage", [(t, s) for s, t in after]) for dtype, v in gx.items()}
        return gradients, sums + made, _stored(inputs, comes, arrived), _stored(waiting, returns, returned)

    def _switch(self, stage: Any, number: Any, compute: Callable[..., Any], *values: Any) -> Any:
        """The branch of this device's stage, or the one that does nothing where there is no microbatch."""
        kinds = sorted(set(self.programs.kinds))
        branch = np.array([kinds.index(kind) for kind in self.programs.kinds])
        params, entering, *arrays = values
        computes = [partial(compute, kind) for kind in [*kinds, None]]
        return jax.lax.switch(
            jnp.where(number >= 0, jnp.asarray(branch)[stage], len(kinds)),
            [lambda p, a, c=c: c(p, entering, *a) for c in computes], params, arrays,
        )  # fmt: skip

    def _forward(self, stage: int | None, params: Flats, entering: Entering, x: Flats) -> Flats:
        """The last stage has nothing to send: its forward pass is part of its backward."""
        if stage is None or stage == self.schedule.stages - 1:
            return self.programs.nothing()[0]
        return self.programs.forward(stage, self.holdings.params(stage, params), entering, x)

    def _backward(
        self, stage: int | None, params: Flats, entering: Entering, x: Flats, gradient: Flats, before: Flats
    ) -> tuple[Flats, Flats, Any]:
        if stage is None:
            _, back, sums = self.programs.nothing()
            return back, before, sums
        arrays = self.holdings.params(stage, params)
        own, back, sums = self.programs.backward(stage, arrays, entering, x, gradient)
        return back, jax.tree.map(jnp.add, before, self.holdings.packed_gradients(stage, own)), sums

    def _entering(self, common: Any, batch: Any) -> Callable[[Any], Entering]:
        """For each microbatch: what enters a stage from outside."""
        microbatches, first = self.schedule.microbatches, self.programs.rest
        state = jax.tree.leaves(common["state"])
        parts = [jnp.moveaxis(a.reshape(-1, microbatches, *a.shape[1:]), 1, 0) for a in jax.tree.leaves(batch)]
        key = jax.random.fold_in(jax.random.key(self.options.seed), common["step"])

        def of(microbatch: Any) -> Entering:
            def value(i: int) -> Any:
                place = i - first
                if place < len(state):
                    return state[place]
                if place < len(state) + len(parts):
                    return jax.lax.dynamic_index_in_dim(parts[place - len(state)], microbatch, keepdims=False)
                folded = jax.random.fold_in(key, microbatch + 2)
                return folded if self.replicas == 1 else jax.random.fold_in(folded, jax.lax.axis_index("data"))

            return value

        return of

    def _summed(self, stage: Any, gradients: Flats, sums: Any) -> tuple[Flats, Any]:
        if self.replicas > 1:
            gradients = {dtype: _LAX.psum(g, "data") for dtype, g in gradients.items()}
        if self.schedule.stages > 1 and self.holdings.shared.leaves:
            own = [partial(self.holdings.shared_of, s) for s in range(self.schedule.stages)]
            shared = {d: _LAX.psum(g, "stage") for d, g in jax.lax.switch(stage, own, gradients).items()}
            into = [partial(self.holdings.with_shared, s) for s in range(self.schedule.stages)]
            gradients = jax.lax.switch(stage, into, gradients, shared)
        return gradients, _LAX.psum(sums, ("stage", "data"))

    def _clipped(self, stage: Any, gradients: Flats, most: float) -> Flats:
        squares = [partial(self.holdings.squares, s) for s in range(self.schedule.stages)]
        norm = jnp.sqrt(_LAX.psum(jax.lax.switch(stage, squares, gradients), "stage"))
        factor = jnp.where(norm > most, most / norm, 1.0)
        return {dtype: (g * factor).astype(g.dtype) for dtype, g in gradients.items()}


def _rings(sizes: Mapping[str, int], depth: int) -> Flats:
    return {dtype: jnp.zeros((depth, size), dtype) for dtype, size in sizes.items()}


def _taken(ring: Flats, number: Any) -> Flats:
    """What is kept of a microbatch: they come and go in order, so that its number modulo the depth is its place."""
    return {d: jax.lax.dynamic_index_in_dim(v, number % len(v), keepdims=False) for d, v in ring.items()}


def _stored(ring: Flats, number: Any, new: Flats) -> Flats:
    def at(kept: Any, value: Any) -> Any:
        place = number % len(kept)
        value = jnp.where(number >= 0, value, jax.lax.dynamic_index_in_dim(kept, place, keepdims=False))
        return jax.lax.dynamic_update_index_in_dim(kept, value, place, 0)

    return {dtype: at(ring[dtype], value) for dtype, value in new.items()}
