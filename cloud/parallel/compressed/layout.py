"""Which gradients are compressed, and how each lies on the devices of a group while groups exchange it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from cloud.parallel.compressed.method import Compress

__all__ = ["Part", "layout"]

LEAST = 4096
"""Elements below which an array is summed exactly: biases and scales, which are a thousandth of a model's bytes."""


@dataclass(frozen=True, slots=True)
class Part:
    """One array. `dim`: the dimension that the devices of a group split among them; None: each has all of it. `cut`:
    dimensions before it are the rows of a matrix, the others its columns. `exact`: it is not compressed."""

    name: str
    shape: tuple[int, ...]
    dim: int | None
    cut: int
    exact: bool
    fast: int = 1

    @property
    def local(self) -> tuple[int, ...]:
        """The shape on one device."""
        return tuple(size // self.fast if d == self.dim else size for d, size in enumerate(self.shape))

    @property
    def size(self) -> int:
        """Elements on one device."""
        return math.prod(self.local)

    @property
    def sides(self) -> tuple[int, int]:
        """Rows and columns of the whole matrix."""
        return math.prod(self.shape[: self.cut]), math.prod(self.shape[self.cut :])

    @property
    def rows(self) -> int:
        """Rows on one device."""
        return math.prod(self.local[: self.cut])


def layout(arrays: Mapping[str, Any], how: Compress, fast: int) -> tuple[Part, ...]:
    """A part for each array or shape, in order. `fast`: devices of one group."""
    return tuple(_part(name, tuple(a.shape), np.dtype(a.dtype), how, fast) for name, a in arrays.items())


def _part(name: str, shape: tuple[int, ...], dtype: Any, how: Compress, fast: int) -> Part:
    cut = _cut(shape)
    rows, columns = math.prod(shape[:cut]), math.prod(shape[cut:])
    exact = dtype != np.float32 or rows * columns < LEAST
    if how.method == "powersgd":
        exact = exact or len(shape) < 2 or 2 * how.rank * (rows + columns) > rows * columns
    splits = range(cut if how.method == "powersgd" else len(shape))
    dim = next((d for d in splits if shape[d] % fast == 0), None)
    return Part(name, shape, None if exact or fast == 1 else dim, cut, exact, fast)


def _cut(shape: tuple[int, ...]) -> int:
    """Where rows plus columns are fewest: kernels of convolutions may have their channels first or last."""
    cuts = range(1, max(len(shape), 2))
    return min(cuts, key=lambda cut: math.prod(shape[:cut]) + math.prod(shape[cut:]))
