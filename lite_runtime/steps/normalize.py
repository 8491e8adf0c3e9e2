"""Softmax and the normalisations, float32, over the middle of [outer, n, inner]."""

from __future__ import annotations

from lite_runtime.steps.declaration import In, Out, Step, step

__all__ = ["LocalResponse", "LpNormalize", "Softmax", "Standardize"]


class _Fold(Step):
    """Fields that all of these steps share."""

    x: In
    y: Out
    outer: int
    n: int
    inner: int


@step("normalize.f32_softmax__rows", "normalize.f32_log_softmax__rows", "normalize.f32_softmax__columns")
class Softmax(_Fold):
    """Softmax or LogSoftmax."""

    log: int  # 1: LogSoftmax


@step("normalize.f32_standardize__rows", "normalize.f32_standardize__columns")
class Standardize(_Fold):
    """(x - mean) / deviation * scale + bias: layer, RMS, instance, group and mean-variance normalisation."""

    scales: In | None
    biases: In | None
    means: Out | None  # (rows,)
    inverses: Out | None  # (rows,): 1 / deviation
    centre: int  # 0: the mean is not subtracted
    channels: int
    depth: int  # 0: one scale per element of a row; otherwise the elements of a channel, with one scale per channel
    epsilon: float  # added to the variance
    floor: float  # added to its root


@step("normalize.f32_lp_normalize__rows", "normalize.f32_lp_normalize__columns")
class LpNormalize(_Fold):
    """x divided by its norm; 0 if the norm is 0."""

    p: int  # the norm: 1 or 2


@step("normalize.f32_local_response__columns")
class LocalResponse(_Fold):
    """x / (bias + alpha * sum of squares of neighbouring channels)^beta; n are the channels."""

    before: int  # channels before an element's own that are included
    after: int
    alpha: float  # divided by the size of the window
    beta: float
    bias: float
