"""The result of a quantised transposed convolution from the products of pixels and taps, channels last."""

from __future__ import annotations

from lite_runtime.steps.declaration import In, Out, Step, step

__all__ = ["SpreadSums"]


@step(*(f"qconv_transpose.{dtype}_gather" for dtype in ("int8", "uint8", "float32")))
class SpreadSums(Step):
    """y from the sums of the contributions to each result. For every row and column of y, a table gives the offset of
    the first source and the number of sources."""

    spreads: In  # int32 (images, pixels, taps, channels)
    rows: In  # int64 pairs: byte offset, count
    columns: In
    bias: In  # int32, one for each channel
    scale: In  # float32
    shift: In  # float32: added to a real result
    y: Out
    images: int
    y_height: int
    y_width: int
    channels: int
    image_bytes: int  # of spreads
    down: int  # stride in bytes over sources of a row
    across: int
    zero: int  # y's zero point
    low: float  # minus the zero point if y is an integer
    high: float
