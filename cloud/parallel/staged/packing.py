"""Arrays packed into flat vectors, one per dtype, so that all stages hold and send the same shapes.

If a stage runs on `width` devices, the arrays split over them go to separate vectors, [width, n] split over the mesh
axis "tensor".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

__all__ = ["TENSOR", "Flats", "Pack", "alike", "dtype_of", "empty", "flat_bytes", "laid", "largest", "over",
           "shape_of"]  # fmt: skip

Flats: TypeAlias = dict[str, Any]
"""[n] for each dtype, keyed by its name; for split arrays [width, n], keyed by the name and `|`."""

TENSOR = "tensor"
"""The mesh axis of the devices of a stage."""

_SPLIT = "|"
_SPEC: Any = jax.sharding.PartitionSpec
_lie_as: Any = jax.lax.with_sharding_constraint


@dataclass(frozen=True)
class Pack:
    """Arrays of these shapes and dtypes, one after the other in the vectors of their dtypes. `dims[i]`: the dimension
    of array i that is split over `width` devices, None if each has it whole."""

    leaves: tuple[tuple[tuple[int, ...], str], ...]
    dims: tuple[int | None, ...]
    width: int = 1

    @classmethod
    def of(cls, avals: Iterable[Any], dims: Sequence[int | None] | None = None, width: int = 1) -> Pack:
        """The packing of objects with a shape and a dtype."""
        leaves = tuple((tuple(a.shape), np.dtype(a.dtype).name) for a in avals)
        return cls(leaves, (None,) * len(leaves) if dims is None else tuple(dims), width)

    @property
    def floats(self) -> Pack:
        """The packing of the arrays that may have gradients."""
        kept = [i for i, (_, dtype) in enumerate(self.leaves) if jnp.issubdtype(np.dtype(dtype), jnp.inexact)]
        return Pack(tuple(self.leaves[i] for i in kept), tuple(self.dims[i] for i in kept), self.width)

    @property
    def sizes(self) -> Counter[str]:
        """Elements of each vector, on one device."""
        sizes: Counter[str] = Counter()
        for key, (shape, _), parts in self._places():
            sizes[key] += int(np.prod(shape)) // parts
        return sizes

    def pack(self, arrays: Sequence[Any], sizes: Mapping[str, int], xp: Any = jnp) -> Flats:
        """Vectors of `sizes`, padded with zeros. `xp`: numpy or jax.numpy."""
        parts: dict[str, list[Any]] = {key: [] for key in sizes}
        for array, dim, (key, (_, dtype), _) in zip(arrays, self.dims, self._places(), strict=True):
            whole = xp.asarray(array, dtype)
            parts[key].append(xp.reshape(whole, -1) if dim is None else _rows(whole, dim, self.width, xp))
        own = self.sizes
        for key, size in sizes.items():
            parts[key].append(xp.zeros(shape_of(key, size - own[key], self.width), dtype_of(key)))
        return {key: xp.concatenate(parts[key], axis=-1) for key in sizes}

    def unpack(self, flats: Mapping[str, Any], xp: Any = jnp) -> list[Any]:
        """The arrays, each a slice of its vector; inside a pipeline-parallel program they are sharded."""
        found = zip(self.rows(flats), self.dims, self.leaves, strict=True)
        return [
            part.reshape(shape) if dim is None else _joined(part, dim, shape, self.width, xp)
            for part, dim, (shape, _) in found
        ]

    def rows(self, flats: Mapping[str, Any]) -> list[Any]:
        """Each array's slice of its vector: [its size], or [width, its size / width]."""
        begin: Counter[str] = Counter()
        found = []
        for key, (shape, _), parts in self._places():
            size = int(np.prod(shape)) // parts
            found.append(flats[key][..., begin[key] : begin[key] + size])
            begin[key] += size
        return found

    def _places(self) -> list[tuple[str, tuple[tuple[int, ...], str], int]]:
        """For each array, its vector's key, its shape and dtype, and its number of parts."""
        return [
            (leaf[1], leaf, 1) if dim is None else (leaf[1] + _SPLIT, leaf, self.width)
            for leaf, dim in zip(self.leaves, self.dims, strict=True)
        ]


def largest(packs: Iterable[Pack]) -> dict[str, int]:
    """Elements of each vector that is large enough for any one of `packs`."""
    most: dict[str, int] = {}
    for pack in packs:
        most.update((key, max(size, most.get(key, 0))) for key, size in pack.sizes.items())
    return dict(sorted(most.items()))


def dtype_of(key: str) -> np.dtype[Any]:
    """The dtype of the vector of this key."""
    return np.dtype(key.removesuffix(_SPLIT))


def shape_of(key: str, size: int, width: int) -> tuple[int, ...]:
    """The shape of the vector of this key with `size` elements on a device."""
    return (width, size) if key.endswith(_SPLIT) else (size,)


def empty(sizes: Mapping[str, int], width: int = 1) -> Flats:
    """Zeros."""
    return {key: jnp.zeros(shape_of(key, size, width), dtype_of(key)) for key, size in sizes.items()}


def flat_bytes(sizes: Mapping[str, int]) -> dict[str, int]:
    """Bytes of each vector on one device."""
    return {key: size * dtype_of(key).itemsize for key, size in sizes.items()}


def over(key: str) -> tuple[str, ...]:
    """The mesh axes over which the vector of this key is split."""
    return (TENSOR,) if key.endswith(_SPLIT) else ()


def laid(flats: Flats, width: int) -> Flats:
    """Vectors [..., n] or [..., width, n], sharded as their keys define."""
    if width == 1:
        return flats
    return {key: _over(v, v.ndim - 2 if key.endswith(_SPLIT) else None) for key, v in flats.items()}


def alike(array: Any, width: int) -> Any:
    """The array, whole on each device of a stage; keys of random generators already are."""
    return array if width == 1 or not isinstance(array.dtype, np.dtype) else _over(array, None)


def _rows(array: Any, dim: int, width: int, xp: Any) -> Any:
    """[width, n]: one row for the part of each device."""
    before, size, after = array.shape[:dim], array.shape[dim], array.shape[dim + 1 :]
    parts = xp.moveaxis(xp.reshape(array, (*before, width, size // width, *after)), dim, 0)
    rows = xp.reshape(parts, (width, -1))
    return rows if xp is np else _over(rows, 0)


def _joined(rows: Any, dim: int, shape: tuple[int, ...], width: int, xp: Any) -> Any:
    """`_rows` undone."""
    parts = xp.reshape(rows, (width, *shape[:dim], shape[dim] // width, *shape[dim + 1 :]))
    array = xp.reshape(xp.moveaxis(parts, 0, dim), shape)
    return array if xp is np else _over(array, dim)


def _over(array: Any, dim: int | None) -> Any:
    """A sharding with dimension `dim` split over a stage's devices and the others whole."""
    return _lie_as(array, _SPEC(*(TENSOR if d == dim else None for d in range(array.ndim))))
