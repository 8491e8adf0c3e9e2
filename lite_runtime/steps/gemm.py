"""Matrix products and convolutions in float32, and the preparation of their operands."""

from __future__ import annotations

from lite_runtime.steps.declaration import Gaps, In, Out, Step, step

__all__ = ["F32Gemm", "F32Pack", "F32Pad", "F32Transpose"]


@step("gemm.f32_gemm")
class F32Gemm(Step):
    """C = clamp(A W + bias + R), then an activation. A group is a set of columns with its own weights and its own slice
    of A."""

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
    c_row: int  # stride in floats over rows of C
    per_image: int  # rows
    per_line: int  # rows
    image_step: int  # stride in bytes of A over images, lines, rows
    line_step: int
    row_step: int
    groups: int
    group_a: int  # stride in bytes over groups
    group_w: int
    batches: int
    batch_a: int  # stride in bytes over batches
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
    row_step: int  # stride in bytes over rows of B, columns
    column_step: int
    batches: int
    batch_b: int  # stride in bytes over batches
    batch_packed: int
    factor: float  # factor applied to B


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
    """Swaps the last two axes of a left operand."""

    a: In
    out: Out
    batches: int
    rows: int  # of a
    columns: int
