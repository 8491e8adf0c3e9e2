"""Shardings that an expert writes by hand for `jax.jit`, from the description of a model.

The state and the batch are sharded, activations are constrained where the model calls `lies`, and the compiler
propagates both. No dimension of layers is ever split. `dp`: rows of the batch over all devices, state whole. `zero1`:
as dp, but an optimiser's slots split over all. `fsdp`: parameters split as well. `hsdp`: parameters and slots split
over the devices of one machine only. `tp`: heads and hidden columns split inside a machine, rows between machines.

Retrieval: `tables` splits the rows of tables over all devices, `tables_inside` over those of one machine, `columns`
the width of tables inside a machine; rows of the batch over all. Volumes: `spatial` splits planes inside a machine and
rows between machines. Long texts of one row: `context` splits positions over all devices, with the weights whole,
`context_zero1` and `context_fsdp` split slots and parameters as well; `megatron` splits heads and hidden columns inside
a machine and positions between machines.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import jax
import numpy as np

from benchmarks.parallel.models.model import Model, constrained
from cloud._jax import split_over
from cloud.parallel.graph import Split
from cloud.parallel.plan import Mesh
from cloud.parallel.running.apply import mesh_of
from cloud.parallel.topology import Topology

__all__ = ["HAND", "TEXTS", "Expert", "by_hand", "experts", "meshes"]

_lie_as: Any = jax.lax.with_sharding_constraint

Over = Literal["all", "outside", "inside", "none"]
"""All axes of a mesh; those before the last, which are between machines; the last; none."""
Path = tuple[Any, ...]
Spread = Callable[[str, tuple[int, ...], Mesh], Split]
"""(path of a leaf of the state, its shape, mesh) -> its split."""


@dataclass(frozen=True, slots=True)
class Expert:
    """How the state is split, and the axes that examples and places (dimension 1 of activations) are split over.
    `axes`: the numbers of mesh axes worth trying where all links are alike."""

    state: Spread
    rows: Over = "all"
    places: Over = "none"
    axes: tuple[int, ...] = (1,)


def _axes(over: Over, mesh: Mesh) -> tuple[int, ...]:
    every = tuple(range(len(mesh.sizes)))
    return {"all": every, "outside": every[:-1], "inside": every[-1:], "none": ()}[over]


def _whole(path: str, shape: tuple[int, ...], mesh: Mesh) -> Split:
    return ((),) * len(shape)


def _widest(over: Over) -> Spread:
    """Split along the largest dimension that divides, without the layers'."""

    def spread(path: str, shape: tuple[int, ...], mesh: Mesh) -> Split:
        used = _axes(over, mesh)
        parts, first = int(np.prod([mesh.sizes[a] for a in used])), int(".blocks." in path)
        at = max((d for d in range(first, len(shape)) if shape[d] % parts == 0), key=lambda d: shape[d], default=-1)
        return tuple(used if d == at else () for d in range(len(shape)))

    return spread


def _slots(path: str, shape: tuple[int, ...], mesh: Mesh) -> Split:
    return _whole(path, shape, mesh) if "params" in path else _widest("all")(path, shape, mesh)


def _named(columns: Mapping[str, int], over: Over) -> Spread:
    """Leaves whose path ends with a name split along that dimension; all others whole."""

    def spread(path: str, shape: tuple[int, ...], mesh: Mesh) -> Split:
        name, used = next((key for key in columns if path.endswith(f".{key}")), ""), _axes(over, mesh)
        parts = int(np.prod([mesh.sizes[a] for a in used]))
        if not name or "norm" in path or len(shape) < -columns[name] or shape[columns[name]] % parts:
            return _whole(path, shape, mesh)
        return tuple(used if d == columns[name] % len(shape) else () for d in range(len(shape)))

    return spread


_tensor = _named({"q": -2, "k": -2, "v": -2, "out": -3, "up.w": -1, "up.b": -1, "down.w": -2, "in": -1, "again": -1,
                  "bias": -1, "words": 0, "gate": -1, "steps": -1, "decay": 0, "head": -1, "up": -1, "down": -2,
                  "buckets": -1}, "inside")  # fmt: skip

TEXTS: Mapping[str, Expert] = {
    "dp": Expert(_whole), "zero1": Expert(_slots), "fsdp": Expert(_widest("all")),
    "hsdp": Expert(_widest("inside"), axes=(2,)), "tp": Expert(_tensor, "outside", axes=(2,)),
}  # fmt: skip
"""For models that split the rows of the batch."""

_TABLES = {"users": 0, "items": 0}

HAND: Mapping[str, Mapping[str, Expert]] = {
    "towers": {
        "dp": Expert(_whole), "zero1": Expert(_slots), "tables": Expert(_named(_TABLES, "all")),
        "tables_inside": Expert(_named(_TABLES, "inside"), axes=(2,)),
        "columns": Expert(_named({"users": 1, "items": 1}, "inside"), axes=(1, 2)),
    },
    "volumes": {
        "dp": Expert(_whole), "zero1": Expert(_slots), "fsdp": Expert(_widest("all")),
        "spatial": Expert(_whole, "outside", "inside", axes=(2,)),
    },
    "long": {
        "context": Expert(_whole, "none", "all"), "context_zero1": Expert(_slots, "none", "all"),
        "context_fsdp": Expert(_widest("all"), "none", "all"),
        "megatron": Expert(_tensor, "none", "outside", axes=(1, 2)),
    },
}  # fmt: skip
"""Model to the experts for it, where they are not `TEXTS`."""


def experts(model: str) -> Mapping[str, Expert]:
    """The experts for the model of that name."""
    return HAND.get(model, TEXTS)


def meshes(expert: Expert, topology: Topology) -> list[Mesh]:
    """An axis for each level of links; where there is one level, that axis, or two of its factors."""
    if len(topology.levels) > 1:
        return [Mesh(tuple(level.size for level in topology.levels), tuple(range(len(topology.levels))))]
    size = topology.size
    return [each for each in (Mesh((size,), (0,)), Mesh((2, size // 2), (0, 0))) if len(each.sizes) in expert.axes]


def by_hand(model: Model, expert: Expert, mesh: Mesh, devices: Any) -> tuple[Any, Any, Any]:
    """The jitted step, and the shardings of its state and batch."""
    named, rows, places = mesh_of(mesh, devices), _axes(expert.rows, mesh), _axes(expert.places, mesh)

    def lies(path: Path, leaf: Any) -> Any:
        spread = expert.state(jax.tree_util.keystr(path, simple=True, separator="."), leaf.shape, mesh)
        return split_over(named, spread)

    def lie(x: jax.Array, shared: bool) -> jax.Array:
        second = places if x.ndim > 2 and not shared else ()
        first = () if shared and x.ndim <= 2 else rows
        made: jax.Array = _lie_as(x, split_over(named, (first, second, *((),) * (x.ndim - 2))[: x.ndim]))
        return made

    def step(*about: Any) -> Any:
        with constrained(lie):
            return model.step(*about)

    state = jax.tree_util.tree_map_with_path(lies, model.state)
    batch = jax.tree.map(
        lambda leaf: split_over(named, (rows, places, *((),) * (len(leaf.shape) - 2))[: len(leaf.shape)]), model.batch
    )
    metrics = {"loss": split_over(named, ())}
    jitted = jax.jit(step, in_shardings=(state, batch), out_shardings=(state, metrics), donate_argnums=0)
    return jitted, state, batch
