"""Dense matrices rounded to integers of 4 or 8 bits in blocks, without data: each block gets the scale with which the
sum of its squared errors is least, of those that a search tries.

For a scale s the integers q are those nearest to x / s, and for these integers the best scale is sum(q x) / sum(q q)
(least squares). The search starts from scales that bring the block's largest value to different ends of the range.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from converter.frontends.decoders.weights import Blocked, Dense, finite, spans
from lite_runtime.graph import Array

__all__ = ["BLOCK", "quantized"]

BLOCK = 32
_STARTS: Mapping[int, tuple[float, ...]] = {
    128: (127.0,),
    8: tuple(sign * end for end in (8.5, 8, 7.5, 7, 6.5, 6, 5.5) for sign in (1, -1)),
}
"""By half the range, the integers to which the value of largest magnitude is brought."""


def quantized(matrix: Dense, bits: int) -> Blocked:
    """The matrix (n, k) in blocks of `BLOCK`; k is a multiple of that. The scales are found when a part is read first,
    and kept."""
    n, k = matrix.shape
    half = 1 << bits - 1
    found: list[Array] = []

    def scales() -> Array:
        if not found:
            made = np.empty((n, k // BLOCK), np.float16)
            for begin, end in spans((n, k)):
                made[begin:end] = _scales(_blocks(matrix, begin, end), half)
            found.append(made)
        return found[0]

    def integers(begin: int, end: int) -> Array:
        q = _nearest(_blocks(matrix, begin, end), scales()[begin:end], half)
        return (q + half).astype(np.uint8).reshape(end - begin, k)

    return Blocked(matrix.name, (n, k), bits, BLOCK, half, integers, scales, None, True, matrix.stored)


def _blocks(matrix: Dense, begin: int, end: int) -> Array:
    x = finite(matrix.name, matrix.rows(begin, end))
    return x.reshape(end - begin, -1, BLOCK)


def _nearest(x: Array, scale: Array, half: int) -> Array:
    """The integers for which q * scale is nearest to x; scale is float16."""
    wide = scale.astype(np.float32)[..., None]
    with np.errstate(divide="ignore", invalid="ignore"):
        q = np.rint(np.where(wide == 0, 0, x / wide))
    return np.clip(q, -half, half - 1)


def _scales(x: Array, half: int) -> Array:
    """float16 scales of blocks x (rows, blocks, BLOCK)."""
    at = np.abs(x).argmax(axis=-1)[..., None]
    largest = np.take_along_axis(x, at, axis=-1)[..., 0]
    best = _half(np.abs(largest) / np.float32(half - 1))
    least = _error(x, best, half)
    for start in _STARTS[half]:
        q = _nearest(x, _half(largest / np.float32(start)), half)
        squares = (q * q).sum(-1)
        scale = _half(np.where(squares > 0, (q * x).sum(-1) / np.maximum(squares, 1), 0))
        error = _error(x, scale, half)
        better = error < least
        best, least = np.where(better, scale, best), np.where(better, error, least)
    return best


def _error(x: Array, scale: Array, half: int) -> Array:
    """Sums of squared errors of blocks."""
    wrong = _nearest(x, scale, half) * scale.astype(np.float32)[..., None] - x
    found: Array = np.einsum("...i,...i->...", wrong, wrong)
    return found


def _half(scale: Array) -> Array:
    """As float16, within its range."""
    limited: Array = np.clip(scale, -65504, 65504).astype(np.float16)
    return limited
