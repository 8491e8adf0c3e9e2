"""A weight as a matrix whose rows and columns are cut into blocks: what second-order methods precondition.

A weight of any rank becomes a matrix by merging neighbouring axes so that it is as square as possible (a convolution
[out, in, h, w] becomes [out, in*h*w]); an axis of the matrix longer than the block size is cut into equal pieces, the
last filled with zeros. Rows and columns of zeros have no gradient, so they stay zero through everything that follows.
A piece of the rows extends over all columns and the other way round, so that a matrix of 1152 x 256 in blocks of 64 has
18 + 4 pieces and not 72 tiles.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp

__all__ = ["Blocks", "as_matrix"]


def as_matrix(shape: tuple[int, ...]) -> tuple[int, int] | None:
    """(rows, columns) of the matrix of such a weight; None for a shape without two axes longer than 1."""
    if sum(size > 1 for size in shape) < 2:
        return None
    cuts = [(math.prod(shape[:k]), math.prod(shape[k:])) for k in range(1, len(shape))]
    return min(cuts, key=lambda cut: (max(cut), cut))


@dataclass(frozen=True)
class Blocks:
    """A matrix of `rows` x `columns` whose rows are `down` pieces of `height`, and whose columns are `across` pieces of
    `width`."""

    rows: int
    columns: int
    down: int
    height: int
    across: int
    width: int

    @classmethod
    def of(cls, shape: tuple[int, ...], left: int, right: int) -> Blocks | None:
        """Rows in pieces of at most `left`, columns of at most `right`, 0: one piece; None for what is no matrix."""
        matrix = as_matrix(shape)
        if matrix is None:
            return None
        down, across = (-(-size // most) if most else 1 for size, most in zip(matrix, (left, right), strict=True))
        return cls(*matrix, down, -(-matrix[0] // down), across, -(-matrix[1] // across))

    @classmethod
    def like(cls, shape: tuple[int, ...], tiles: tuple[int, int, int, int]) -> Blocks:
        """The blocks of a weight that were cut into an array of the shape `tiles`."""
        matrix = as_matrix(shape)
        assert matrix is not None
        return cls(*matrix, *tiles)

    @property
    def tiles(self) -> tuple[int, int, int, int]:
        """The shape of the cut matrix: [down, height, across, width]."""
        return self.down, self.height, self.across, self.width

    def cut(self, array: Any) -> Any:
        """The weight's shape -> `tiles`."""
        matrix = jnp.reshape(array, (self.rows, self.columns))
        short = self.down * self.height - self.rows, self.across * self.width - self.columns
        return jnp.pad(matrix, ((0, short[0]), (0, short[1]))).reshape(self.tiles)

    def join(self, tiles: Any, shape: tuple[int, ...]) -> Any:
        """`tiles` -> the weight's shape; the inverse of `cut`."""
        matrix = tiles.reshape(self.down * self.height, self.across * self.width)
        return matrix[: self.rows, : self.columns].reshape(shape)
