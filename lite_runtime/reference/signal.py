"""Fourier transforms, windows and mel weights."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lite_runtime.graph import Array
from lite_runtime.reference.registry import define
from lite_runtime.reference.support import axis_of, dtype_of, in_float32, optional_scalar, require, scalar

__all__ = ["mel_weights", "window"]


def _complex(x: Array) -> Array:
    """The last axis holds the real part, or the real and the imaginary part."""
    require(x.shape[-1] in (1, 2), f"expected a last axis of 1 or 2, got shape {x.shape}")
    return x[..., 0] + 1j * x[..., 1] if x.shape[-1] == 2 else x[..., 0] + 0j


def _pairs(z: Array, dtype: np.dtype) -> Array:
    return np.stack([z.real, z.imag], -1).astype(dtype)


@define("DFT")
@in_float32
def _dft(
    x: Array, dft_length: Array | None = None, axis: Array | None = None, /, inverse: int = 0, onesided: int = 0
) -> Array:
    """Zero-padded or truncated to `dft_length` along the axis.

    One-sided: forward keeps length // 2 + 1 bins of a real signal; inverse reads them and returns the real signal.
    """
    along = axis_of(int(optional_scalar(axis, -2, "axis")), x.ndim)
    require(along < x.ndim - 1, "expected an axis before the last, which holds real and imaginary parts")
    z = _complex(x)
    if inverse and onesided:
        length = int(optional_scalar(dft_length, 2 * (z.shape[along] - 1), "dft_length"))
        return np.fft.irfft(z, length, along)[..., None].astype(x.dtype)
    length = int(optional_scalar(dft_length, z.shape[along], "dft_length"))
    y = (np.fft.ifft if inverse else np.fft.fft)(z, length, along)
    if onesided:
        y = np.take(y, np.arange(length // 2 + 1), along)
    return _pairs(y, x.dtype)


@define("STFT")
@in_float32
def _stft(
    signal: Array,
    frame_step: Array,
    window: Array | None = None,
    frame_length: Array | None = None,
    /,
    onesided: int = 1,
) -> Array:
    """signal (batch, length, 1 or 2), or (batch, length) as PyTorch exports it -> (batch, frames, bins, 2)."""
    require(signal.ndim in (2, 3), f"expected a signal of rank 2 or 3, got shape {signal.shape}")
    require(window is not None or frame_length is not None, "expected window or frame_length, got neither")
    size = int(optional_scalar(frame_length, 0 if window is None else window.size, "frame_length"))
    step = int(scalar(frame_step, "frame_step"))
    z = _complex(signal if signal.ndim == 3 else signal[..., None])
    require(0 < size <= z.shape[1], f"expected frame_length in [1, {z.shape[1]}], got {size}")
    frames = np.lib.stride_tricks.sliding_window_view(z, size, axis=1)[:, ::step]
    frames = frames if window is None else frames * window
    y = np.fft.fft(frames, size, -1)
    return _pairs(y[..., : size // 2 + 1] if onesided else y, signal.dtype)


# Cosine series of each window: w(n) = a0 - a1 cos(2 pi n / N) + a2 cos(4 pi n / N), N = size, or size - 1 if symmetric.
_WINDOWS: dict[str, Sequence[float]] = {
    "BlackmanWindow": (0.42, 0.5, 0.08),
    "HammingWindow": (25 / 46, 21 / 46),
    "HannWindow": (0.5, 0.5),
}


@define(*_WINDOWS)
def window(size: Array, /, output_datatype: int | str = 1, periodic: int = 1, *, op: str) -> Array:
    """`size` values of the window called `op`."""
    length = int(scalar(size, "size"))
    steps = length if periodic else length - 1
    phase = 2 * np.pi * np.arange(length) / max(steps, 1)
    series = [(-1) ** i * a * np.cos(i * phase) for i, a in enumerate(_WINDOWS[op])]
    return np.asarray(np.sum(series, axis=0).astype(dtype_of(output_datatype)))


@define("MelWeightMatrix")
def mel_weights(
    num_mel_bins: Array,
    dft_length: Array,
    sample_rate: Array,
    lower_edge_hertz: Array,
    upper_edge_hertz: Array,
    /,
    output_datatype: int | str = 1,
) -> Array:
    """Triangles evenly spaced in mel(f) = 2595 log10(1 + f / 700), with corners at integer spectrogram bins."""
    bands, length = int(scalar(num_mel_bins, "num_mel_bins")), int(scalar(dft_length, "dft_length"))
    rate = int(scalar(sample_rate, "sample_rate"))
    edges = np.array([float(scalar(e, "an edge")) for e in (lower_edge_hertz, upper_edge_hertz)])
    low, high = 2595 * np.log10(1 + edges / 700)
    mel = low + np.arange(bands + 2) * (high - low) / (bands + 2)
    hertz = 700 * (10 ** (mel / 2595) - 1)
    corners = ((length + 1) * hertz // rate).astype(np.int64)
    out = np.zeros((length // 2 + 1, bands))
    rows = np.arange(len(out))
    for i in range(bands):
        left, centre, right = corners[i : i + 3]
        if centre > left:
            rising = (rows >= left) & (rows <= centre)
            out[rising, i] = (rows[rising] - left) / (centre - left)
        elif centre < len(out):
            out[centre, i] = 1
        if right > centre:
            falling = (rows >= centre) & (rows < right)
            out[falling, i] = (right - rows[falling]) / (right - centre)
    return out.astype(dtype_of(output_datatype))
