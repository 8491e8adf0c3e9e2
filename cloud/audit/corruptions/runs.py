"""Corruptions applied: which fit a kind of input, and changed examples, by severity and seed alone."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping

import numpy as np

from cloud.audit.corruptions.images import IMAGES
from cloud.audit.corruptions.rows import SEVERITIES, Corruption, Scales
from cloud.audit.corruptions.series import SERIES
from cloud.audit.corruptions.sound import SOUND, SPECTROGRAMS
from cloud.audit.corruptions.tables import TABLES
from cloud.audit.subject import Kind
from cloud.errors import AuditError
from lite_runtime.graph import Array

__all__ = ["arranged", "corrupted", "corruptions_of", "levels_of"]

_LISTS: Mapping[Kind, tuple[Corruption, ...]] = {
    "image": IMAGES, "sound": SOUND, "spectrogram": SPECTROGRAMS, "series": SERIES, "table": TABLES,
}  # fmt: skip
_REDUCED: Mapping[Kind, tuple[int, ...]] = {
    "sound": (0, 2), "spectrogram": (0, 1), "series": (0, 2), "table": (0,),
}  # fmt: skip
"""Axes over which a channel, band or feature has one mean."""
_ROWS = 256
"""Examples that draw random numbers together; a constant, so that a seed decides whatever the memory."""
_LARGE = 64
"""Images with sides from here on have the levels of large ones."""


def arranged(shape: tuple[int, ...], kind: Kind) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """How inputs (n, *shape) become what corruptions take: the order of their axes, and the sizes after it.

    Of images, channels are the axis of 1, 3 or 4, the first if there are two. Otherwise time is the longest axis, the
    last of several, and the other axes are channels or bands. Raises AuditError for a shape that has no such axes.
    """
    if kind == "table":
        return tuple(range(len(shape))), (math.prod(shape),)
    if kind == "image":
        if len(shape) == 2:
            return (0, 1), (*shape, 1)
        first = shape[0] in (1, 3, 4) if len(shape) == 3 else None
        if first is None or not (first or shape[-1] in (1, 3, 4)):
            raise AuditError(
                f"kind image: expected inputs of (height, width), or with 1, 3 or 4 channels first or last, got "
                f"{shape}; use another --kind"
            )
        return ((1, 2, 0), (*shape[1:], shape[0])) if first else ((0, 1, 2), shape)
    time = max(range(len(shape)), key=lambda axis: (shape[axis], axis))
    if shape[time] < 2:
        raise AuditError(f"kind {kind}: expected inputs with an axis of time, got {shape}; use --kind table")
    rest = tuple(axis for axis in range(len(shape)) if axis != time)
    others = math.prod(shape[axis] for axis in rest)
    if kind == "spectrogram":
        return (time, *rest), (shape[time], others)
    return (*rest, time), (others, shape[time])


def corruptions_of(shape: tuple[int, ...], kind: Kind) -> tuple[Corruption, ...]:
    """Those that inputs of this shape can have. Raises AuditError as `arranged`."""
    inner = (1, *arranged(shape, kind)[1])
    return tuple(row for row in _LISTS[kind] if row.fits(inner))


def levels_of(corruption: Corruption, shape: tuple[int, ...], kind: Kind) -> tuple[float, ...]:
    """The level of each severity for inputs of this shape. Raises AuditError as `arranged`."""
    large = bool(corruption.large) and min(arranged(shape, kind)[1][:2]) >= _LARGE
    return corruption.large if large else corruption.levels


def corrupted(
    corruption: Corruption, severity: int, x: Array, kind: Kind, span: tuple[float, float], seed: int = 0,
    known: Array | None = None,
) -> Array:  # fmt: skip
    """Inputs (n, ...) changed, float32, each value within span (least, greatest).

    severity: 1 to 5. All severities draw the same random numbers. known: the examples that give each channel's mean,
    deviation and range, `x` itself by default. Raises AuditError for another severity, and as `arranged`.
    """
    if severity not in range(1, SEVERITIES + 1):
        raise AuditError(f"severity: expected 1 to {SEVERITIES}, got {severity}")
    order, sizes = arranged(x.shape[1:], kind)
    axes = (0, *(axis + 1 for axis in order))
    low, high = span
    scales = _scales(np.transpose(x if known is None else known, axes).reshape(-1, *sizes), kind)
    levels = levels_of(corruption, x.shape[1:], kind)
    out = np.empty(x.shape, np.float32)
    for start in range(0, len(x), _ROWS):
        part = np.transpose(x[start : start + _ROWS], axes)
        given = part.reshape(len(part), *sizes).astype(np.float32)
        given = (given - np.float32(low)) / np.float32(high - low) if kind == "image" else given
        random = np.random.default_rng([seed, zlib.crc32(corruption.name.encode()), start])
        changed = corruption.change(given, levels[severity - 1], scales, random)
        changed = np.clip(changed, 0, 1) * (high - low) + low if kind == "image" else changed
        back = np.argsort(axes)
        out[start : start + len(part)] = np.transpose(np.asarray(changed).reshape(part.shape), back)
    return np.clip(out, np.float32(low), np.float32(high))


def _scales(x: Array, kind: Kind) -> Scales:
    """Of each channel, band or feature; images have the same for all."""
    if kind == "image":
        return Scales(*(np.array([value], np.float32) for value in (0, 1, 0, 1)))
    axes = _REDUCED[kind]
    reduced = (x.mean(axes, keepdims=True), x.std(axes, keepdims=True), x.min(axes, keepdims=True),
               x.max(axes, keepdims=True))  # fmt: skip
    return Scales(*(np.asarray(one, np.float32) for one in reduced))
