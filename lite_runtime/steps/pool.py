"""Windowed maxima and means over one to three spatial axes (fewer than three: leading axes of size 1)."""

from __future__ import annotations

from lite_runtime.steps.declaration import In, Out, Step, Three, step

__all__ = ["Pool", "Window"]


class Window(Step):
    """The window of a pool; each field of three numbers is for depth, height and width."""

    batch: int
    channels: int
    size: Three  # of the image
    out: Three  # of the result
    window: Three
    stride: Three
    dilation: Three
    pad: Three  # padding before
    counted: Three  # first position not counted in a mean's divisor: size, or size + padding after it
    counts_padding: int  # 1: padding counts in a mean's divisor


@step(*(f"pool.f32_{what}__{layout}" for what in ("max", "mean") for layout in ("nhwc", "nchw")))
class Pool(Window):
    """Maxima or means of windows."""

    x: In
    y: Out
