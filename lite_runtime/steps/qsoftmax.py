"""Softmax on bytes along the middle of [outer, n, inner]."""

from __future__ import annotations

from lite_runtime.steps.declaration import In, Out, Step, step

__all__ = ["ByteSoftmax"]


@step("qsoftmax.x8_softmax", "qsoftmax.x8_softmax__columns")
class ByteSoftmax(Step):
    """Softmax by a table of exponentials."""

    x: In
    table: In  # 256 exponentials as int32, by distance from the largest element
    y: Out
    outer: int
    n: int
    inner: int
    flip: int  # mask that makes x unsigned in the same order: 128 for int8
    kind: int  # kind of y, one of QUANTISED in `kernels/_opcodes.py`
    zero: float  # y's zero point
    scale: float  # y's
