"""Sound: WAV to one channel at one rate, and rows of equal length."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from edge.gateway.errors import GatewayError
from edge.gateway.processing import wav
from edge.gateway.processing.payload import raw
from edge.gateway.processing.resample import resample
from edge.gateway.processing.steps import Kind, Payload, Single, Source, need
from lite_runtime.graph import Array

__all__ = ["SAMPLES", "Audio", "Frames", "Length", "frame_count", "framed"]

ELEMENTS = 1 << 25
"""Most numbers that cutting a sound into overlapping frames makes."""


SAMPLES = 1 << 26
"""Most samples that the sounds of a request become, whatever is declared."""


@dataclass(frozen=True)
class Audio(Source):
    """A WAV file as float32 [samples]: the mean of its channels, at `rate` samples a second."""

    rate: int
    max_seconds: float
    base64: bool
    unit = "seconds"

    @property
    def limit(self) -> float:
        """Seconds of all sounds of a request, at most `SAMPLES` once they are at `rate`."""
        return min(self.max_seconds, SAMPLES / self.rate)

    def outer(self) -> Kind:
        """See `Source`."""
        return Kind("string", ())

    def kind(self) -> Kind:
        """See `Source`."""
        return Kind("float32", (None,), self.rate)

    def open(self, item: Any) -> Payload:
        """See `Source`."""
        wave = wav.header(raw(item, self.base64, "a WAV file"))
        return Payload(wave.frames / wave.rate, wave)

    def decode(self, payload: Payload) -> Array:
        """See `Source`."""
        wave: wav.Wave = payload.data
        mixed = wav.samples(wave)
        mono = mixed[:, 0] if wave.channels == 1 else mixed.mean(1, dtype=np.float32)
        return resample(np.ascontiguousarray(mono), wave.rate, self.rate)


@dataclass(frozen=True)
class Length(Single):
    """The first `samples`, or all of them and zeros."""

    samples: int

    def kind(self, kind: Kind) -> Kind:
        """See `Single`."""
        _need_sound("length", kind)
        return kind._replace(shape=(self.samples,))

    def apply(self, array: Array) -> Array:
        """See `Single`."""
        return np.pad(array[: self.samples], (0, max(0, self.samples - len(array))))


@dataclass(frozen=True)
class Frames(Single):
    """[samples] to [frames, length]: frame i begins at sample i * hop; what fills no frame is left out."""

    length: int
    hop: int

    def kind(self, kind: Kind) -> Kind:
        """See `Single`."""
        _need_sound("frames", kind)
        return kind._replace(shape=(frame_count("frames", kind.shape[0], self.length, self.hop), self.length))

    def apply(self, array: Array) -> Array:
        """See `Single`."""
        return framed(array, self.length, self.hop)


def frame_count(what: str, samples: int | None, length: int, hop: int) -> int | None:
    """How many frames a sound has; None where its length is open. Raises ProcessingError for none at all."""
    if samples is None:
        return None
    need(samples >= length, f"{what}: expected sounds of at least {length} samples, got {samples}; make length longer")
    return 1 + (samples - length) // hop


def framed(array: Array, length: int, hop: int) -> Array:
    """A view [frames, length] of [samples]. Raises GatewayError (400) for a sound too short, (413) for too many."""
    if len(array) < length:
        raise GatewayError(400, f"expected a sound of at least {length} samples, got {len(array)}; send a longer one")
    count = 1 + (len(array) - length) // hop
    if count * length > ELEMENTS:
        raise GatewayError(
            413, f"a sound of {len(array)} samples makes {count} frames of {length}; expected at most {ELEMENTS}"
            " numbers: send a shorter one"
        )  # fmt: skip
    return np.lib.stride_tricks.sliding_window_view(array, length)[::hop]


def _need_sound(what: str, kind: Kind) -> None:
    need(len(kind.shape) == 1 and kind.dtype != "string", f"{what} takes [samples], got {kind}")
