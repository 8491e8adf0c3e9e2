"""What JPEG loses: colours at half the resolution, and cosine transforms of 8 x 8 pixels rounded to multiples.

ITU-T T.81 (1992), annexes A and K.1, with the Independent JPEG Group's rule for qualities. Huffman codes lose nothing,
so there are none.
"""

from __future__ import annotations

import numpy as np
from scipy import fft

from lite_runtime.graph import Array

__all__ = ["jpeg"]

_LIGHT = np.array([
    16, 11, 10, 16, 24, 40, 51, 61, 12, 12, 14, 19, 26, 58, 60, 55, 14, 13, 16, 24, 40, 57, 69, 56,
    14, 17, 22, 29, 51, 87, 80, 62, 18, 22, 37, 56, 68, 109, 103, 77, 24, 35, 55, 64, 81, 104, 113, 92,
    49, 64, 78, 87, 103, 121, 120, 101, 72, 92, 95, 98, 112, 100, 103, 99,
]).reshape(8, 8)  # fmt: skip
_COLOUR = np.full((8, 8), 99)
_COLOUR[:4, :4] = [[17, 18, 24, 47], [18, 21, 26, 66], [24, 26, 56, 99], [47, 66, 99, 99]]
_TO_LIGHT = np.array([[0.299, 0.587, 0.114], [-0.168736, -0.331264, 0.5], [0.5, -0.418688, -0.081312]])


def jpeg(x: Array, quality: int) -> Array:
    """Images (n, height, width, 1 or 3) from 0 to 1 as they come back from a file of this quality, 1 to 100."""
    pixels = np.rint(np.clip(x, 0, 1) * 255.0)
    if x.shape[3] == 1:
        return np.asarray(_rounded(_coded(pixels[..., 0], _LIGHT, quality))[..., None], np.float32)
    planes = pixels @ _TO_LIGHT.T + [0, 128, 128]
    light = _coded(planes[..., 0], _LIGHT, quality)
    colours = [_doubled(_coded(_halved(planes[..., i]), _COLOUR, quality), light.shape) for i in (1, 2)]
    rgb = np.stack([light, *(plane - 128 for plane in colours)], 3) @ np.linalg.inv(_TO_LIGHT).T
    return np.asarray(_rounded(rgb), np.float32)


def _rounded(pixels: Array) -> Array:
    return np.asarray(np.clip(np.rint(pixels), 0, 255) / 255.0)


def _coded(plane: Array, table: Array, quality: int) -> Array:
    """One plane (n, height, width), 0 to 255, through the rounded transform."""
    percent = 5000 // quality if quality < 50 else 200 - 2 * quality
    steps = np.clip((table * percent + 50) // 100, 1, 255)
    n, high, wide = plane.shape
    filled = np.pad(plane, ((0, 0), (0, -high % 8), (0, -wide % 8)), "edge") - 128
    blocks = filled.reshape(n, filled.shape[1] // 8, 8, filled.shape[2] // 8, 8).transpose(0, 1, 3, 2, 4)
    kept = np.rint(fft.dctn(blocks, axes=(3, 4), norm="ortho") / steps) * steps
    back = fft.idctn(kept, axes=(3, 4), norm="ortho").transpose(0, 1, 3, 2, 4).reshape(filled.shape)
    return np.asarray(np.clip(np.rint(back + 128), 0, 255)[:, :high, :wide])


def _halved(plane: Array) -> Array:
    n, high, wide = plane.shape
    filled = np.pad(plane, ((0, 0), (0, high % 2), (0, wide % 2)), "edge")
    return np.asarray(filled.reshape(n, (high + 1) // 2, 2, (wide + 1) // 2, 2).mean((2, 4)))


def _doubled(plane: Array, shape: tuple[int, ...]) -> Array:
    """Twice the height and width, by weights of 3 and 1 as decoders do."""
    for axis in (1, 2):
        first, last = (np.take(plane, [i], axis) for i in (0, -1))
        around = np.concatenate([first, plane, last], axis)
        size = plane.shape[axis]
        before, after = (np.take(around, np.arange(size) + i, axis) for i in (0, 2))
        both = np.stack([(3 * plane + before) / 4, (3 * plane + after) / 4], axis + 1)
        plane = both.reshape(*plane.shape[:axis], 2 * size, *plane.shape[axis + 1 :])
    return plane[:, : shape[1], : shape[2]]
