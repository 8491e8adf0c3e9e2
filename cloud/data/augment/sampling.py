"""Linear interpolation of many images or series at once, each at its own places."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Array", "affine", "along", "by_row", "places"]

Array = npt.NDArray[Any]


def affine(x: Array, matrix: Array, fill: float) -> Array:
    """Images x (n, h, w, c) resampled: (row, column) from the middle gets the value at matrix (n, 2, 3) @ (row, column,
    1) from the middle, interpolated between four pixels; `fill` outside."""
    n, h, w, c = x.shape
    matrix = matrix.astype(np.float32)[:, :, :, None, None]
    row, column = (np.arange(size, dtype=np.float32) - np.float32((size - 1) / 2) for size in (h, w))
    row = row[:, None]
    whole, parts = [], []
    for axis, size in enumerate((h, w)):
        at = matrix[:, axis, 0] * row + matrix[:, axis, 1] * column + (matrix[:, axis, 2] + np.float32((size - 1) / 2))
        np.clip(at, -1, size, out=at)
        first = np.floor(at)
        parts.append((at - first)[..., None].astype(x.dtype))
        whole.append(first.astype(np.intp) + 1)
    wide = np.full((n, h + 3, w + 3, c), fill, x.dtype)  # one more before, two behind: places are clipped to -1 … size
    wide[:, 1 : h + 1, 1 : w + 1] = x
    flat, start = wide.reshape(-1, c), np.arange(n)[:, None, None] * ((h + 3) * (w + 3))
    base = start + whole[0] * (w + 3) + whole[1]
    down, right = parts
    upper = _between(flat, base, 1, right)
    if not down.any():
        return upper
    lower = _between(flat, base + (w + 3), 1, right)
    lower -= upper
    lower *= down
    upper += lower
    return upper


def _between(flat: Array, base: Array, step: int, part: Array) -> Array:
    first = flat.take(base, axis=0)
    if part.any():
        second = flat.take(base + step, axis=0)
        second -= first
        second *= part
        first += second
    return first


def along(x: Array, at: Array) -> Array:
    """Series x (n, t, c) at the steps `at` (n, any), which are clipped to 0 … t - 1."""
    n, t, c = x.shape
    at = np.clip(at, 0, t - 1)
    first = np.minimum(np.floor(at), max(t - 2, 0)).astype(np.intp)
    part = (at - first)[..., None].astype(x.dtype)
    flat, base = x.reshape(-1, c), np.arange(n)[:, None] * t + first
    return _between(flat, base, 1, part) if t > 1 else flat.take(base, axis=0)


def by_row(amount: Array, x: Array) -> Array:
    """Amounts (n) in the dtype and with the number of axes of x (n, …)."""
    return amount.astype(x.dtype).reshape(-1, *(1,) * (x.ndim - 1))


def places(sizes: Array, length: int, start: Array) -> npt.NDArray[np.bool_]:
    """Which of `length` places (n, length) are in the interval of sizes (n) places that begins at share `start` (n) of
    where it can."""
    begin = np.floor(start * (length - sizes + 1)).astype(np.intp)[:, None]
    at = np.arange(length)
    return np.asarray((at >= begin) & (at < begin + sizes[:, None]))
