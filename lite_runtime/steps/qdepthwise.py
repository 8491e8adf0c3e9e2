"""Depthwise convolution of bytes, channels last."""

from __future__ import annotations

from lite_runtime.steps.declaration import In, Out, Step, step

__all__ = ["DepthwiseBytes", "X8Depthwise", "X8DepthwiseShifted"]


class DepthwiseBytes(Step):
    """Operands and numbers of quantised depthwise convolutions. Tables have a whole block for the last channels, which
    overlaps the block before it; fewer channels than a block are computed in whole blocks, and the surplus of each
    pixel is overwritten by the next."""

    x: In  # with its border
    w: In  # packed
    taps_at: In  # int64: byte offset of every tap
    bias: In  # int32, one for each channel
    scale: In  # float32
    shift: In  # float32: added to a real result
    weight_sum: In | None  # int32
    weight_zero: In | None  # int32
    zeros: In | None  # zero points of x computed at run time, one per image
    scales: In | None  # scales of x, read for real results
    flip: In | None  # mask by which x's bytes are flipped, a vector
    ones: In | None  # 1 for each byte of taps that belongs to a tap
    y: Out
    images: int
    height: int  # of y
    width: int
    channels: int
    groups: int  # dwords of taps (bytes), or taps (int16)
    image_step: int  # bytes of x: an image, a line of y, a pixel of y
    line_step: int
    pixel_step: int
    line: int  # results
    size: int  # bytes of a result
    kind: int  # of result: `kernels/qgemm.py`
    zero: int  # y's zero point
    low: float  # minus the zero point if y has 8 bits
    high: float
    apart: int  # stride in elements of `zeros` over images


class _X8(DepthwiseBytes):
    turn: int  # mask that makes bytes of y unsigned
    wild: int  # 1: a sum times its scale can reach 2**31


@step("qdepthwise.x8_depthwise")
class X8Depthwise(_X8):
    """Depthwise convolution of bytes."""


@step("qdepthwise.x8_depthwise_shifted")
class X8DepthwiseShifted(_X8):
    """Like X8Depthwise, for weights with zero points."""
