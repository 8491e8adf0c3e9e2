"""Inputs as pixels, for the page."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cloud.audit.corruptions.runs import arranged
from cloud.audit.subject import Kind
from lite_runtime.graph import Array

__all__ = ["pixels_of", "rows_of", "side_by_side"]

_MOST = 160
"""The most pixels of a side; larger pictures are thinned out."""


def pixels_of(inputs: Sequence[Array], kind: Kind, span: tuple[float, float]) -> list[Array]:
    """Inputs (*shape) of kind image or spectrogram as uint8 (height, width) or (height, width, 3). Span is black to
    white; spectrograms have time to the right, low bands below, and the range of each band among the inputs."""
    order, sizes = arranged(inputs[0].shape, kind)
    given = np.stack([np.transpose(x, order).reshape(sizes) for x in inputs])
    low, high = span
    if kind == "spectrogram":
        least, most = given.min((0, 1)), given.max((0, 1))
        given = np.swapaxes((given - least) / np.maximum(most - least, 1e-30), 1, 2)[:, ::-1]
        low, high = 0.0, 1.0
    else:
        given = given[..., :3] if sizes[2] >= 3 else given[..., 0]
    step = -(-max(given.shape[1:3]) // _MOST)
    grey = np.clip((given[:, ::step, ::step] - low) / (high - low), 0, 1)
    return list(np.asarray(np.rint(grey * 255), np.uint8))


def side_by_side(inputs: Sequence[Array], kind: Kind, span: tuple[float, float]) -> Array:
    """Several inputs of one shape in a row, or below one another if they are wide, with a white gap."""
    shown = pixels_of(inputs, kind, span)
    high, wide = shown[0].shape[:2]
    return _joined(shown, 0 if wide > 2 * high else 1)


def rows_of(rows: Sequence[Sequence[Array]], kind: Kind, span: tuple[float, float]) -> Array:
    """Rows of as many inputs each, below one another, with a white gap."""
    shown = iter(pixels_of([one for row in rows for one in row], kind, span))
    return _joined([_joined([next(shown) for _ in row], 1) for row in rows], 0)


def _joined(shown: Sequence[Array], axis: int) -> Array:
    high, wide = shown[0].shape[:2]
    gap = np.full((*((2, wide) if axis == 0 else (high, 2)), *shown[0].shape[2:]), 255, np.uint8)
    return np.concatenate([part for one in shown for part in (gap, one)][1:], axis=axis)
