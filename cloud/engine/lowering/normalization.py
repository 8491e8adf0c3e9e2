"""Normalisations. Statistics are computed in float32 or wider."""

from __future__ import annotations

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jax import lax

from cloud.engine.lowering.registry import Context, Tensor, lowering
from cloud.errors import EngineError

__all__: list[str] = []


def _wide(x: Tensor) -> Tensor:
    return x.astype(jnp.promote_types(x.dtype, np.float32))


def _standard(x: Tensor, axes: tuple[int, ...], epsilon: float) -> tuple[Tensor, Tensor, Tensor]:
    """(x - mean) / sqrt(var + epsilon) over `axes`, with the mean and the reciprocal deviation, axes kept."""
    mean = jnp.mean(x, axis=axes, keepdims=True)
    centred = x - mean
    deviation = lax.rsqrt(jnp.mean(centred * centred, axis=axes, keepdims=True) + epsilon)
    return centred * deviation, mean, deviation


def _channels(v: Tensor, x: Tensor) -> Tensor:
    return jnp.reshape(v, (1, -1) + (1,) * (x.ndim - 2))


@lowering("BatchNormalization")
def batch_normalization(
    x: Tensor, scale: Tensor, bias: Tensor, mean: Tensor, var: Tensor,
    *, context: Context, epsilon: float = 1e-5, momentum: float = 0.9, training_mode: int = 0, spatial: int = 1,
    unbiased: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """In training: this batch's mean and population variance; running ones move towards them by 1 - momentum.

    `unbiased` is no attribute of ONNX's (`converter.ir.statistics`): the running variance then moves towards the
    batch's unbiased one, as in PyTorch.

    The caller's `train` selects training, never the node's `training_mode`.
    """
    del training_mode
    wide = _wide(x)
    if context.train:
        if context.statistics is None:
            raise EngineError("BatchNormalization inside a subgraph cannot be trained; move it to the main graph")
        axes = (0, *range(2, x.ndim))
        batch_mean = jnp.mean(wide, axis=axes)
        centred = wide - _channels(batch_mean, x)
        batch_var = jnp.mean(centred * centred, axis=axes)
        count = wide.size // wide.shape[1]
        if unbiased and count < 2:
            raise EngineError("expected more than one value per channel in training: an unbiased variance needs two")
        spread = batch_var * (count / (count - 1)) if unbiased else batch_var
        new_mean, new_var = (
            lax.stop_gradient(momentum * old + (1 - momentum) * new).astype(old.dtype)
            for old, new in ((mean, batch_mean), (var, spread))
        )
        for name, value in zip(context.inputs[3:5], (new_mean, new_var), strict=True):
            if name in context.statistics:
                context.statistics[name] = value
    else:
        centred, batch_var, new_mean, new_var = wide - _channels(mean, x), var, mean, var
    factor = scale * lax.rsqrt(batch_var + epsilon)
    y = centred * _channels(factor, x) + _channels(bias, x)
    return y.astype(x.dtype), new_mean, new_var


@lowering("LayerNormalization")
def layer_normalization(
    x: Tensor, scale: Tensor, bias: Tensor | None = None,
    *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    y, mean, deviation = _standard(_wide(x), tuple(range(axis % x.ndim, x.ndim)), epsilon)
    y = y.astype(x.dtype) * scale
    return (y if bias is None else y + bias), mean, deviation


@lowering("RMSNormalization")
def rms_normalization(
    x: Tensor, scale: Tensor, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1
) -> Tensor:
    wide = _wide(x)
    square = jnp.mean(wide * wide, axis=tuple(range(axis % x.ndim, x.ndim)), keepdims=True)
    return (wide * lax.rsqrt(square + epsilon)).astype(x.dtype) * scale


@lowering("GroupNormalization")
def group_normalization(
    x: Tensor, scale: Tensor, bias: Tensor,
    *, num_groups: int, context: Context, epsilon: float = 1e-5, stash_type: int = 1,
) -> Tensor:  # fmt: skip
    """Up to opset 20 there is one scale and bias per group; from 21 on, one per channel."""
    channels = x.shape[1]
    if channels % num_groups:
        raise EngineError(f"expected channels divisible by num_groups {num_groups}, got {channels}")
    grouped = _wide(x).reshape(x.shape[0], num_groups, -1)
    y, _, _ = _standard(grouped, (2,), epsilon)
    if context.opset < 21:
        scale, bias = (jnp.repeat(v, channels // num_groups) for v in (scale, bias))
    return (y.reshape(x.shape) * _channels(scale, x) + _channels(bias, x)).astype(x.dtype)


@lowering("InstanceNormalization")
def instance_normalization(x: Tensor, scale: Tensor, bias: Tensor, *, epsilon: float = 1e-5) -> Tensor:
    y, _, _ = _standard(_wide(x), tuple(range(2, x.ndim)), epsilon)
    return (y * _channels(scale, x) + _channels(bias, x)).astype(x.dtype)


@lowering("LRN")
def local_response_normalization(
    x: Tensor, *, size: int, alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0
) -> Tensor:
    rest = x.ndim - 2
    pads = [(0, 0), ((size - 1) // 2, size // 2), *[(0, 0)] * rest]
    window = (1, size, *(1,) * rest)
    total = lax.reduce_window(x * x, np.zeros((), x.dtype), lax.add, window, (1,) * x.ndim, pads)
    return x / (bias + alpha / size * total) ** beta


@lowering("LpNormalization")
def lp_normalization(x: Tensor, *, axis: int = -1, p: int = 2) -> Tensor:
    """A zero vector stays zero."""
    norm = jnp.sum(jnp.abs(x) ** p, axis=axis, keepdims=True)
    safe = jnp.where(norm == 0, 1, norm) ** (1 / p)
    return x / safe.astype(x.dtype)


@lowering("MeanVarianceNormalization")
def mean_variance_normalization(x: Tensor, *, axes: Sequence[int] = (0, 2, 3)) -> Tensor:
    """Divides by the deviation plus 1e-9, as the operator's body in the standard does."""
    mean = jnp.mean(x, axis=tuple(axes), keepdims=True)
    variance = jnp.mean(x * x, axis=tuple(axes), keepdims=True) - mean * mean
    return (x - mean) / (jnp.sqrt(variance) + 1e-9)
