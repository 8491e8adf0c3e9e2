"""What the axes of a sample mean, and which of its elements are changed together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import numpy as np

from lite_runtime.errors import ExplainError
from lite_runtime.graph import Array

__all__ = ["KINDS", "Kind", "Layout", "blocks", "layout_of", "superpixels"]

Kind: TypeAlias = Literal["image", "sound", "series", "table", "text"]
KINDS: tuple[Kind, ...] = get_args(Kind)
_FEW_CHANNELS = 16
"""Axes of up to this size beside a longer one are channels of a series; larger ones make a picture."""
_LONG = 2000
"""Samples of one axis from this size on are sound."""
_ACROSS = 8
"""Parts along an axis of an image, if their size is not given: 64 in all, few enough for Shapley values."""
_ALONG, _LEAST_ALONG = 48, 6
"""Parts along the time, divided among the channels of a series, but at least so many."""


@dataclass(frozen=True)
class Layout:
    """The kind of a sample, and the axes along which its parts lie: rows and columns, time, or features. Other axes are
    channels."""

    kind: Kind
    shape: tuple[int, ...]
    places: tuple[int, ...]

    @property
    def channels(self) -> tuple[int, ...]:
        """The other axes."""
        return tuple(axis for axis in range(len(self.shape)) if axis not in self.places)

    def part_sizes(self, size: int | None = None) -> tuple[int, ...]:
        """Sizes of a part along each axis. size: along the places; by default a few parts, or one element of a table or
        text. Channels of an image belong together; those of a series are parts of their own."""
        sizes = []
        for axis, extent in enumerate(self.shape):
            if axis not in self.places:
                sizes.append(1 if self.kind == "series" else extent)
            elif size is not None:
                sizes.append(min(size, extent))
            else:
                channels = int(np.prod([self.shape[a] for a in self.channels])) if self.kind == "series" else 1
                along = max(_LEAST_ALONG, _ALONG // channels)
                parts = {"image": _ACROSS, "sound": along, "series": along}.get(self.kind, extent)
                sizes.append(max(1, -(-extent // parts)))
        return tuple(sizes)

    def over_places(self, values: Array) -> Array:
        """Values (*shape) summed over channels."""
        return np.asarray(values.sum(self.channels))


def layout_of(shape: Sequence[int], dtype: np.dtype[np.generic], kind: Kind | None = None) -> Layout:
    """The layout of samples, guessed from their shape if no kind is given. Raises ExplainError if the shape does not
    fit the kind."""
    shape = tuple(shape)
    kind = kind or _guess(shape, dtype)
    if kind not in KINDS:
        raise ExplainError(f"kind: expected one of {', '.join(KINDS)}, got {kind!r}")
    if kind == "text" and dtype.kind == "f":
        raise ExplainError("kind: expected token ids, integers, for a text, got floats")
    wide = [axis for axis, extent in enumerate(shape) if extent > 1]
    ranked = sorted(range(len(shape)), key=lambda axis: -shape[axis])
    if kind == "image":
        if len(shape) not in (2, 3) or len(wide) < 2:
            raise ExplainError(f"kind: expected an image of rows, columns and perhaps channels, got {list(shape)}")
        few = _channel_axis(shape)
        return Layout(kind, shape, tuple(axis for axis in range(len(shape)) if axis != few))
    if not shape:
        raise ExplainError(f"kind: expected a sample of at least one axis for {kind}, got a number")
    return Layout(kind, shape, tuple(range(len(shape))) if kind == "table" else (ranked[0],))


def _channel_axis(shape: tuple[int, ...]) -> int | None:
    """The axis of an image that is neither rows nor columns: the first or the last, whichever is smaller."""
    return None if len(shape) == 2 else 0 if shape[0] < shape[-1] else 2


def _guess(shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> Kind:
    if dtype.kind != "f" and dtype.itemsize > 1:
        return "text"
    wide = sorted((extent for extent in shape if extent > 1), reverse=True)
    if len(wide) <= 1:
        long = bool(wide) and wide[0] >= _LONG
        return "sound" if long else "series" if len(shape) > 1 else "table"
    if len(wide) == 2:
        return (
            "series" if wide[1] <= _FEW_CHANNELS and wide[0] >= 2 * wide[1] else "image" if len(shape) < 4 else "table"
        )
    return "image" if len(shape) == 3 else "table"


def blocks(shape: Sequence[int], sizes: Sequence[int]) -> Array:
    """Parts as blocks of these sizes: (*shape) int64, the number of each element's part from 0 on. The last block along
    an axis may be smaller."""
    parts = np.zeros(tuple(shape), np.int64)
    for axis, (extent, size) in enumerate(zip(shape, sizes, strict=True)):
        along = np.arange(extent) // size
        turned = along.reshape([-1 if a == axis else 1 for a in range(len(shape))])
        parts = parts * (int(along[-1]) + 1) + turned
    return parts


def superpixels(x: Array, layout: Layout, count: int = 50, weight: float = 0.5, rounds: int = 8) -> Array:
    """Parts of an image that are near in place and colour, (*shape) int64: k-means from a regular grid (Achanta et al.
    2012, "SLIC Superpixels"), every pixel compared with every centre.

    weight: how much a distance of one grid cell counts beside one standard deviation of colour. Raises ExplainError for
    another kind.
    """
    if layout.kind != "image":
        raise ExplainError(f"superpixels: expected an image, got {layout.kind}; use parts by size")
    colours = np.moveaxis(np.asarray(x, np.float64), layout.places, (0, 1))
    rows, columns = colours.shape[:2]
    colours = colours.reshape(rows * columns, -1)
    colours = (colours - colours.mean(0)) / max(float(colours.std()), 1e-12)
    step = max(1.0, (rows * columns / count) ** 0.5)
    there = np.stack(np.meshgrid(np.arange(rows), np.arange(columns), indexing="ij"), -1).reshape(-1, 2)
    points = np.concatenate([there * (weight / step), colours], 1)
    starts = [np.arange(step / 2, extent, step).astype(np.int64) for extent in (rows, columns)]
    centres = points[(starts[0][:, None] * columns + starts[1]).reshape(-1)]
    for _ in range(rounds):
        far = (points**2).sum(1)[:, None] - 2 * points @ centres.T + (centres**2).sum(1)
        nearest = far.argmin(1)
        kept = np.unique(nearest)
        centres = np.stack([points[nearest == one].mean(0) for one in kept])
    parts = np.unique(nearest, return_inverse=True)[1].reshape(rows, columns)
    wanted = [layout.shape[axis] if axis in layout.places else 1 for axis in range(len(layout.shape))]
    return np.broadcast_to(parts.reshape(wanted), layout.shape).astype(np.int64)
