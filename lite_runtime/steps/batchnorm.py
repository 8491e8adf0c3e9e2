"""BatchNormalization in training mode and its gradient, float32, channels last."""

from __future__ import annotations

from lite_runtime.steps.declaration import In, Out, Step, step

__all__ = ["Apply", "GradApply", "GradSettle", "GradSums", "Moments", "Settle"]


class _Rows(Step):
    """Rows of channels."""

    rows: int
    channels: int


class _Chunks(_Rows):
    """Rows processed in chunks."""

    chunk: int  # rows of a chunk


@step("batchnorm.f32_moments")
class Moments(_Chunks):
    """Means and sums of squared deviations, per chunk."""

    x: In  # (rows, channels)
    parts: Out  # (chunks, 2, channels)


@step("batchnorm.f32_settle")
class Settle(_Chunks):
    """Combines the moments of the chunks. All operands but parts are (channels,)."""

    parts: In
    scale: In
    old_mean: In
    old_variance: In
    new_mean: Out | None
    new_variance: Out | None
    mean: Out  # the batch's mean
    rstd: Out  # 1 / sqrt(the batch's variance + epsilon)
    factor: Out  # rstd * scale
    epsilon: float
    momentum: float  # weight of the old moments in the new ones


@step("batchnorm.f32_apply")
class Apply(_Rows):
    """y = (x - mean) * factor + bias."""

    x: In
    mean: In
    factor: In
    bias: In
    y: Out


@step("batchnorm.f32_grad_sums")
class GradSums(_Chunks):
    """Sums of dY and of (X - mean) * dY, per chunk."""

    dy: In
    x: In
    mean: In
    parts: Out  # (chunks, 2, channels)


@step("batchnorm.f32_grad_settle")
class GradSettle(_Rows):
    """Combines the sums of the chunks."""

    parts: In
    scale: In
    rstd: In
    dscale: Out
    db: Out
    factors: Out  # (3, channels): the factors of dY, X - mean and 1 in dX
    chunks: int


@step("batchnorm.f32_grad_apply")
class GradApply(_Rows):
    """dX = factors[0] * dY + factors[1] * (X - mean) + factors[2]."""

    dy: In
    x: In
    mean: In
    factors: In
    dx: Out
