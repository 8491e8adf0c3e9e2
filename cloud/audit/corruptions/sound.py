"""Corruptions of sound: waveforms (n, channels, time), and spectrograms (n, frames, bands). Values of spectrograms are
logarithms of energies or on any other scale, so that levels there are in standard deviations."""

from __future__ import annotations

import numpy as np

from cloud.audit.corruptions.rows import Corruption, Scales
from cloud.audit.corruptions.series import held, moved
from lite_runtime.graph import Array

__all__ = ["SOUND", "SPECTROGRAMS"]


def _noise(x: Array, level: float, _: Scales, random: np.random.Generator) -> Array:
    """White noise at a ratio to each example's own power."""
    power = np.sqrt((x**2).mean(axis=(1, 2), keepdims=True))
    return np.asarray(x + random.standard_normal(x.shape, np.float32) * power * np.float32(10 ** (-level / 20)))


def _gain(x: Array, level: float, _: Scales, __: np.random.Generator) -> Array:
    return x * np.float32(10 ** (-level / 20))


def _clipping(x: Array, level: float, _: Scales, __: np.random.Generator) -> Array:
    """Cut off at a share of the peak, then as loud as before."""
    peak = np.abs(x).max(axis=(1, 2), keepdims=True)
    return np.asarray(np.clip(x, -level * peak, level * peak) / np.float32(level))


def _shift(x: Array, level: float, _: Scales, random: np.random.Generator) -> Array:
    return moved(x, level, random, lambda rows: np.zeros_like(rows[..., :1]))


def _dropped(x: Array, level: float, _: Scales, random: np.random.Generator) -> Array:
    """Bursts of silence, each a hundredth of the length."""
    return np.where(_bursts(x, level, random), np.float32(0), x)


def _bursts(x: Array, share: float, random: np.random.Generator) -> Array:
    """(n, 1, time) bool: about this share, in bursts."""
    time = x.shape[-1]
    length = max(1, time // 100)
    parts = random.random((len(x), -(-time // length))) < share
    return np.repeat(parts, length, axis=1)[:, None, :time]


def _low_pass(x: Array, level: float, _: Scales, __: np.random.Generator) -> Array:
    return _banded(x, 0.0, level)


def _high_pass(x: Array, level: float, _: Scales, __: np.random.Generator) -> Array:
    return _banded(x, level, 1.0)


def _banded(x: Array, low: float, high: float) -> Array:
    """Frequencies between two shares of half the sampling rate."""
    spectrum = np.fft.rfft(x, axis=-1)
    place = np.linspace(0, 1, spectrum.shape[-1])
    kept = np.where((place >= low) & (place <= high), spectrum, 0)
    return np.asarray(np.fft.irfft(kept, x.shape[-1], axis=-1), np.float32)


def _reverberation(x: Array, level: float, _: Scales, random: np.random.Generator) -> Array:
    """Direct sound and an equally strong tail of noise that falls by 60 dB within a share of the length."""
    time = x.shape[-1]
    length = max(2, int(level * time))
    tail = random.standard_normal((len(x), 1, length)) * 10 ** (-3 * np.arange(length) / length)
    tail /= np.sqrt((tail**2).sum(-1, keepdims=True))
    tail[..., 0] += 1
    size = time + length
    both = np.fft.rfft(x, size, axis=-1) * np.fft.rfft(tail, size, axis=-1)
    return np.asarray(np.fft.irfft(both, size, axis=-1)[..., :time], np.float32)


SOUND: tuple[Corruption, ...] = (
    Corruption("noise", _noise, (25, 20, 15, 10, 5), "dB of signal over noise"),
    Corruption("gain", _gain, (6, 12, 18, 24, 30), "dB quieter"),
    Corruption("clipping", _clipping, (0.5, 0.3, 0.2, 0.1, 0.05), "share of the peak"),
    Corruption("time_shift", _shift, (0.05, 0.1, 0.15, 0.2, 0.3), "share of the length"),
    Corruption("drop_outs", _dropped, (0.02, 0.05, 0.1, 0.2, 0.3), "share of the time"),
    Corruption("low_pass", _low_pass, (0.6, 0.45, 0.3, 0.2, 0.1), "share of the band that is left"),
    Corruption("high_pass", _high_pass, (0.02, 0.05, 0.1, 0.15, 0.25), "share of the band that is lost"),
    Corruption("reverberation", _reverberation, (0.02, 0.05, 0.1, 0.2, 0.4), "share of the length"),
)  # fmt: skip


# spectrograms (n, frames, bands)


def _spectral_noise(x: Array, level: float, scales: Scales, random: np.random.Generator) -> Array:
    return np.asarray(x + random.standard_normal(x.shape, np.float32) * scales.deviation * np.float32(level))


def _louder(x: Array, level: float, scales: Scales, random: np.random.Generator) -> Array:
    """All values up or down alike."""
    return np.asarray(x + random.choice([-1.0, 1.0], (len(x), 1, 1)) * scales.deviation * level)


def _frame_shift(x: Array, level: float, _: Scales, random: np.random.Generator) -> Array:
    turned = np.swapaxes(x, 1, 2)
    return np.swapaxes(moved(turned, level, random, lambda rows: rows[..., :1]), 1, 2)


def _frames_lost(x: Array, level: float, _: Scales, random: np.random.Generator) -> Array:
    """Frames repeat the last one that arrived."""
    return np.swapaxes(held(np.swapaxes(x, 1, 2), random.random((len(x), x.shape[1])) < level), 1, 2)


def _bands_lost(x: Array, level: float, scales: Scales, random: np.random.Generator) -> Array:
    """The highest bands at their mean."""
    lost = max(1, round(level * x.shape[2]))
    return np.where(np.arange(x.shape[2]) >= x.shape[2] - lost, scales.mean, x)


def _smeared(x: Array, level: float, _: Scales, __: np.random.Generator) -> Array:
    """Each frame keeps a share of the one before, as in a room."""
    out = x.copy()
    for frame in range(1, x.shape[1]):
        out[:, frame] = level * out[:, frame - 1] + (1 - level) * x[:, frame]
    return out


SPECTROGRAMS: tuple[Corruption, ...] = (
    Corruption("noise", _spectral_noise, (0.1, 0.2, 0.35, 0.5, 0.8), "standard deviations"),
    Corruption("loudness", _louder, (0.1, 0.25, 0.5, 0.75, 1.0), "standard deviations up or down"),
    Corruption("time_shift", _frame_shift, (0.05, 0.1, 0.15, 0.2, 0.3), "share of the length"),
    Corruption("lost_frames", _frames_lost, (0.05, 0.1, 0.2, 0.35, 0.5), "share of the frames"),
    Corruption("lost_bands", _bands_lost, (0.1, 0.2, 0.3, 0.4, 0.5), "share of the bands"),
    Corruption("reverberation", _smeared, (0.2, 0.35, 0.5, 0.65, 0.8), "share of the frame before"),
)  # fmt: skip
