"""Classification losses and optimiser steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from lite_runtime.errors import InputError, UnsupportedOpError
from lite_runtime.graph import Array
from lite_runtime.reference.normalize import log_softmax
from lite_runtime.reference.registry import define
from lite_runtime.reference.support import in_float32, require, scalar

__all__: list[str] = []


def _loss(log_prob: Array, target: Array, weight: Array | None, ignore_index: int | None, reduction: str) -> Array:
    """-weight[target] * log_prob at the target class (axis 1); `mean` divides by the sum of the weights used."""
    if reduction not in ("none", "sum", "mean"):
        raise UnsupportedOpError(f"expected reduction none, sum or mean, got {reduction!r}")
    classes = log_prob.shape[1]
    expected = (log_prob.shape[0], *log_prob.shape[2:])
    require(target.shape == expected, f"expected targets of shape {expected}, got {target.shape}")
    target = target.astype(np.int64)
    counts = np.ones(target.shape, bool) if ignore_index is None else target != ignore_index
    target = np.where(counts, target, 0)
    if target.size and (target.min() < 0 or target.max() >= classes):
        raise InputError(f"expected targets in [0, {classes - 1}], got {target.min()} to {target.max()}")
    share = np.ones(classes, log_prob.dtype) if weight is None else weight
    shares = np.where(counts, share[target], 0).astype(log_prob.dtype)
    loss = -np.take_along_axis(log_prob, target[:, None], 1)[:, 0] * shares
    if reduction == "none":
        return np.asarray(loss)
    total = np.sum(loss, dtype=log_prob.dtype)
    return np.asarray(total if reduction == "sum" else total / np.sum(shares, dtype=log_prob.dtype))


@define("NegativeLogLikelihoodLoss")
@in_float32
def _negative_log_likelihood_loss(
    x: Array, target: Array, weight: Array | None = None, /, ignore_index: int | None = None, reduction: str = "mean"
) -> Array:
    return _loss(x, target, weight, ignore_index, reduction)


@define("SoftmaxCrossEntropyLoss")
@in_float32
def _softmax_cross_entropy_loss(
    scores: Array,
    labels: Array,
    weights: Array | None = None,
    /,
    ignore_index: int | None = None,
    reduction: str = "mean",
) -> tuple[Array, Array]:
    log_prob = log_softmax(scores, 1)
    return _loss(log_prob, labels, weights, ignore_index, reduction), log_prob


def _for_each(step: Callable[..., tuple[Array, ...]], inputs: tuple[Array, ...], slots: int) -> tuple[Array, ...]:
    """Inputs are grouped by kind (all X, all G, …); so are the results."""
    require(len(inputs) % slots == 0, f"expected inputs in groups of {slots}, got {len(inputs)}")
    count = len(inputs) // slots
    results = [step(*inputs[i::count]) for i in range(count)]
    return tuple(y for kind in zip(*results, strict=True) for y in kind)


@define("Adagrad")
def _adagrad(
    rate: Array,
    count: Array,
    /,
    *inputs: Array,
    decay_factor: float = 0.0,
    epsilon: float = 1e-6,
    norm_coefficient: float = 0.0,
) -> tuple[Array, ...]:
    """Inputs X…, G…, H… -> X…, H…."""
    r = scalar(rate, "R") / (1 + int(scalar(count, "T")) * decay_factor)

    def step(x: Array, g: Array, h: Array) -> tuple[Array, ...]:
        g = norm_coefficient * x + g
        h = h + g * g
        return (x - r * g / (np.sqrt(h) + epsilon)).astype(x.dtype), h.astype(x.dtype)

    return _for_each(step, inputs, 3)


@define("Adam")
def _adam(
    rate: Array,
    count: Array,
    /,
    *inputs: Array,
    alpha: float = 0.9,
    beta: float = 0.999,
    epsilon: float = 1e-6,
    norm_coefficient: float = 0.0,
    norm_coefficient_post: float = 0.0,
) -> tuple[Array, ...]:
    """Inputs X…, G…, V…, H… -> X…, V…, H…."""
    t = int(scalar(count, "T"))
    r: Any = scalar(rate, "R")
    if t > 0:
        r = r * np.sqrt(1 - beta**t) / (1 - alpha**t)

    def step(x: Array, g: Array, v: Array, h: Array) -> tuple[Array, ...]:
        g = norm_coefficient * x + g
        v = alpha * v + (1 - alpha) * g
        h = beta * h + (1 - beta) * g * g
        new = (1 - norm_coefficient_post) * (x - r * v / (np.sqrt(h) + epsilon))
        return new.astype(x.dtype), v.astype(x.dtype), h.astype(x.dtype)

    return _for_each(step, inputs, 4)


@define("Momentum")
def _momentum(
    rate: Array,
    count: Array,
    /,
    *inputs: Array,
    alpha: float,
    beta: float,
    mode: str,
    norm_coefficient: float,
) -> tuple[Array, ...]:
    """Inputs X…, G…, V… -> X…, V…."""
    if mode not in ("standard", "nesterov"):
        raise UnsupportedOpError(f"expected mode standard or nesterov, got {mode!r}")
    r, scale = scalar(rate, "R"), beta if scalar(count, "T") > 0 else 1.0

    def step(x: Array, g: Array, v: Array) -> tuple[Array, ...]:
        g = norm_coefficient * x + g
        v = alpha * v + scale * g
        moved = g + alpha * v if mode == "nesterov" else v
        return (x - r * moved).astype(x.dtype), v.astype(x.dtype)

    return _for_each(step, inputs, 3)
