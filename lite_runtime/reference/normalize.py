"""Normalisation over a batch, a layer, a channel group or an axis; and the softmax family."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from lite_runtime.graph import Array
from lite_runtime.reference.movement import to_channels_first, to_channels_last
from lite_runtime.reference.registry import define
from lite_runtime.reference.support import axes_of, axis_of, dtype_of, in_float32, require, widen

__all__ = ["log_softmax", "softmax"]


def softmax(x: Array, axis: int = -1) -> Array:
    """exp(x) divided by its sum along `axis`, shifted by the maximum. If all elements along it are -inf, gives NaN."""
    e = np.exp(x - np.max(x, axis, keepdims=True, initial=-np.inf))
    return np.asarray(e / np.sum(e, axis, keepdims=True))


def log_softmax(x: Array, axis: int = -1) -> Array:
    """The logarithm of `softmax`, computed without forming the quotient."""
    shifted = x - np.max(x, axis, keepdims=True, initial=-np.inf)
    return np.asarray(shifted - np.log(np.sum(np.exp(shifted), axis, keepdims=True)))


@define("Softmax")
@in_float32
def _softmax(x: Array, /, axis: int = -1) -> Array:
    return softmax(x, axis_of(axis, x.ndim))


@define("LogSoftmax")
@in_float32
def _log_softmax(x: Array, /, axis: int = -1) -> Array:
    return log_softmax(x, axis_of(axis, x.ndim))


@define("Hardmax")
@in_float32
def _hardmax(x: Array, /, axis: int = -1) -> Array:
    """1 at the first maximum along the axis, 0 elsewhere."""
    axis = axis_of(axis, x.ndim)
    y = np.zeros_like(x)
    np.put_along_axis(y, np.argmax(x, axis, keepdims=True), 1, axis)
    return y


def _channels(x: Array, rank: int) -> Array:
    return x.reshape(1, -1, *(1,) * (rank - 2))


@define("BatchNormalization")
def _batch_normalization(
    x: Array,
    scale: Array,
    b: Array,
    mean: Array,
    var: Array,
    /,
    epsilon: float = 1e-5,
    momentum: float = 0.9,
    training_mode: int = 0,
    layout: str = "NCHW",
) -> tuple[Array, ...]:
    """In training mode the batch's own statistics are used and blended into the running ones (outputs 1 and 2); outputs
    3 and 4 are then the batch's mean and 1 / sqrt(variance + epsilon), float32 (C,)."""
    x = to_channels_first(x, layout)
    for name, given in (("scale", scale), ("B", b), ("mean", mean), ("var", var)):
        require(given.shape == (x.shape[1],), f"expected {name} of shape ({x.shape[1]},), got {given.shape}")
    wide = widen(x)
    used_mean, used_var = widen(mean), widen(var)
    inner = wide.dtype.type(epsilon)
    running: tuple[Array, ...] = ()
    if training_mode:
        over = (0, *range(2, x.ndim))
        used_mean, used_var = wide.mean(over), wide.var(over)
        running = (
            (widen(mean) * momentum + used_mean * (1 - momentum)).astype(mean.dtype),
            (widen(var) * momentum + used_var * (1 - momentum)).astype(var.dtype),
            used_mean.astype(np.float32),
            (1 / np.sqrt(used_var + inner)).astype(np.float32),
        )
    centred = wide - _channels(used_mean, x.ndim)
    y = centred / np.sqrt(_channels(used_var, x.ndim) + inner) * _channels(widen(scale), x.ndim)
    y = (y + _channels(widen(b), x.ndim)).astype(x.dtype)
    return (to_channels_last(y, layout), *running)


@define("InstanceNormalization")
@in_float32
def _instance_normalization(x: Array, scale: Array, b: Array, /, epsilon: float = 1e-5, layout: str = "NCHW") -> Array:
    x = to_channels_first(x, layout)
    over = tuple(range(2, x.ndim))
    y = (x - x.mean(over, keepdims=True)) / np.sqrt(x.var(over, keepdims=True) + x.dtype.type(epsilon))
    y = y * _channels(scale, x.ndim) + _channels(b, x.ndim)
    return to_channels_last(y.astype(x.dtype), layout)


@define("GroupNormalization")
@in_float32
def _group_normalization(
    x: Array, scale: Array, bias: Array, /, num_groups: int, epsilon: float = 1e-5, stash_type: int | str = 1
) -> Array:
    """Each of `num_groups` channel groups is normalised separately; scale and bias are per channel."""
    n, c = x.shape[:2]
    require(c % num_groups == 0, f"expected channels divisible by num_groups {num_groups}, got {c}")
    groups = x.reshape(n, num_groups, c // num_groups * prod(x.shape[2:]))
    groups = (groups - groups.mean(2, keepdims=True)) / np.sqrt(groups.var(2, keepdims=True) + x.dtype.type(epsilon))
    return np.asarray((groups.reshape(x.shape) * _channels(scale, x.ndim) + _channels(bias, x.ndim)).astype(x.dtype))


@define("LayerNormalization")
def _layer_normalization(
    x: Array, scale: Array, b: Array | None = None, /, axis: int = -1, epsilon: float = 1e-5, stash_type: int | str = 1
) -> tuple[Array, Array, Array]:
    """(Y, mean, 1 / standard deviation) over the axes from `axis` on; the last two are in `stash_type`."""
    over = tuple(range(axis_of(axis, x.ndim), x.ndim))
    stash = x.astype(dtype_of(stash_type))
    mean = stash.mean(over, keepdims=True)
    centred = stash - mean
    inverse = 1 / np.sqrt((centred * centred).mean(over, keepdims=True) + stash.dtype.type(epsilon))
    y = (centred * inverse).astype(x.dtype)
    y = widen(y) * widen(scale) if b is None else widen(y) * widen(scale) + widen(b)
    return y.astype(x.dtype), mean, inverse


@define("RMSNormalization")
def _rms_normalization(
    x: Array, scale: Array, /, axis: int = -1, epsilon: float = 1e-5, stash_type: int | str = 1
) -> Array:
    over = tuple(range(axis_of(axis, x.ndim), x.ndim))
    stash = x.astype(dtype_of(stash_type))
    inverse = 1 / np.sqrt((stash * stash).mean(over, keepdims=True) + stash.dtype.type(epsilon))
    y = (stash * inverse).astype(x.dtype)
    return np.asarray((widen(y) * widen(scale)).astype(scale.dtype))


@define("LRN")
@in_float32
def _lrn(x: Array, /, size: int, alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0) -> Array:
    """x / (bias + alpha / size * the sum of squares over `size` neighbouring channels) ** beta."""
    before, after = (size - 1) // 2, size - 1 - (size - 1) // 2
    padding = [(0, 0), (before, after), *[(0, 0)] * (x.ndim - 2)]
    squares = np.pad(x * x, padding)
    total = np.zeros_like(x)
    for i in range(size):
        total += squares[:, i : i + x.shape[1]]
    return (x / (bias + alpha / size * total) ** beta).astype(x.dtype)


@define("LpNormalization")
@in_float32
def _lp_normalization(x: Array, /, axis: int = -1, p: int = 2) -> Array:
    """x divided by its p-norm along the axis; 0 if the norm is 0."""
    require(p in (1, 2), f"expected p of 1 or 2, got {p}")
    axis = axis_of(axis, x.ndim)
    norm = np.sum(np.abs(x) ** p, axis, keepdims=True) ** (1 / p)
    return np.where(norm == 0, 0, x / norm).astype(x.dtype)


@define("MeanVarianceNormalization")
@in_float32
def _mean_variance_normalization(x: Array, /, axes: Sequence[int] = (0, 2, 3)) -> Array:
    over = axes_of(axes, x.ndim)
    require(prod(x.shape[i] for i in over) > 0, f"expected elements along axes {over}, got shape {x.shape}")
    return np.asarray(
        ((x - x.mean(over, keepdims=True)) / (x.std(over, keepdims=True) + x.dtype.type(1e-9))).astype(x.dtype)
    )
