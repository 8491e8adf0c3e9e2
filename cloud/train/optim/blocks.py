"""A weight as a stack of equal matrices: which second-order methods precondition instead of the whole weight.

A weight of any rank becomes a matrix by merging neighbouring axes so that it is as square as possible (a convolution
[out, in, h, w] becomes [out, in*h*w]); axes of the matrix longer than the block size are cut into equal pieces, the
last filled with zeros. Rows and columns of zeros have no gradient, so they stay zero through everything that follows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp

__all__ = ["Blocks"]


@dataclass(frozen=True)
class Blocks:
    """The cut of one shape: `rows` x `columns` of the matrix, as `down` x `across` blocks of `height` x `width`."""

    shape: tuple[int, ...]
    rows: int
    columns: int
    height: int
    width: int

    @classmethod
    def of(cls, shape: tuple[int, ...], block: int) -> Blocks | None:
        """How to cut `shape` into blocks of at most `block` x `block`; None for a shape without two axes longer than
        1."""
        if sum(size > 1 for size in shape) < 2:
            return None
        cuts = [(math.prod(shape[:k]), math.prod(shape[k:])) for k in range(1, len(shape))]
        rows, columns = min(cuts, key=lambda cut: (max(cut), cut))
        height, width = (-(-size // -(-size // block)) for size in (rows, columns))
        return cls(shape, rows, columns, height, width)

    @property
    def down(self) -> int:
        """Blocks along the rows."""
        return -(-self.rows // self.height)

    @property
    def across(self) -> int:
        """Blocks along the columns."""
        return -(-self.columns // self.width)

    @property
    def count(self) -> int:
        """Blocks in all."""
        return self.down * self.across

    def cut(self, array: Any) -> Any:
        """`shape` -> [count, height, width]."""
        matrix = jnp.reshape(array, (self.rows, self.columns))
        short = self.down * self.height - self.rows, self.across * self.width - self.columns
        filled = jnp.pad(matrix, ((0, short[0]), (0, short[1])))
        tiles = filled.reshape(self.down, self.height, self.across, self.width).swapaxes(1, 2)
        return tiles.reshape(self.count, self.height, self.width)

    def join(self, blocks: Any) -> Any:
        """[count, height, width] -> `shape`; the inverse of `cut`."""
        tiles = blocks.reshape(self.down, self.across, self.height, self.width).swapaxes(1, 2)
        matrix = tiles.reshape(self.down * self.height, self.across * self.width)
        return matrix[: self.rows, : self.columns].reshape(self.shape)
