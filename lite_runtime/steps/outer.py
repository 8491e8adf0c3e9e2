"""Sums of outer products over pixels, float32, channels last: gradients of weights."""

from __future__ import annotations

from lite_runtime.steps.declaration import In, Out, Step, step

__all__ = ["Outer", "Unpack"]


@step("outer.f32_outer", "outer.f32_depthwise")
class Outer(Step):
    """C[tap] = the sum over pixels of A^T B; depthwise: of A * B."""

    a: In  # (images, height, width, floats)
    b: In  # (images, high, wide, floats)
    c: Out  # (batches, groups, taps, rows, columns); depthwise: (taps, channels)
    images: int
    height: int  # of A
    width: int
    deep: int  # floats of a pixel of A
    high: int  # of B
    wide: int
    b_deep: int  # floats of a pixel of B
    kernel_h: int
    kernel_w: int
    stride_h: int
    stride_w: int
    dilation_h: int
    dilation_w: int
    top: int  # border before
    left: int
    groups: int
    rows: int  # of a group
    columns: int
    block: int  # lines that all tiles process before the next
    batches: int
    batch_a: int  # stride in bytes over batches
    batch_b: int
    batch_c: int


@step("outer.f32_unpack")
class Unpack(Step):
    """(groups, taps, rows, columns) -> (groups, columns, rows, taps)."""

    x: In
    y: Out
    groups: int
    taps: int
    rows: int
    columns: int
