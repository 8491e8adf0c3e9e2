"""Softmax on bytes along the middle of [outer, n, inner], and on rows of 16 bits."""

from __future__ import annotations

from lite_runtime.steps.declaration import In, Out, Step, step

__all__ = ["ByteSoftmax", "ShortSoftmax"]


@step("qsoftmax.x8_softmax", "qsoftmax.x8_softmax__columns", "qsoftmax.x8_softmax__ordered")
class ByteSoftmax(Step):
    """Softmax by a table of exponentials."""

    x: In
    table: In  # 256 exponentials by distance from the largest element: int32, __ordered: float32
    y: Out
    outer: int
    n: int
    inner: int
    flip: int  # mask that makes x unsigned in the same order: 128 for int8
    kind: int  # kind of y, one of QUANTISED in `kernels/_opcodes.py`
    zero: float  # y's zero point
    scale: float  # y's


@step("qsoftmax.i16_softmax")
class ShortSoftmax(Step):
    """Softmax of rows by interpolated tables."""

    x: In
    powers: In  # exp
    reciprocals: In
    y: Out
    rows: int
    n: int
    multiplier: int  # of distances from the largest element
    shift: int
