"""Operations on images (n, channels, height, width): see `table.Operation`."""

from __future__ import annotations

from typing import Any

import numpy as np

from cloud.data.augment.sampling import Array, Values, affine, by_row, places, shifted
from cloud.data.draws import Draws

__all__ = [
    "autocontrast", "brightness", "color", "contrast", "equalize", "erase", "flip", "invert", "noise", "posterize",
    "rotate", "sharpness", "shear_x", "shear_y", "solarize", "translate_x", "translate_y", "zoom",
]  # fmt: skip

_LUMA = (0.299, 0.587, 0.114)


def _moved(x: Array, values: Values, row: tuple[Any, ...], column: tuple[Any, ...]) -> Array:
    matrix = np.zeros((len(x), 2, 3), np.float32)
    for axis, entries in enumerate((row, column)):
        for place, entry in enumerate(entries):
            matrix[:, axis, place] = entry
    return affine(x, matrix, values[2])


def _from_middle(size: int) -> Array:
    return np.arange(size) - (size - 1) / 2


def _turned(x: Array) -> Array:
    """Rows as columns."""
    return np.ascontiguousarray(x.transpose(0, 1, 3, 2))


def shear_x(x: Array, amount: Array, draws: Draws, values: Values) -> Array:
    """Rows moved sideways by `amount` pixels for each row from the middle."""
    return shifted(x, -amount[:, None] * _from_middle(x.shape[2]), values[2])


def shear_y(x: Array, amount: Array, draws: Draws, values: Values) -> Array:
    """Columns moved by `amount` pixels for each column from the middle."""
    return _turned(shifted(_turned(x), -amount[:, None] * _from_middle(x.shape[3]), values[2]))


def translate_x(x: Array, amount: Array, draws: Draws, values: Values) -> Array:
    """Moved to the right by `amount` of the width."""
    return shifted(x, amount[:, None] * x.shape[3], values[2])


def translate_y(x: Array, amount: Array, draws: Draws, values: Values) -> Array:
    """Moved down by `amount` of the height."""
    return _turned(shifted(_turned(x), amount[:, None] * x.shape[2], values[2]))


def rotate(x: Array, amount: Array, draws: Draws, values: Values) -> Array:
    """Turned by `amount` degrees against the clock."""
    cosine, sine = np.cos(np.deg2rad(amount)), np.sin(np.deg2rad(amount))
    return _moved(x, values, (cosine, sine, 0), (-sine, cosine, 0))


def zoom(x: Array, amount: Array, draws: Draws, values: Values) -> Array:
    """Larger by 2 ** amount, about the middle."""
    scale = np.exp2(-amount)
    return _moved(x, values, (scale, 0, 0), (0, scale, 0))


def flip(x: Array, amount: Array, draws: Draws, values: Values) -> Array:
    """Mirrored, left for right."""
    return x[:, :, :, ::-1]


def brightness(x: Array, amount: Array, draws: Draws, values: Values) -> Array:
    """Values above the lowest times 1 + amount."""
    return _apart(x, np.asarray(values[0], x.dtype), amount, values)


def color(x: Array, amount: Array, draws: Draws, values: Values) -> Array:
    """Distances from the pixel's grey times 1 + amount; images that are grey already stay as they are."""
    return x if x.shape[1] == 1 else _apart(x, _grey(x), amount, values)


def contrast(x: Array, amount: Array, draws: Draws, values: Values) -> Array:
    """Distances from the image's mean grey times 1 + amount."""
    return _apart(x, _grey(x).mean((1, 2, 3), keepdims=True), amount, values)


def sharpness(x: Array, amount: Array, draws: Draws, values: Values) -> Array:
    """Distances from a smoothed image times 1 + amount. The smoothing is PIL's: weights 1 beside 5 in the middle, and
    pixels at the border as they are."""
    smooth = x.copy()
    if min(x.shape[2:]) > 2:
        down = x[:, :, :-2] + x[:, :, 1:-1] + x[:, :, 2:]
        nine = down[:, :, :, :-2] + down[:, :, :, 1:-1] + down[:, :, :, 2:]
        smooth[:, :, 1:-1, 1:-1] = (nine + 4 * x[:, :, 1:-1, 1:-1]) / 13
    return _apart(x, smooth, amount, values)


def posterize(x: Array, amount: Array, draws: Draws, values: Values) -> Array:
    """The lowest `amount` (rounded) of eight bits removed."""
    scale = 255 / (values[1] - values[0])
    steps = by_row(np.exp2(np.rint(amount)), x)
    rough = np.floor(((x - values[0]) * scale + 1e-3) / steps) * steps / scale + values[0]
    return np.where(steps > 1, rough, x).astype(x.dtype)


def solarize(x: Array, amount: Array, draws: Draws, values: Values) -> Array:
    """Values in the highest `amount` of the range inverted."""
    low, high, _ = values
    limit = by_row(high - amount * (high - low), x)
    return np.where(x > limit, (low + high) - x, x).astype(x.dtype)


def invert(x: Array, amount: Array, draws: Draws, values: Values) -> Array:
    """Light for dark."""
    return np.asarray((values[0] + values[1]) - x)


def autocontrast(x: Array, amount: Array, draws: Draws, values: Values) -> Array:
    """Every channel stretched to the whole range; one of a single value stays as it is."""
    least, most = (f(x, axis=(2, 3), keepdims=True) for f in (np.min, np.max))
    width = most - least
    scale = (values[1] - values[0]) / np.where(width > 0, width, 1)
    return np.where(width > 0, (x - least) * scale + values[0], x).astype(x.dtype)


def equalize(x: Array, amount: Array, draws: Draws, values: Values) -> Array:
    """Every channel's histogram of 256 levels made even, as PIL does it."""
    scale, even = 255 / (values[1] - values[0]), x.copy()
    for plane in even.reshape(-1, x.shape[2] * x.shape[3]):
        levels = np.clip(np.rint((plane - values[0]) * scale), 0, 255).astype(np.uint8)
        counts = np.bincount(levels, minlength=256)
        step = (len(plane) - counts[levels.max()]) // 255
        if step:
            table = np.minimum((np.cumsum(counts) - counts + step // 2) // step, 255) / scale + values[0]
            plane[:] = table.astype(x.dtype)[levels]
    return even


def erase(x: Array, amount: Array, draws: Draws, values: Values) -> Array:
    """A rectangle of `amount` of the height and the width filled (DeVries and Taylor, arXiv 1708.04552)."""
    at = draws.uniform(2)
    rows, columns = (places(np.rint(amount * x.shape[2 + k]), x.shape[2 + k], at[:, k]) for k in range(2))
    return np.where((rows[:, :, None] & columns[:, None, :])[:, None], np.asarray(values[2], x.dtype), x)


def noise(x: Array, amount: Array, draws: Draws, values: Values) -> Array:
    """Normal noise with `amount` of the range as its standard deviation."""
    width = by_row((values[1] - values[0]) * amount, x)
    return np.asarray(np.clip(x + width * draws.normal(*x.shape[1:]), values[0], values[1]))


def _grey(x: Array) -> Array:
    """(n, 1, h, w)."""
    if x.shape[1] == 3:
        red, green, blue = (x[:, k : k + 1] * x.dtype.type(share) for k, share in enumerate(_LUMA))
        return np.asarray(red + green + blue)
    return np.asarray(x.mean(1, keepdims=True))


def _apart(x: Array, other: Array, amount: Array, values: Values) -> Array:
    """Distances from `other` times 1 + amount, within the range of values."""
    factor = by_row(1 + amount, x)
    return np.asarray(np.clip(other + (x - other) * factor, values[0], values[1]))
