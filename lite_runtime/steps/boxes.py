"""Non-maximum suppression: the boxes that each class keeps, then all of them as rows of one result."""

from __future__ import annotations

from lite_runtime.steps.declaration import In, Out, Scratch, Step, step

__all__ = ["GatherBoxes", "Suppress"]


class _Kept(Step):
    """Sizes that both steps share."""

    batches: int
    classes: int
    most: int  # boxes that a class keeps


@step("boxes.f32_suppress")
class Suppress(_Kept):
    """The boxes that each class of each batch keeps, best first."""

    boxes: In  # float32 [batches][n][4]
    scores: In  # float32 [batches][classes][n]
    overlap: In | None  # float32: the greatest overlap of boxes kept; left out: 0
    least: In | None  # float32: scores must be greater; left out: all are
    heap: Scratch  # int32 [batches][classes][n]
    corners: Scratch  # float32 [batches][classes][most][4]
    chosen: Out  # int64 [batches][classes][most]
    kept: Out  # int64 [batches][classes]
    n: int
    centred: int  # 1: a box is its centre and its size (x, y, width, height), not two corners


@step("boxes.gather_boxes")
class GatherBoxes(_Kept):
    """Rows (batch, class, box) of what was kept, then rows of zeros, and how many rows are meant."""

    chosen: In
    kept: In
    rows: Out  # int64 [batches * classes * most][3]
    count: Out  # int64
