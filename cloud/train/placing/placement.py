"""Where a step runs: how state and batches are placed on devices, and the compiled step for that placement."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Protocol, TypeAlias

import jax
import jax.numpy as jnp

from cloud._jax import everywhere, rows_over
from cloud.errors import TrainError, take_multiple
from cloud.train.ledger import Packed
from cloud.train.stepping.step import Batch, Recipe, Step, Sums, TrainState

__all__ = ["Alone", "DataParallel", "Jitted", "Placement", "Prepare", "digest", "packing", "remembering", "spread"]


class Placement(Protocol):
    """A step on devices. Plans and pipeline parallelism implement it too.

    `ways`: into how many parts a batch's rows are split.
    """

    ways: int

    @property
    def facts(self) -> Mapping[str, Any]:
        """The plan in use as JSON data; empty without a plan."""

    def place(self, state: TrainState) -> TrainState:
        """A whole state in the form that `step` takes; `state` may be donated."""

    def place_batch(self, batch: Batch) -> Batch:
        """This process's rows of a batch in the form that `step` takes."""

    def step(self, state: TrainState, batch: Batch) -> tuple[TrainState, Sums | Packed]:
        """One step on placed values; `state` is donated. Returns without waiting for the device."""

    def gather(self, state: TrainState) -> TrainState:
        """The state with every array gathered, for evaluating, saving and exporting; nothing is donated."""


Prepare: TypeAlias = Callable[[Recipe, TrainState, Batch], Placement]
"""A recipe, and a state and a batch (all rows) as `jax.ShapeDtypeStruct`s -> a placement."""


class Alone:
    """One device, JAX's default one."""

    ways = 1
    facts: Mapping[str, Any] = MappingProxyType({})

    def __init__(self, step: Step) -> None:
        if (count := jax.process_count()) > 1:
            raise TrainError(f'{count} processes cannot train on one device: use parallel = "data" or "auto"')
        self.step = Jitted(step)
        self._copies = jax.default_backend() != "cpu"

    def place(self, state: TrainState) -> TrainState:
        """See `Placement`."""
        return state

    def place_batch(self, batch: Batch) -> Batch:
        """On the CPU a jitted call reads NumPy's arrays in place; on other devices the copy starts here."""
        placed: Batch = jax.device_put(batch) if self._copies else batch
        return placed

    def gather(self, state: TrainState) -> TrainState:
        """See `Placement`."""
        return state


class DataParallel:
    """Every device holds the whole state and computes its share of each batch's rows; gradients are summed.

    Batches that cannot be divided evenly raise TrainError. Each process provides its own rows.
    """

    facts: Mapping[str, Any] = MappingProxyType({})

    def __init__(self, step: Step, devices: Sequence[jax.Device] | None = None) -> None:
        self.devices = tuple(devices if devices is not None else jax.devices())
        self.ways = len(self.devices)
        mesh = jax.make_mesh((len(self.devices),), ("data",), (jax.sharding.AxisType.Auto,), devices=self.devices)
        self._whole, self._rows = everywhere(mesh), rows_over(mesh)
        self.step = Jitted(step, out_shardings=self._whole)

    def place(self, state: TrainState) -> TrainState:
        """See `Placement`."""
        placed: TrainState = jax.device_put(state, self._whole)
        return placed

    def place_batch(self, batch: Batch) -> Batch:
        """See `Placement`."""
        return spread(batch, self._rows, self.ways)

    def gather(self, state: TrainState) -> TrainState:
        """See `Placement`."""
        return state


def packing(step: Step) -> tuple[Callable[[TrainState, Batch], tuple[TrainState, Any]], list[str]]:
    """`step` with its sums as one vector, because each output array costs the host ten microseconds; and their names,
    known after it was traced."""
    names: list[str] = []

    def packed(state: TrainState, batch: Batch) -> tuple[TrainState, Any]:
        state, sums = step(state, batch)
        names[:] = sums
        return state, jnp.stack(list(sums.values()))

    return packed, names


def spread(batch: Batch, rows: Any, ways: int) -> Batch:
    """This process's part of a batch, its rows over all devices by the sharding `rows`. Raises TrainError."""
    count = len(batch["mask"]) * jax.process_count()
    if count % ways:
        raise TrainError(f"a batch of {count} rows does not divide among {ways} devices: {take_multiple(count, ways)}")
    from_rows: Any = jax.make_array_from_process_local_data
    placed: Batch = jax.tree.map(lambda a: from_rows(rows, a), batch)
    return placed


class Jitted:
    """A jitted step whose sums are one vector (`packing`)."""

    def __init__(self, step: Step, **options: Any) -> None:
        packed, self._names = packing(step)
        self._jitted = jax.jit(packed, donate_argnums=0, **options)

    def __call__(self, state: TrainState, batch: Batch) -> tuple[TrainState, Packed]:
        """One step; `state` is donated."""
        state, vector = self._jitted(state, batch)
        return state, Packed(self._names, vector)

    def lower(self, state: TrainState, batch: Batch) -> Any:
        """The step lowered for arrays or shapes."""
        return self._jitted.lower(state, batch)


def remembering(state: TrainState, facts: Mapping[str, Any]) -> TrainState:
    """`state` with the memory that a checkpoint with these facts has: its own where that is alike, else zeros."""
    plan = facts.get("plan")
    held = plan.get("memory") if isinstance(plan, dict) else None
    if not isinstance(held, dict) or not all(map(_is_shape, held.values())):
        return replace(state, memory=None)
    mine = state.memory or {}
    shapes = {name: (tuple(shape), dtype) for name, (shape, dtype) in held.items()}
    alike = {name: (a.shape, str(a.dtype)) for name, a in mine.items()} == shapes
    return state if alike else replace(state, memory={n: jnp.zeros(*about) for n, about in shapes.items()})


def _is_shape(said: Any) -> bool:
    """Whether this is [sizes, type] as `Compressed.facts` says it."""
    if not (isinstance(said, list) and len(said) == 2 and isinstance(said[0], list) and said[1] == "float32"):
        return False
    return all(isinstance(size, int) and 0 <= size < 1 << 31 for size in said[0])


def digest(about: Any) -> str:
    """The identity of facts: 64 hexadecimal digits."""
    return hashlib.blake2b(json.dumps(about, sort_keys=True).encode(), digest_size=32).hexdigest()
