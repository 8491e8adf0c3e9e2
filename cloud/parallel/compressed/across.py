"""The gradient of a step whose groups of devices exchange compressed gradients.

Each group computes the gradient of its rows; inside it the compiler splits the rows over the devices and sums exactly,
as for data parallelism. Every device then holds a part of the group's sum, which it exchanges with the devices that
hold that part in other groups, and the group gathers the parts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cloud._jax import auto_mesh, on_axes, split_over
from cloud.errors import TrainError
from cloud.parallel.compressed import int8, powersgd
from cloud.parallel.compressed.layout import Part, layout
from cloud.parallel.compressed.method import Compress
from cloud.parallel.plan import Mesh

__all__ = ["Across", "Local", "arrays_of"]

SLOW, FAST = "m0", "m1"
_SPEC: Any = jax.sharding.PartitionSpec
_sum: Any = jax.lax.psum
_mean: Any = jax.lax.pmean

Local = Callable[[Any, Any, Any, Any], tuple[Any, dict[str, Any], Any]]
"""(given, batch, key, examples) -> (gradient, sums, state): of some rows, of the loss divided by all `examples`.
"examples" among the sums is the number of rows that are not padding."""

Memory = Mapping[str, Any]
"""Arrays that a run keeps: "error.NAME" [groups, *shape], what each group's exchanges lost, and for powersgd
"start.NAME" [columns, rank]."""


def arrays_of(tree: Any) -> dict[str, Any]:
    """A tree's arrays, or their shapes, by path."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in leaves}


class Across:
    """`mesh`: as `Compress.mesh`. `trained`: the tree of trained parameters, arrays or shapes. `devices`: in the
    topology's order."""

    def __init__(self, how: Compress, mesh: Mesh, trained: Any, devices: Sequence[Any]) -> None:
        self.how, self.groups = how, mesh.sizes[0]
        self.fast = mesh.sizes[1] if len(mesh.sizes) > 1 else 1
        if len(devices) != self.groups * self.fast:
            raise TrainError(f"compress: expected {self.groups * self.fast} devices, got {len(devices)}")
        self.mesh = auto_mesh(np.array(devices).reshape(self.groups, self.fast), (SLOW, FAST))
        self.parts = layout(arrays_of(trained), how, self.fast)
        self._compressed = [part for part in self.parts if not part.exact]

    def memory(self) -> dict[str, Any]:
        """That of a run's first step."""
        made = {f"error.{part.name}": jnp.zeros((self.groups, *part.shape)) for part in self._compressed}
        if self.how.method == "powersgd":
            for number, part in enumerate(self._compressed):
                made[f"start.{part.name}"] = powersgd.first(part, self.how.rank, number)
        return made

    def fitted(self, memory: Memory | None) -> dict[str, Any]:
        """The memory of a run that goes on with other groups or parameters: what all groups together still owe is
        shared by those of now; what belongs to nothing of now is dropped, and what is missing begins anew."""
        made = self.memory()
        for name, fresh in made.items():
            old = (memory or {}).get(name)
            if old is not None and old.shape == fresh.shape:
                made[name] = old
            elif old is not None and old.shape[1:] == fresh.shape[1:] and name.startswith("error."):
                owed = np.asarray(old).sum(0) / np.float32(self.groups)
                made[name] = jnp.asarray(np.broadcast_to(owed, fresh.shape))
        return made

    def shardings(self) -> dict[str, Any]:
        """How the memory lies on the mesh."""
        lies = {f"error.{part.name}": ((0,), *self._split(part)) for part in self._compressed}
        if self.how.method == "powersgd":
            lies |= {f"start.{part.name}": _whole(2) for part in self._compressed}
        return {name: split_over(self.mesh, split) for name, split in lies.items()}

    def _split(self, part: Part) -> tuple[tuple[int, ...], ...]:
        return tuple((1,) if d == part.dim else () for d in range(len(part.shape)))

    def gradient(
        self, local: Local, given: Any, batch: Any, key: Any, memory: Memory
    ) -> tuple[Any, dict[str, Any], Any, dict[str, Any]]:  # fmt: skip
        """(gradient, sums, state, memory) of a whole batch. `given`: whatever `local` needs besides, whole on every
        device. Random numbers differ between the groups. Numbers of the state are means over the groups."""

        def group(given: Any, batch: Any, key: Any) -> Any:
            key = jax.random.fold_in(key, jax.lax.axis_index(SLOW))
            total = _sum(jnp.sum(batch["mask"]), SLOW)
            gradient, sums, state = local(given, batch, key, total)
            others = _sum({name: a for name, a in sums.items() if name != "examples"}, SLOW)
            sums = others | {name: total for name in sums if name == "examples"}
            state = jax.tree.map(lambda a: _mean(a, SLOW) if jnp.issubdtype(a.dtype, jnp.inexact) else a, state)
            leaves, tree = jax.tree.flatten(gradient)
            leaves = [self._landed(part, leaf) for part, leaf in zip(self.parts, leaves, strict=True)]
            return jax.tree.unflatten(tree, [leaf[None] for leaf in leaves]), sums, state

        one, all_ = _SPEC(SLOW), _SPEC()
        run = on_axes(group, self.mesh, (SLOW,), (all_, one, all_), (one, all_, all_))
        gradient, sums, state = run(given, dict(batch), key)
        leaves, tree = jax.tree.flatten(gradient)
        leaves, memory = self.exchange(leaves, memory)
        return jax.tree.unflatten(tree, leaves), sums, state, memory

    def _landed(self, part: Part, array: Any) -> Any:
        """Summed over the group first, then split: constrained to the split at once, the compiler may split the
        computation of the gradient too."""
        lie: Any = jax.lax.with_sharding_constraint
        array = lie(array, split_over(self.mesh, _whole(array.ndim)))
        return lie(array, split_over(self.mesh, self._split(part))) if part.dim is not None else array

    def exchange(self, gradients: Sequence[Any], memory: Memory) -> tuple[list[Any], dict[str, Any]]:
        """Gradients [groups, *shape] of each group -> their sums, whole on every device, and the memory."""
        held = {name: place.spec for name, place in self.shardings().items()}
        parts = [split_over(self.mesh, self._split(part)).spec for part in self.parts]
        given = [_SPEC(SLOW, *spec) for spec in parts]
        run = on_axes(self._exchanged, self.mesh, (SLOW, FAST), (given, held), (parts, held))
        sums, after = run(list(gradients), dict(memory))
        lie: Any = jax.lax.with_sharding_constraint
        return [lie(a, split_over(self.mesh, _whole(a.ndim))) for a in sums], after

    def _exchanged(self, gradients: list[Any], memory: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """On one device: of each array what it has of its group's."""
        own = {part.name: a[0] for part, a in zip(self.parts, gradients, strict=True)}
        exact = _summed([own[part.name] for part in self.parts if part.exact])
        sums = dict(zip([part.name for part in self.parts if part.exact], exact, strict=True))
        values = {part.name: own[part.name] + memory[f"error.{part.name}"][0] for part in self._compressed}
        if self.how.method == "powersgd":
            starts = {part.name: memory[f"start.{part.name}"] for part in self._compressed}
            more, lost, after = powersgd.exchanged(self._compressed, values, starts, SLOW, FAST)
        else:
            more, lost, after = *self._in_bytes(values), {}
        sums |= more
        kept = {f"error.{name}": a[None] for name, a in lost.items()} | {f"start.{n}": a for n, a in after.items()}
        return [sums[part.name] for part in self.parts], kept

    def _in_bytes(self, values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        if not values:
            return {}, {}
        flat = jnp.concatenate([value.ravel() for value in values.values()])
        total, lost = int8.exchanged(flat, self.groups, SLOW, self.how.block)
        return _parted(total, values), _parted(lost, values)


def _summed(arrays: Sequence[Any]) -> list[Any]:
    """Exact sums over the groups, of each type in one collective."""
    found = dict[int, Any]()
    for dtype in dict.fromkeys(a.dtype for a in arrays):
        members = {n: a for n, a in enumerate(arrays) if a.dtype == dtype}
        flat = _sum(jnp.concatenate([a.ravel() for a in members.values()]), SLOW)
        found |= _parted(flat, members)
    return [found[n] for n in range(len(arrays))]


def _parted(flat: Any, like: Mapping[Any, Any]) -> dict[Any, Any]:
    """Neighbouring pieces of a vector in the shapes of `like`."""
    found, at = {}, 0
    for name, array in like.items():
        found[name] = flat[at : at + array.size].reshape(array.shape)
        at += array.size
    return found


def _whole(rank: int) -> tuple[tuple[int, ...], ...]:
    return ((),) * rank
