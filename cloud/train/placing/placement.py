"""Where a step runs: how state and batches are placed on devices, and the compiled step for that placement."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol, TypeAlias

import jax
import jax.numpy as jnp

from cloud._jax import everywhere, rows_over
from cloud.errors import TrainError, take_multiple
from cloud.train.ledger import Packed
from cloud.train.stepping.step import Batch, Recipe, Step, Sums, TrainState

__all__ = ["Alone", "DataParallel", "Placement", "Prepare", "packing"]


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
        self.step = _jitted(step)
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
        self.step = _jitted(step, out_shardings=self._whole)

    def place(self, state: TrainState) -> TrainState:
        """See `Placement`."""
        placed: TrainState = jax.device_put(state, self._whole)
        return placed

    def place_batch(self, batch: Batch) -> Batch:
        """See `Placement`."""
        rows = len(batch["mask"]) * jax.process_count()
        if rows % self.ways:
            raise TrainError(
                f"a batch of {rows} rows does not divide among {self.ways} devices: {take_multiple(rows, self.ways)}"
            )
        from_rows: Any = jax.make_array_from_process_local_data
        placed: Batch = jax.tree.map(lambda a: from_rows(self._rows, a), batch)
        return placed

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


def _jitted(step: Step, **options: Any) -> Callable[[TrainState, Batch], tuple[TrainState, Packed]]:
    packed, names = packing(step)
    jitted = jax.jit(packed, donate_argnums=0, **options)

    def run(state: TrainState, batch: Batch) -> tuple[TrainState, Packed]:
        state, vector = jitted(state, batch)
        return state, Packed(names, vector)

    return run
