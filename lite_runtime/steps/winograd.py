"""3x3 convolutions of stride 1 with fewer products, float32, channels last."""

from __future__ import annotations

from lite_runtime.steps.declaration import In, Out, Scratch, Step, step

__all__ = ["Winograd"]


@step("winograd.f32_winograd")
class Winograd(Step):
    """y = clamp(conv(x, W) + bias + R), then an activation."""

    x: In
    w: In  # [panels][points][channels in whole vectors][columns of the panel]
    bias: In | None
    residual: In | None  # as y
    scratch: Scratch
    y: Out
    m: int  # results along a side of a tile
    images: int
    height: int  # of x
    width: int
    channels: int
    y_height: int
    y_width: int
    columns: int
    top: int  # border before
    left: int
    vectors: int  # of a full panel
    block: int  # tiles
    room: int  # tiles that fit the scratch buffer
    team: int  # workers that it has memory for
    low: float
    high: float
    activation: int
    alpha: float
    beta: float
