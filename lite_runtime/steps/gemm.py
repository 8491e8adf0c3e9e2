"""Matrix products and convolutions, float32, and how operands get there."""

from __future__ import annotations

from lite_runtime.steps.declaration import Gaps, In, Out, Step, step

__all__ = ["F32Gemm", "F32Pack", "F32Pad", "F32Transpose"]


@step("gemm.f32_gemm")
class F32Gemm(Step):
    """C = clamp(A W + bias + R), then an activation. A group is a set of columns with weights and a slice of A of its
    own."""

    a: In
    w: In  # panels
    taps_at: In  # int64: byte offset of every tap from a row's address
    bias: In
    residual: In | None  # as C
    c: Out
    rows: int
    columns: int  # of one group
    taps: int
    depth: int  # floats of a tap
    vectors: int  # of a full panel
    c_row: int  # floats from row to row of C
    per_image: int  # rows
    per_line: int  # rows
    image_step: int  # bytes of A from image to image, line to line, row to row
    line_step: int
    row_step: int
    groups: int
    group_a: int  # bytes from group to group
    group_w: int
    batches: int
    batch_a: int  # bytes from batch to batch
    batch_w: int
    batch_c: int
    low: float
    high: float
    activation: int
    alpha: float
    beta: float

    gaps = Gaps("c", row="c_row", batches="batches", absent="residual")


@step("gemm.f32_pack")
class F32Pack(Step):
    """B -> panels, for products of two computed matrices."""

    b: In
    packed: Out
    depth: int  # rows of B
    columns: int
    vectors: int  # of a full panel
    row_step: int  # bytes from row to row of B, column to column
    column_step: int
    batches: int
    batch_b: int  # bytes from batch to batch
    batch_packed: int
    factor: float  # what B is multiplied by


@step("gemm.f32_pad")
class F32Pad(Step):
    """A channels-last image with a border of zeros."""

    x: In
    y: Out
    images: int
    height: int
    width: int
    depth: int  # floats of a pixel
    top: int  # border before
    left: int
    high: int  # of y
    wide: int


@step("gemm.f32_transpose")
class F32Transpose(Step):
    """The last two axes of a left operand swapped."""

    a: In
    out: Out
    batches: int
    rows: int  # of a
    columns: int
