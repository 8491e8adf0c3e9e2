"""A quantised transposed convolution's result from what every pixel spreads, channels last."""

from __future__ import annotations

from lite_runtime.steps.declaration import In, Out, Step, step

__all__ = ["SpreadSums"]


@step(*(f"qconv_transpose.{dtype}_gather" for dtype in ("int8", "uint8", "float32")))
class SpreadSums(Step):
    """y from the sums of what meets in a result. A table says for every row and column of y where the first source
    lies and how many there are."""

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
    down: int  # bytes from one source of a row to the next
    across: int
    zero: int  # y's zero point
    low: float  # less the zero point where y is an integer
    high: float
