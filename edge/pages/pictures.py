"""An example as a picture in a page: images, series and rows of figures. Every function returns escaped HTML."""

from __future__ import annotations

import base64
import struct
import zlib
from html import escape

import numpy as np
import numpy.typing as npt

__all__ = ["pictured", "png", "png_address"]

Array = npt.NDArray[np.generic]

SMALLEST = 8
"""Sides of an image have at least so many pixels; smaller arrays are figures."""
MOST_POINTS, MOST_LINES, MOST_FIGURES = 256, 9, 48
"""Of a series, its channels, and figures of other arrays."""
COLOURS = 4
_WIDE, _TALL = 240.0, 90.0


def pictured(array: Array, name: str = "") -> str:
    """One row of an input: an image [1 or 3, height, width] or [height, width, 1 or 3], a series [channels, steps] or
    [channels, 1, steps], else its figures."""
    values = np.asarray(array, np.float64)
    image = _image(values)
    if image is not None:
        return f'<img class="example" alt="{escape(name)}" src="{png_address(image)}">'
    series = _series(values)
    if series is not None:
        return _lines(series, name)
    flat = values.reshape(-1)
    words = "  ".join(f"{value:.4g}" for value in flat[:MOST_FIGURES])
    return f"<code>{escape(words)}{' …' if flat.size > MOST_FIGURES else ''}</code>"


def png(image: npt.NDArray[np.uint8]) -> bytes:
    """A PNG file of an image [height, width] or [height, width, 3] (PNG specification, third edition, section 11)."""
    tall, wide = image.shape[:2]
    colour = 2 if image.ndim == 3 else 0
    rows = np.ascontiguousarray(image.reshape(tall, -1))
    raw = np.concatenate([np.zeros((tall, 1), np.uint8), rows], axis=1).tobytes()
    head = struct.pack(">IIBBBBB", wide, tall, 8, colour, 0, 0, 0)
    parts = ((b"IHDR", head), (b"IDAT", zlib.compress(raw, 9)), (b"IEND", b""))
    chunks = (struct.pack(">I", len(d)) + k + d + struct.pack(">I", zlib.crc32(k + d)) for k, d in parts)
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def png_address(image: npt.NDArray[np.uint8]) -> str:
    """The PNG file of an image as an address, for `src` and `href`."""
    return f"data:image/png;base64,{base64.b64encode(png(image)).decode('ascii')}"


def _image(values: npt.NDArray[np.float64]) -> npt.NDArray[np.uint8] | None:
    """Bytes [height, width] or [height, width, 3] over the array's own range; None if it is no image."""
    if values.ndim == 3 and values.shape[0] in (1, 3) and min(values.shape[1:]) >= SMALLEST:
        values = np.moveaxis(values, 0, -1)
    if values.ndim == 2 and min(values.shape) >= SMALLEST:
        values = values[..., None]
    if values.ndim != 3 or values.shape[-1] not in (1, 3) or min(values.shape[:2]) < SMALLEST:
        return None
    values = np.nan_to_num(values)
    low, high = float(values.min()), float(values.max())
    scaled = np.round((values - low) * (255 / ((high - low) or 1.0))).astype(np.uint8)
    return scaled[..., 0] if scaled.shape[-1] == 1 else scaled


def _series(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64] | None:
    """[channels, steps]; None if it is no series."""
    if values.ndim == 3 and 1 in values.shape[:2]:
        values = values.reshape(-1, values.shape[-1])
    if values.ndim != 2 or values.shape[-1] < SMALLEST:
        return None
    return np.nan_to_num(values)


def _lines(series: npt.NDArray[np.float64], name: str) -> str:
    """Channels over time, all in one range."""
    shown = series[:MOST_LINES, :: max(1, -(-series.shape[1] // MOST_POINTS))]
    low, high = float(shown.min()), float(shown.max())
    across = np.linspace(0, _WIDE, shown.shape[1])
    up = _TALL - (shown - low) * (_TALL / ((high - low) or 1.0))
    lines = "".join(
        f'<polyline class="c{number % COLOURS}" points="{_points(across, row)}"/>' for number, row in enumerate(up)
    )
    return f'<svg viewBox="0 -2 {_WIDE:g} {_TALL + 4:g}" role="img" aria-label="{escape(name)}">{lines}</svg>'


def _points(across: npt.NDArray[np.float64], up: npt.NDArray[np.float64]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in zip(across, up, strict=True))
