"""Fourier transforms; windows and mel weights, which are constants."""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax import lax

from cloud.engine.lowering.registry import Context, Tensor, lowering, normalise_axes, static_array, static_int
from cloud.errors import EngineError
from lite_runtime.reference.signal import mel_weights, window

__all__: list[str] = []


def _window(op: str) -> Callable[..., npt.NDArray[np.generic]]:
    def rule(size: Tensor, *, output_datatype: int = 1, periodic: int = 1) -> npt.NDArray[np.generic]:
        return window(static_array(size, "the size"), output_datatype, periodic, op=op)

    return rule


for _op in ("BlackmanWindow", "HammingWindow", "HannWindow"):
    lowering(_op)(_window(_op))


@lowering("MelWeightMatrix")
def mel_weight_matrix(
    bands: Tensor, length: Tensor, rate: Tensor, low: Tensor, high: Tensor, *, output_datatype: int = 1
) -> npt.NDArray[np.generic]:
    """[length // 2 + 1, bands]."""
    given = (static_array(number, "a number of mel weights") for number in (bands, length, rate, low, high))
    return mel_weights(*given, output_datatype)  # type: ignore[call-arg,arg-type]


def _complex(x: Tensor) -> Tensor:
    """Complex numbers from a last axis that holds the real part, or the real and the imaginary part."""
    if x.shape[-1] not in (1, 2):
        raise EngineError(f"expected a last axis of 1 or 2 (real, imaginary), got shape {x.shape}")
    x = jnp.asarray(x, jnp.promote_types(x.dtype, np.float32))
    return lax.complex(x[..., 0], x[..., 1] if x.shape[-1] == 2 else jnp.zeros_like(x[..., 0]))


def _pairs(z: Tensor, like: Tensor) -> Tensor:
    return jnp.stack([z.real, z.imag], -1).astype(like.dtype)


@lowering("DFT")
def dft(
    x: Tensor, length: Tensor | None = None, along: Tensor | None = None,
    *, context: Context, axis: int = 1, inverse: int = 0, onesided: int = 0,
) -> Tensor:  # fmt: skip
    """x [..., 1 or 2], padded with zeros or cut to `length`. The axis is an operand since opset 20, an attribute
    before. Inverse and one-sided: from the bins of a real signal to the signal."""
    if context.opset >= 20:
        axis = -2 if along is None else static_int(along, "the axis")
    (axis,) = normalise_axes((axis,), x.ndim)
    z = _complex(x)
    size = None if length is None else static_int(length, "the DFT's length")
    if inverse and onesided:
        return jnp.fft.irfft(z, size or 2 * (z.shape[axis] - 1), axis)[..., None].astype(x.dtype)
    size = size or z.shape[axis]
    y = (jnp.fft.ifft if inverse else jnp.fft.fft)(z, size, axis)
    return _pairs(lax.slice_in_dim(y, 0, size // 2 + 1, axis=axis) if onesided else y, x)


@lowering("STFT")
def stft(
    signal: Tensor, step: Tensor, shape: Tensor | None = None, length: Tensor | None = None, *, onesided: int = 1
) -> Tensor:
    """signal [batch, length, 1 or 2] or [batch, length], `shape` a window [n] -> [batch, frames, bins, 2]."""
    if shape is None and length is None:
        raise EngineError("expected a window or a frame_length, got neither")
    size = static_int(length, "the frame's length") if shape is None else shape.shape[0]
    z = _complex(signal if signal.ndim == 3 else signal[..., None])
    starts = np.arange(0, z.shape[1] - size + 1, static_int(step, "the frame's step"))
    frames = z[:, starts[:, None] + np.arange(size)]
    y = jnp.fft.fft(frames if shape is None else frames * shape, axis=-1)
    return _pairs(y[..., : size // 2 + 1] if onesided else y, signal)
