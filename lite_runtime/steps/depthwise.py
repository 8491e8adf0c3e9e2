"""Depthwise convolution, float32, channels last."""

from __future__ import annotations

from lite_runtime.steps.declaration import In, Out, Step, step

__all__ = ["F32Depthwise"]


@step("depthwise.f32_depthwise", *(f"depthwise.f32_depthwise__{k}x{k}s{s}" for k in (3, 5) for s in (1, 2)))
class F32Depthwise(Step):
    """y = clamp(conv(x, W) + bias + R), then an activation; one window per channel."""

    x: In
    w: In  # [taps][channels in whole vectors]
    taps_at: In  # int64: byte offset of every tap, column by column of the window
    bias: In | None
    residual: In | None
    y: Out
    images: int
    height: int  # of y
    width: int
    channels: int
    kernel_h: int
    kernel_w: int
    x_height: int
    x_width: int
    stride_h: int
    stride_w: int
    dilation_h: int
    dilation_w: int
    top: int  # border before
    left: int
    low: float
    high: float
    activation: int
    alpha: float
    beta: float
