"""Arrays as flat vectors, one a dtype: what stages of a pipeline hold and send has one shape, whatever is in it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax.numpy as jnp
import numpy as np

__all__ = ["Flats", "Pack", "empty", "flat_bytes", "largest"]

Flats: TypeAlias = dict[str, Any]
"""[n] of each dtype, by its name."""


@dataclass(frozen=True)
class Pack:
    """Arrays of these shapes and dtypes, one after the other in the vectors of their dtypes."""

    leaves: tuple[tuple[tuple[int, ...], str], ...]

    @classmethod
    def of(cls, avals: Iterable[Any]) -> Pack:
        """Of anything with a shape and a dtype."""
        return cls(tuple((tuple(a.shape), np.dtype(a.dtype).name) for a in avals))

    @property
    def sizes(self) -> Counter[str]:
        """Elements of each dtype."""
        sizes: Counter[str] = Counter()
        for shape, dtype in self.leaves:
            sizes[dtype] += int(np.prod(shape))
        return sizes

    def pack(self, arrays: Sequence[Any], sizes: Mapping[str, int], xp: Any = jnp) -> Flats:
        """Vectors of `sizes`, padded with zeros. `xp`: numpy or jax.numpy."""
        parts: dict[str, list[Any]] = {dtype: [] for dtype in sizes}
        for array, (_, dtype) in zip(arrays, self.leaves, strict=True):
            parts[dtype].append(xp.reshape(xp.asarray(array, dtype), -1))
        own = self.sizes
        return {
            dtype: xp.concatenate([*parts[dtype], xp.zeros(size - own[dtype], dtype)]) for dtype, size in sizes.items()
        }

    def unpack(self, flats: Mapping[str, Any]) -> list[Any]:
        """The arrays, each a slice of its vector."""
        begin: Counter[str] = Counter()
        arrays = []
        for shape, dtype in self.leaves:
            size = int(np.prod(shape))
            arrays.append(flats[dtype][begin[dtype] : begin[dtype] + size].reshape(shape))
            begin[dtype] += size
        return arrays


def largest(packs: Iterable[Pack]) -> dict[str, int]:
    """Elements of each dtype that hold any one of `packs`."""
    most: dict[str, int] = {}
    for pack in packs:
        most.update((dtype, max(size, most.get(dtype, 0))) for dtype, size in pack.sizes.items())
    return dict(sorted(most.items()))


def empty(sizes: Mapping[str, int], wanted: Callable[[Any], bool] = lambda _: True) -> Flats:
    """Zeros; of the dtypes that are `wanted`."""
    return {dtype: jnp.zeros(size, dtype) for dtype, size in sizes.items() if wanted(np.dtype(dtype))}


def flat_bytes(sizes: Mapping[str, int]) -> dict[str, int]:
    """Bytes of each dtype's vector."""
    return {dtype: size * np.dtype(dtype).itemsize for dtype, size in sizes.items()}
