"""Gradients of pools, float32, channels last."""

from __future__ import annotations

from lite_runtime.steps.declaration import In, Out, step
from lite_runtime.steps.pool import Window

__all__ = ["PoolGrad"]


@step("poolgrad.f32_max__nhwc", "poolgrad.f32_mean__nhwc")
class PoolGrad(Window):
    """Distributes the gradient of each window to the image."""

    x: In
    dy: In
    dx: Out
