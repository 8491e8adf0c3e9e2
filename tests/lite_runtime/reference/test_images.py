"""Image formats, written here byte by byte."""

from __future__ import annotations

import struct
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lite_runtime.errors import UnsupportedOpError
from tests.lite_runtime.reference.oracle import RNG, ours

IMAGE = RNG.integers(0, 256, (5, 6, 3)).astype(np.uint8)
H, W, _ = IMAGE.shape


def pnm() -> bytes:
    return b"P6 # a comment\n%d %d\n255\n" % (W, H) + IMAGE.tobytes()


def bmp() -> bytes:
    rows = b"".join(row[:, ::-1].tobytes().ljust((3 * W + 3) // 4 * 4, b"\0") for row in IMAGE[::-1])
    return (
        b"BM" + struct.pack("<IIIIiiHHIIiiII", 54 + len(rows), 0, 54, 40, W, H, 1, 24, 0, len(rows), 0, 0, 0, 0) + rows
    )


def png(kind: int = 0) -> bytes:
    """Every row under one of PNG's five filters."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    flat = np.pad(IMAGE.reshape(H, -1).astype(int), ((1, 0), (3, 0)))
    now, left, above, corner = flat[1:, 3:], flat[1:, :-3], flat[:-1, 3:], flat[:-1, :-3]
    guess = left + above - corner
    near = np.stack([abs(guess - left), abs(guess - above), abs(guess - corner)]).argmin(0)
    paeth = np.choose(near, [left, above, corner])
    filtered = (now - (0 * now, left, above, (left + above) // 2, paeth)[kind]).astype(np.uint8)
    raw = b"".join(bytes([kind]) + row.tobytes() for row in filtered)
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", W, H, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(raw)) + chunk(b"IEND", b"")


def tiff(order: str = "<", deflate: bool = False) -> bytes:
    strip = zlib.compress(IMAGE.tobytes()) if deflate else IMAGE.tobytes()
    bits = struct.pack(order + "HHH", 8, 8, 8)
    tags = [(256, W), (257, H), (259, 8 if deflate else 1), (262, 2), (273, 14), (277, 3), (279, len(strip))]
    entries = [struct.pack(order + "HHII", tag, 4, 1, value) for tag, value in tags]
    entries.insert(2, struct.pack(order + "HHII", 258, 3, 3, 8))
    head = (b"II*\0" if order == "<" else b"MM\0*") + struct.pack(order + "I", 14 + len(strip)) + bits
    return head + strip + struct.pack(order + "H", len(entries)) + b"".join(entries) + b"\0" * 4


STREAMS = [pnm(), bmp(), *(png(k) for k in range(5)), tiff(), tiff(">"), tiff(deflate=True)]


def decode(stream: bytes, pixel_format: str = "RGB") -> np.ndarray:
    return ours("ImageDecoder", [np.frombuffer(stream, np.uint8)], {"pixel_format": pixel_format})[0]


@pytest.mark.parametrize("stream", STREAMS, ids=range(len(STREAMS)))
def test_lossless_formats(stream: bytes) -> None:
    np.testing.assert_array_equal(decode(stream), IMAGE)
    np.testing.assert_array_equal(decode(stream, "BGR"), IMAGE[..., ::-1])
    grey = decode(stream, "Grayscale")
    assert grey.shape == (H, W, 1)
    np.testing.assert_allclose(grey[..., 0], IMAGE @ [0.299, 0.587, 0.114], atol=0.51)


@given(st.sampled_from(STREAMS), st.integers(0, 200), st.binary(max_size=4), st.booleans())
def test_damage_gives_an_empty_image_or_some_image(stream: bytes, at: int, noise: bytes, cut: bool) -> None:
    at = 8 + at % (len(stream) - 8)  # the magic stays
    damaged = stream[:at] if cut else stream[:at] + noise + stream[at + len(noise) :]
    image = decode(damaged)
    assert image.dtype == np.uint8
    assert image.shape[2] == 3


def test_other_formats_are_refused() -> None:
    with pytest.raises(UnsupportedOpError, match="JPEG"):
        decode(b"\xff\xd8\xff\xe0 and so on")
    with pytest.raises(UnsupportedOpError, match="CMYK"):
        decode(pnm(), "CMYK")
