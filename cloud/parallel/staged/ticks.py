"""A pipeline-parallel step on one device: the ticks of its stage, the sums with other devices, the update."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from cloud.parallel.staged.holdings import Holdings
from cloud.parallel.staged.packing import Flats, alike, empty, laid
from cloud.parallel.staged.programs import Programs
from cloud.parallel.staged.schedule import Schedule
from cloud.parallel.staged.sharing import Shared
from cloud.train.stepping.step import StepOptions

__all__ = ["PASSES", "OnDevice"]

PASSES = "forward", "backward"
"""Names of the scopes in which stages compute, which compiled programs keep."""

_LAX: Any = jax.lax

Value: TypeAlias = Callable[[int], Any]
"""Number of an argument of the line that is not a parameter -> its value for one microbatch."""

Entering: TypeAlias = Callable[[Any], Value]
"""Number of a microbatch -> its values."""


@dataclass(frozen=True, eq=False)
class OnDevice:
    """`(held, common, batch) -> (held, common, sums)` inside `shard_map` over the axes "stage" and "data". `shared`:
    the planned stages if each has several devices: constraints then define how values are sharded over the axis
    "tensor"."""

    programs: Programs
    shared: Shared | None
    holdings: Holdings
    schedule: Schedule
    options: StepOptions
    replicas: int

    def __call__(self, held: Any, common: Any, batch: Any) -> tuple[Any, Any, Any]:
        """The step of one stage and replica: its vectors [1, n], its rows of the batch."""
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
        after = {part: laid(flats, self.width) for part, flats in after.items()}
        return jax.tree.map(lambda a: a[None], after), {**common, "step": common["step"] + 1}, sums

    @property
    def width(self) -> int:
        """Devices of a stage and replica."""
        return 1 if self.shared is None else self.shared.width

    def _gradients(self, stage: Any, held: Any, common: Any, batch: Any) -> tuple[Flats, Any]:
        """For this device's stage and rows: gradients of the loss's sum, and the sums."""
        table = self.schedule
        nowhere = np.full((table.ticks, 1), -1, np.int32)
        forward, backward = (np.asarray(rows, np.int32) for rows in (table.forward, table.backward))
        rows = forward, backward, np.hstack([nowhere, forward[:, :-1]]), np.hstack([backward[:, 1:], nowhere])
        tick = partial(self._tick, stage, held["params"], self._entering(common, batch))
        inputs = max(table.kept(s) for s in range(table.stages))
        waiting = max(table.waiting(s) for s in range(table.stages))
        begin = (
            laid(empty(self.holdings.trained_sizes, self.width), self.width),
            jnp.zeros(len(self.programs.sums), jnp.float32),
            self._rings(self.programs.sizes, inputs), self._rings(self.programs.gradient_sizes, waiting),
        )  # fmt: skip
        (gradients, sums, _, _), _ = jax.lax.scan(lambda carry, row: (tick(carry, row), None), begin, rows)
        return gradients, sums

    def _tick(self, stage: Any, params: Flats, entering: Entering, carry: Any, row: Any) -> Any:
        gradients, sums, inputs, waiting = carry
        f, b, comes, returns = (numbers[stage] for numbers in row)
        with jax.named_scope(PASSES[0]):
            y = self._switch(stage, f, self._forward, params, entering(f), _taken(inputs, f))
        with jax.named_scope(PASSES[1]):
            gx, gradients, made = self._switch(
                stage, b, self._backward, params, entering(b), _taken(inputs, b), _taken(waiting, b), gradients
            )
        after = [(s, s + 1) for s in range(self.schedule.stages - 1)]
        arrived = {key: _LAX.ppermute(v, "stage", after) for key, v in y.items()}
        returned = {key: _LAX.ppermute(v, "stage", [(t, s) for s, t in after]) for key, v in gx.items()}
        kept = _stored(inputs, comes, arrived), _stored(waiting, returns, returned)
        return gradients, sums + made, *(laid(ring, self.width) for ring in kept)

    def _switch(self, stage: Any, number: Any, compute: Callable[..., Any], *values: Any) -> Any:
        """The branch of this device's stage, or the one that does nothing if there is no microbatch."""
        kinds = sorted(set(self.programs.kinds))
        branch = np.array([kinds.index(kind) for kind in self.programs.kinds])
        params, entering, *arrays = values
        computes = [partial(compute, kind) for kind in [*kinds, None]]
        return jax.lax.switch(
            jnp.where(number >= 0, jnp.asarray(branch)[stage], len(kinds)),
            [lambda p, a, c=c: c(p, entering, *a) for c in computes], params, arrays,
        )  # fmt: skip

    def _forward(self, stage: int | None, params: Flats, entering: Value, x: Flats) -> Flats:
        """The last stage has nothing to send: its forward pass is part of its backward."""
        if stage is None or stage == self.schedule.stages - 1:
            return laid(empty(self.programs.sizes, self.width), self.width)
        came = self.programs.stages[stage].came.unpack(x)
        y = self._compute.forward(stage, self.holdings.params(stage, params), self._outside(stage, entering), came)
        return laid(self.programs.stages[stage].goes.pack(y, self.programs.sizes), self.width)

    def _backward(
        self, stage: int | None, params: Flats, entering: Value, x: Flats, gradient: Flats, before: Flats
    ) -> tuple[Flats, Flats, Any]:
        sizes = self.programs.gradient_sizes
        if stage is None:
            return laid(empty(sizes, self.width), self.width), before, jnp.zeros(len(self.programs.sums), jnp.float32)
        about = self.programs.stages[stage]
        own, back, sums = self._compute.backward(
            stage, self.holdings.params(stage, params), self._outside(stage, entering),
            about.came.unpack(x), about.goes.floats.unpack(gradient),
        )  # fmt: skip
        after = jax.tree.map(jnp.add, before, self.holdings.packed_gradients(stage, own))
        return laid(about.came.floats.pack(back, sizes), self.width), laid(after, self.width), sums

    @property
    def _compute(self) -> Programs | Shared:
        return self.programs if self.shared is None else self.shared

    def _outside(self, stage: int, entering: Value) -> list[Any]:
        return [entering(i) for i in self.programs.outside(stage)]

    def _entering(self, common: Any, batch: Any) -> Entering:
        """For each microbatch, the inputs of a stage from outside."""
        microbatches, first = self.schedule.microbatches, self.programs.rest
        state = jax.tree.leaves(common["state"])
        parts = [jnp.moveaxis(a.reshape(-1, microbatches, *a.shape[1:]), 1, 0) for a in jax.tree.leaves(batch)]
        parts = [alike(a, self.width) for a in parts]
        key = jax.random.fold_in(jax.random.key(self.options.seed), common["step"])

        def of(microbatch: Any) -> Value:
            def value(i: int) -> Any:
                place = i - first
                if place < len(state):
                    return state[place]
                if place < len(state) + len(parts):
                    part = jax.lax.dynamic_index_in_dim(parts[place - len(state)], microbatch, keepdims=False)
                    return alike(part, self.width)
                folded = jax.random.fold_in(key, microbatch + 2)
                return folded if self.replicas == 1 else jax.random.fold_in(folded, jax.lax.axis_index("data"))

            return value

        return of

    def _rings(self, sizes: Mapping[str, int], depth: int) -> Flats:
        """Buffers for this many vectors of crossing values."""
        one = empty(sizes, self.width)
        return laid({key: jnp.zeros((depth, *v.shape), v.dtype) for key, v in one.items()}, self.width)

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


def _taken(ring: Flats, number: Any) -> Flats:
    """Buffers kept for microbatches, which arrive and finish in order: the index is the number modulo the depth."""
    return {d: jax.lax.dynamic_index_in_dim(v, number % len(v), keepdims=False) for d, v in ring.items()}


def _stored(ring: Flats, number: Any, new: Flats) -> Flats:
    def at(kept: Any, value: Any) -> Any:
        place = number % len(kept)
        value = jnp.where(number >= 0, value, jax.lax.dynamic_index_in_dim(kept, place, keepdims=False))
        return jax.lax.dynamic_update_index_in_dim(kept, value, place, 0)

    return {dtype: at(ring[dtype], value) for dtype, value in new.items()}
