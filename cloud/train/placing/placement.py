"""Where a step runs: how state and batches lie on devices, and the compiled step that takes them so."""

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
    """A step on devices. Plans and pipelines have this shape too. `ways`: rows of a batch are shared out to so many."""

    ways: int

    @property
    def facts(self) -> Mapping[str, Any]:
        """What JSON can say of the plan that is followed; nothing where there is none."""

    def place(self, state: TrainState) -> TrainState:
        """A whole state as `step` takes it; `state` may be used up."""

    def place_batch(self, batch: Batch) -> Batch:
        """This process's rows of a batch as `step` takes them."""

    def step(self, state: TrainState, batch: Batch) -> tuple[TrainState, Sums | Packed]:
        """One step of what was placed; `state` is used up. Nobody waits for it."""

    def gather(self, state: TrainState) -> TrainState:
        """The state with every array whole, for evaluating, saving and exporting; nothing is used up."""


Prepare: TypeAlias = Callable[[Recipe, TrainState, Batch], Placement]
"""What a step is made of, and a state and a batch (all rows) as `jax.ShapeDtypeStruct`s -> where it runs."""


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
        """On the CPU a jitted call reads NumPy's arrays where they lie; elsewhere the copy starts here."""
        placed: Batch = jax.device_put(batch) if self._copies else batch
        return placed

    def gather(self, state: TrainState) -> TrainState:
        """See `Placement`."""
        return state


class DataParallel:
    """Every device has the whole state and computes its share of each batch's rows; gradients are added up.

    Batches that do not divide raise TrainError. Several processes each bring their rows.
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
    """`step` with its sums as one vector, since each array that comes out costs the host ten microseconds; their names,
    known once it was traced."""
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
