"""RIFF WAVE to samples. Nothing in a file is believed: sizes, rates and formats are checked against what is there.

Format: "Multimedia Programming Interface and Data Specifications 1.0" (IBM, Microsoft 1991) and Microsoft's
WAVEFORMATEXTENSIBLE.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from edge.gateway.errors import GatewayError
from lite_runtime.graph import Array

__all__ = ["Wave", "header", "samples"]

_PCM, _FLOAT, _EXTENSIBLE = 1, 3, 0xFFFE
_GUID = bytes.fromhex("000000001000800000aa00389b71")
"""What follows the format's number in an extensible header's subformat."""
_LOW, _HIGH = 4000, 192_000
_CHANNELS = 64


class Wave(NamedTuple):
    """A file's header and its data, not yet decoded."""

    rate: int
    """Samples a second, 4000..192000."""
    channels: int
    form: tuple[int, int]
    """(format's number, bits of a sample)."""
    data: memoryview

    @property
    def frames(self) -> int:
        """Samples of each channel."""
        return len(self.data) // (self.channels * self.form[1] // 8)


def header(data: bytes) -> Wave:
    """The header of a WAV file: 8-, 16-, 24- or 32-bit integers, 32- or 64-bit floats. Raises GatewayError (400)."""
    view = memoryview(data)
    if len(view) < 12 or bytes(view[:4]) != b"RIFF" or bytes(view[8:12]) != b"WAVE":
        raise _bad("'RIFF' and 'WAVE'", repr(bytes(view[:12])))
    at, form = 12, None
    while at + 8 <= len(view):
        name, size = struct.unpack_from("<4sI", view, at)
        at += 8
        if size > len(view) - at:
            raise _bad(f"chunk {name!r} to end within {len(view)} bytes", f"{size} bytes from byte {at} on")
        if name == b"fmt ":
            form = _format(view[at : at + size])
        elif name == b"data":
            if form is None:
                raise _bad("a chunk 'fmt ' before 'data'", "none")
            return _wave(form, view[at : at + size])
        at += size + size % 2
    raise _bad("a chunk 'data'", "none")


class _Format(NamedTuple):
    number: int
    channels: int
    rate: int
    block: int
    bits: int


def _format(chunk: memoryview) -> _Format:
    if len(chunk) < 16:
        raise _bad("16 bytes or more of 'fmt '", f"{len(chunk)}")
    number, channels, rate, _, block, bits = struct.unpack_from("<HHIIHH", chunk)
    if number == _EXTENSIBLE:
        if len(chunk) < 40 or chunk[26:40] != _GUID:
            raise _bad("an extensible format of PCM or float samples", "another")
        (number,) = struct.unpack_from("<H", chunk, 24)
    return _Format(number, channels, rate, block, bits)


def _wave(form: _Format, data: memoryview) -> Wave:
    if (form.number, form.bits) not in _DECODE:
        raise _bad("PCM of 8, 16, 24 or 32 bits or floats of 32 or 64", f"format {form.number} of {form.bits} bits")
    if not 1 <= form.channels <= _CHANNELS:
        raise _bad(f"1..{_CHANNELS} channels", f"{form.channels}")
    if not _LOW <= form.rate <= _HIGH:
        raise _bad(f"{_LOW}..{_HIGH} samples a second", f"{form.rate}")
    if form.block != form.channels * form.bits // 8 or len(data) % form.block:
        raise _bad(f"whole frames of {form.channels * form.bits // 8} bytes", f"{form.block} and {len(data)} of data")
    if not len(data):
        raise _bad("samples", "none")
    return Wave(form.rate, form.channels, (form.number, form.bits), data)


def samples(wave: Wave) -> Array:
    """float32 [frames, channels]; integers as multiples of 2 ** (1 - bits), so that full scale is [-1, 1). Raises
    GatewayError (400) for floats that are not finite."""
    result = _DECODE[wave.form](wave.data).reshape(-1, wave.channels)
    if wave.form[0] == _FLOAT and not np.isfinite(result).all():
        raise _bad("finite samples", "NaN, infinities or numbers beyond float32")
    return result


def _integers(dtype: str, zero: int, full: float) -> Callable[[memoryview], Array]:
    return lambda data: (np.frombuffer(data, dtype).astype(np.float32) - np.float32(zero)) * np.float32(1 / full)


def _three_bytes(data: memoryview) -> Array:
    wide = np.zeros((len(data) // 3, 4), np.uint8)
    wide[:, 1:] = np.frombuffer(data, np.uint8).reshape(-1, 3)
    return (wide.view("<i4")[:, 0] >> 8).astype(np.float32) * np.float32(1 / (1 << 23))


def _floats(dtype: str) -> Callable[[memoryview], Array]:
    return lambda data: np.frombuffer(data, dtype).astype(np.float32)


_DECODE: Mapping[tuple[int, int], Callable[[memoryview], Array]] = {
    (_PCM, 8): _integers("u1", 128, 1 << 7),
    (_PCM, 16): _integers("<i2", 0, 1 << 15),
    (_PCM, 24): _three_bytes,
    (_PCM, 32): _integers("<i4", 0, 1 << 31),
    (_FLOAT, 32): _floats("<f4"),
    (_FLOAT, 64): _floats("<f8"),
}


def _bad(expected: str, got: str) -> GatewayError:
    return GatewayError(400, f"WAV: expected {expected}, got {got}")
