"""ImageDecoder for the formats that Python's standard library can decode: BMP, PNM, PNG and TIFF without lossy
compression."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable

import numpy as np

from lite_runtime.errors import UnsupportedOpError
from lite_runtime.graph import Array
from lite_runtime.reference.registry import define
from lite_runtime.reference.support import require

__all__: list[str] = []

_MOST_BYTES = 1 << 28


class _Undecodable(Exception):
    """The stream is damaged or of an unsupported variant; ONNX then requires an empty image."""


def _need(condition: bool) -> None:
    if not condition:
        raise _Undecodable


def _pixels(data: bytes, offset: int, height: int, width: int, channels: int, stride: int = 0) -> Array:
    """(height, width, channels) bytes from rows of `stride` bytes."""
    stride = stride or width * channels
    _need(0 < height * stride <= _MOST_BYTES and stride >= width * channels > 0)
    _need(offset >= 0 and offset + (height - 1) * stride + width * channels <= len(data))
    raw = np.frombuffer(data[offset : offset + height * stride].ljust(height * stride, b"\0"), np.uint8)
    return raw.reshape(height, stride)[:, : width * channels].reshape(height, width, channels)


def _bmp(data: bytes) -> Array:
    offset, _, width, height, _, bits, compression = struct.unpack_from("<IIiiHHI", data, 10)
    _need(compression in (0, 3) and bits in (8, 24, 32) and width > 0)
    channels = bits // 8
    rows = _pixels(data, offset, abs(height), width, channels, (width * channels + 3) // 4 * 4)
    if bits == 8:
        (size,) = struct.unpack_from("<I", data, 14)
        palette = _pixels(data, 14 + size, 1, (offset - 14 - size) // 4, 4)[0]
        _need(int(rows.max()) < len(palette))
        rows = palette[rows[..., 0]]
    return (rows[::-1] if height > 0 else rows)[..., 2::-1]


def _pnm(data: bytes) -> Array:
    """P5 and P6: binary; preceded by the magic, width, height and largest value as text, with # comments."""
    words: list[bytes] = []
    at = 0
    while len(words) < 4:
        _need(at < len(data))
        if data[at : at + 1] == b"#":
            at = (data.find(b"\n", at) + 1) or len(data)
        elif data[at : at + 1].isspace():
            at += 1
        else:
            start = at
            while at < len(data) and not data[at : at + 1].isspace():
                at += 1
            words.append(data[start:at])
    _need(words[0] in (b"P5", b"P6") and int(words[3]) == 255)
    return _pixels(data, at + 1, int(words[2]), int(words[1]), 3 if words[0] == b"P6" else 1)


_PNG_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}


def _png(data: bytes) -> Array:
    chunks: dict[bytes, bytes] = {}
    at = 8
    while at + 12 <= len(data):
        size, kind = struct.unpack_from(">I4s", data, at)
        chunks[kind] = chunks.get(kind, b"") + data[at + 8 : at + 8 + size]
        at += size + 12
    _need(b"IHDR" in chunks and b"IDAT" in chunks)
    width, height, depth, kind, _, _, interlace = struct.unpack(">IIBBBBB", chunks[b"IHDR"])
    _need(depth == 8 and kind in _PNG_CHANNELS and not interlace)
    channels = _PNG_CHANNELS[kind]
    total = height * (width * channels + 1)
    _need(0 < total <= _MOST_BYTES)
    raw = zlib.decompressobj().decompress(chunks[b"IDAT"], total)
    rows = _pixels(raw, 0, height, width * channels + 1, 1)[..., 0]
    image = _unfilter(rows[:, 0], rows[:, 1:], channels).reshape(height, width, channels)
    if kind == 3:
        palette = _pixels(chunks.get(b"PLTE", b""), 0, 1, len(chunks.get(b"PLTE", b"")) // 3, 3)[0]
        _need(int(image.max()) < len(palette))
        return np.asarray(palette[image[..., 0]])
    return image[..., : 3 if channels > 2 else 1]


def _unfilter(kinds: Array, rows: Array, channels: int) -> Array:
    """Undo PNG's prediction: from the left, from above, from their mean, or by Paeth's rule."""
    out = np.zeros((len(rows) + 1, rows.shape[1] + channels), np.int64)  # a row and a pixel of zeros before the image
    for y, (kind, row) in enumerate(zip(kinds, rows, strict=True), 1):
        _need(kind < 5)
        for x, value in enumerate(row.tolist(), channels):
            left, above, corner = out[y, x - channels], out[y - 1, x], out[y - 1, x - channels]
            guess = (0, left, above, (left + above) // 2, _paeth(left, above, corner))[kind]
            out[y, x] = (value + guess) & 255
    return out[1:, channels:].astype(np.uint8)


def _paeth(left: int, above: int, corner: int) -> int:
    """The neighbour nearest to left + above - corner; ties are resolved in this order."""
    guess = left + above - corner
    return min((left, above, corner), key=lambda v: abs(guess - v))


_TIFF_SIZES = {1: "B", 3: "H", 4: "I"}


def _tiff(data: bytes) -> Array:
    """Strips of 8-bit samples, raw or deflated, with interleaved channels."""
    order = "<" if data[:2] == b"II" else ">"
    (directory,) = struct.unpack_from(order + "I", data, 4)
    (count,) = struct.unpack_from(order + "H", data, directory)
    tags: dict[int, tuple[int, ...]] = {}
    for i in range(count):
        at = directory + 2 + 12 * i
        tag, kind, n = struct.unpack_from(order + "HHI", data, at)
        if kind in _TIFF_SIZES and n <= len(data):
            form = f"{order}{n}{_TIFF_SIZES[kind]}"
            place = at + 8 if struct.calcsize(form) <= 4 else struct.unpack_from(order + "I", data, at + 8)[0]
            tags[tag] = struct.unpack_from(form, data, place)
    channels, compression = tags.get(277, (1,))[0], tags.get(259, (1,))[0]
    plain = set(tags.get(258, (1,))) == {8} and tags.get(284, (1,)) == (1,) and tags.get(317, (1,)) == (1,)
    _need(plain and compression in (1, 8, 32946) and channels in (1, 3, 4) and {256, 257, 273, 279} <= set(tags))
    strips = [data[o : o + n] for o, n in zip(tags[273], tags[279], strict=True)]
    if compression != 1:
        strips = [zlib.decompressobj().decompress(s, _MOST_BYTES) for s in strips]
    image = _pixels(b"".join(strips), 0, tags[257][0], tags[256][0], channels)[..., : 3 if channels > 2 else 1]
    return 255 - image if tags.get(262) == (0,) else image


_READERS: dict[bytes, Callable[[bytes], Array]] = {
    b"BM": _bmp,
    b"P5": _pnm,
    b"P6": _pnm,
    b"\x89PNG\r\n\x1a\n": _png,
    b"II*\0": _tiff,
    b"MM\0*": _tiff,
}


@define("ImageDecoder")
def _image_decoder(encoded: Array, /, pixel_format: str = "RGB") -> Array:
    """A stream of bytes -> uint8 (height, width, channels); (0, 0, channels) for a damaged one."""
    require(encoded.dtype == np.uint8 and encoded.ndim == 1, f"expected uint8 of rank 1, got {encoded.dtype}")
    if pixel_format not in ("RGB", "BGR", "Grayscale"):
        raise UnsupportedOpError(f"expected pixel_format RGB, BGR or Grayscale, got {pixel_format!r}")
    data = encoded.tobytes()
    reader = next((r for magic, r in _READERS.items() if data.startswith(magic)), None)
    if reader is None:
        raise UnsupportedOpError("expected a BMP, PNM, PNG or TIFF image; decode JPEG, JPEG 2000 and WebP beforehand")
    try:
        image = reader(data)
    except (_Undecodable, struct.error, zlib.error, ValueError):
        return np.zeros((0, 0, 1 if pixel_format == "Grayscale" else 3), np.uint8)
    if pixel_format == "Grayscale":
        return image if image.shape[2] == 1 else _luma(image)
    colours = np.repeat(image, 3, 2) if image.shape[2] == 1 else image
    return np.ascontiguousarray(colours[..., ::-1] if pixel_format == "BGR" else colours)


def _luma(image: Array) -> Array:
    """ITU-R 601 luma weights in 16-bit fixed point."""
    weights = np.array([19595, 38470, 7471], np.int64)
    return ((image.astype(np.int64) @ weights + (1 << 15)) >> 16).astype(np.uint8)[..., None]
