"""The sums of transposed convolutions, float32, channels last."""

from __future__ import annotations

from lite_runtime.steps.declaration import In, Out, Step, step

__all__ = ["TransposedSums"]


@step("transposed.f32_depthwise", "transposed.f32_gather")
class TransposedSums(Step):
    """y = clamp(sums + bias), then an activation; sums of pixels times taps (depthwise), or of precomputed products of
    pixels and taps (gather)."""

    x: In  # the image; gather: products (pixels, groups, window, channels of a group)
    w: In | None  # taps column by column, channels in whole vectors; gather: left out
    bias: In | None
    y: Out
    images: int
    height: int  # of x
    width: int
    channels: int  # of y
    y_height: int
    y_width: int
    kernel_h: int
    kernel_w: int
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
    groups: int
