"""Sound as pictures: spectrograms, mel bands, logarithms, cepstra. Computed in float64, kept in float32.

Formulas are those of librosa and torchaudio, and of tf.signal where they differ; docs/processing.md has the settings
that give each of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from edge.gateway.processing.sound import frame_count, framed
from edge.gateway.processing.steps import Kind, Single, need
from lite_runtime.graph import Array

__all__ = ["Dct", "Log", "Mel", "Spectrogram", "mel_bands"]


@dataclass(frozen=True)
class Spectrogram(Single):
    """[samples] to [frames, fft // 2 + 1]: |DFT(frame * Hann window)| ** power.

    The window is periodic, `window` samples long (None: `fft`). `align`: "center", frames are `fft` samples with the
    window in their middle (librosa, torch); "start", frames are as long as the window and zeros follow up to `fft`
    (tf.signal.stft). `pad`: fft // 2 samples at both ends, zeros or reflected, so that frame i is centred at i * hop.
    """

    fft: int
    window: int | None
    hop: int
    pad: str
    align: str
    power: int

    def kind(self, kind: Kind) -> Kind:
        """See `Single`."""
        need(len(kind.shape) == 1 and kind.dtype != "string", f"spectrogram takes [samples], got {kind}")
        need(self._window <= self.fft, f"spectrogram: expected a window of at most fft {self.fft}, got {self.window}")
        (samples,) = kind.shape
        padded = samples if samples is None or self.pad == "none" else samples + 2 * (self.fft // 2)
        frames = frame_count("spectrogram", padded, self._frame, self.hop)
        return kind._replace(dtype="float32", shape=(frames, self.fft // 2 + 1))

    def apply(self, array: Array) -> Array:
        """See `Single`."""
        if self.pad != "none":
            array = np.pad(array, self.fft // 2, _PADS[self.pad])  # type: ignore[call-overload]
        frames = framed(array, self._frame, self.hop)
        window = _hann(self._window, self._frame)
        bins = np.fft.rfft(frames * window, self.fft)
        squares = bins.real**2 + bins.imag**2
        return (squares if self.power == 2 else np.sqrt(squares)).astype(np.float32)

    @property
    def _window(self) -> int:
        return self.window or self.fft

    @property
    def _frame(self) -> int:
        return self._window if self.align == "start" else self.fft


_PADS = {"zero": "constant", "reflect": "reflect"}


@lru_cache(maxsize=16)
def _hann(length: int, frame: int) -> Array:
    window = np.zeros(frame)
    begin = (frame - length) // 2
    window[begin : begin + length] = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(length) / length)
    window.flags.writeable = False
    return window


_WEIGHTS = 1 << 22
"""Most weights of a `mel`, which are kept."""


@dataclass(frozen=True)
class Mel(Single):
    """[frames, bins] to [frames, bands]: triangles between `low` and `high` hertz (None: half the rate), evenly spaced
    in mel. `rate`: samples a second of the sound.

    `scale`: "htk", 2595 * log10(1 + f / 700); "slaney", linear up to 1000 Hz, 27 steps a factor of 6.4 above (Auditory
    Toolbox). `norm`: "slaney" divides by half the triangle's width in hertz. `triangles`: straight in "hz" (librosa,
    torchaudio) or in "mel" (tf.signal).
    """

    rate: int
    bands: int
    low: float
    high: float | None
    scale: str
    norm: str
    triangles: str

    def kind(self, kind: Kind) -> Kind:
        """See `Single`."""
        need(len(kind.shape) == 2 and kind.shape[1] is not None, f"mel takes [frames, bins], got {kind}")
        need(kind.rate in (0, self.rate), f"mel: expected the sound's rate {kind.rate}, got {self.rate}")
        need((kind.shape[1] or 0) * self.bands <= _WEIGHTS, f"mel: {self.bands} bands of {kind} are too many weights")
        top = self.high or self.rate / 2
        need(self.low < top <= self.rate / 2, f"mel: expected low < high <= {self.rate / 2:g}, got {self.low}, {top}")
        return kind._replace(dtype="float32", shape=(kind.shape[0], self.bands))

    def apply(self, array: Array) -> Array:
        """See `Single`."""
        return np.asarray(array.astype(np.float64) @ mel_bands(self, array.shape[1]), np.float32)


@lru_cache(maxsize=16)
def mel_bands(mel: Mel, bins: int) -> Array:
    """Weights, float64 [bins, bands]; kept, not to be written to."""
    to_mel, to_hertz = _SCALES[mel.scale]
    top = mel.high or mel.rate / 2
    hertz = np.linspace(0, mel.rate / 2, bins)
    places = np.linspace(to_mel(np.array(mel.low)), to_mel(np.array(top)), mel.bands + 2)
    edges = to_hertz(places)
    at, corners = (hertz, edges) if mel.triangles == "hz" else (to_mel(hertz), places)
    rise = (at[:, None] - corners[:-2]) / np.diff(corners)[:-1]
    fall = (corners[2:] - at[:, None]) / np.diff(corners)[1:]
    weights: Array = np.maximum(0.0, np.minimum(rise, fall))
    if mel.norm == "slaney":
        weights = weights * (2.0 / (edges[2:] - edges[:-2]))
    weights.flags.writeable = False
    return weights


def _htk(hertz: Array) -> Array:
    return np.asarray(2595.0 * np.log10(1.0 + hertz / 700.0))


def _htk_back(mel: Array) -> Array:
    return np.asarray(700.0 * (10.0 ** (mel / 2595.0) - 1.0))


_KNEE, _STEP = 1000.0, np.log(6.4) / 27.0
_PER_MEL = 200.0 / 3


def _slaney(hertz: Array) -> Array:
    above = np.log(np.maximum(hertz, _KNEE) / _KNEE) / _STEP
    return np.where(hertz < _KNEE, hertz / _PER_MEL, _KNEE / _PER_MEL + above)


def _slaney_back(mel: Array) -> Array:
    knee = _KNEE / _PER_MEL
    return np.where(mel < knee, mel * _PER_MEL, _KNEE * np.exp(_STEP * (np.maximum(mel, knee) - knee)))


_Scale = Callable[[Array], Array]
_SCALES: Mapping[str, tuple[_Scale, _Scale]] = {"htk": (_htk, _htk_back), "slaney": (_slaney, _slaney_back)}


@dataclass(frozen=True)
class Log(Single):
    """unit(max(x + offset, floor)): natural, to base 10, or 10 * log10 ("db"); no lower than `range` below the largest
    of the row (librosa's and torchaudio's top_db), where that is given."""

    unit: str
    floor: float
    offset: float
    range: float | None

    def kind(self, kind: Kind) -> Kind:
        """See `Single`."""
        need(kind.dtype.startswith("float"), f"log takes floats, got {kind}")
        return kind._replace(dtype="float32")

    def apply(self, array: Array) -> Array:
        """See `Single`."""
        made = _LOGS[self.unit](np.maximum(array.astype(np.float64) + self.offset, self.floor))
        if self.range is not None and made.size:
            made = np.maximum(made, made.max() - self.range)
        return made.astype(np.float32)


_LOGS: Mapping[str, Callable[[Array], Array]] = {
    "ln": np.log,
    "log10": np.log10,
    "db": lambda x: 10.0 * np.log10(x),
}


@dataclass(frozen=True)
class Dct(Single):
    """[frames, bands] to [frames, coefficients]: DCT-II, sqrt(2 / n) * sum of x[i] * cos(pi * k * (i + 0.5) / n), and
    the first by sqrt(1 / n) where `scaling` is "orthonormal" (librosa, torchaudio); "htk" does not (tf.signal)."""

    coefficients: int
    scaling: str

    def kind(self, kind: Kind) -> Kind:
        """See `Single`."""
        bands = kind.shape[-1] if len(kind.shape) == 2 else None
        need(bands is not None and self.coefficients <= bands, f"dct: expected [frames, {self.coefficients} or more]"
             f" floats, got {kind}")  # fmt: skip
        need(kind.dtype.startswith("float"), f"dct takes floats, got {kind}")
        return kind._replace(dtype="float32", shape=(kind.shape[0], self.coefficients))

    def apply(self, array: Array) -> Array:
        """See `Single`."""
        basis = _cosines(array.shape[1], self.coefficients, self.scaling == "orthonormal")
        return np.asarray(array.astype(np.float64) @ basis, np.float32)


@lru_cache(maxsize=16)
def _cosines(bands: int, coefficients: int, orthonormal: bool) -> Array:
    angles = np.pi / bands * np.outer(np.arange(bands) + 0.5, np.arange(coefficients))
    basis: Array = np.cos(angles) * np.sqrt(2.0 / bands)
    if orthonormal:
        basis[:, 0] /= np.sqrt(2.0)
    basis.flags.writeable = False
    return basis
