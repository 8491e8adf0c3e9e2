"""Scikit-learn's handwritten digits (UCI, 1797 images of 8 by 8, ships with the package) as a small real data set."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from cloud.errors import TrainError
from lite_runtime.errors import MissingExtraError

__all__ = ["BACKGROUND", "DigitsSplit", "load_digits_split"]

BACKGROUND = -1.0
"""The value of the background; ink has values up to 1."""

_SIDE = 8


class DigitsSplit(NamedTuple):
    """Images [N, 1, size, size] float32 about zero, labels [N] int32; the last two are held out."""

    x: npt.NDArray[np.float32]
    y: npt.NDArray[np.int32]
    held_out_x: npt.NDArray[np.float32]
    held_out_y: npt.NDArray[np.int32]


def load_digits_split(seed: int = 0, size: int = 12, held_out: float = 0.2) -> DigitsSplit:
    """A stratified split: the share `held_out` of every class is held out.

    Images are repeated as many whole times as fit into `size` by `size`, and are centred on background.
    Raises TrainError for a share or a size out of range, MissingExtraError without scikit-learn.
    """
    try:
        from sklearn.datasets import load_digits
        from sklearn.model_selection import train_test_split
    except ImportError:
        raise MissingExtraError("scikit-learn", "cloud", "the digits data set ships with it") from None
    if size < _SIDE:
        raise TrainError(f"expected a size of at least {_SIDE}, got {size}")
    if not 0 < held_out < 1:
        raise TrainError(f"expected a held-out share between 0 and 1, got {held_out}")
    images, labels = load_digits(return_X_y=True)
    pixels = (images.reshape(-1, 1, _SIDE, _SIDE) / 8 - 1).astype(np.float32)
    scaled = pixels.repeat(size // _SIDE, axis=2).repeat(size // _SIDE, axis=3)
    margin = size - scaled.shape[2]
    around = (margin // 2, margin - margin // 2)
    centred = np.pad(scaled, [(0, 0), (0, 0), around, around], constant_values=BACKGROUND)
    x, held_x, y, held_y = train_test_split(
        centred, labels.astype(np.int32), test_size=held_out, stratify=labels, random_state=seed
    )
    return DigitsSplit(x, y, held_x, held_y)
