"""Matrix products and convolutions of bytes, and the preparation of their operands."""

from __future__ import annotations

from lite_runtime.steps.declaration import Gaps, In, Out, Step, step

__all__ = ["GemmBytes", "PadBytes", "X8Gemm", "X8GemmShifted", "X8Pack", "X8Pad"]


class GemmBytes(Step):
    """C = requantised or scaled A W: operands and numbers of quantised products."""

    a: In
    w: In  # panels
    places: In  # int64: byte offset of every dword of a row
    bias: In  # int32 (int16 activations: int64), one for each column
    scale: In  # float32
    shift: In  # float32: added to a real result
    weight_sum: In  # int32
    weight_zero: In  # int32
    zeros: In | None  # zero points of A computed at run time, one per row
    scales: In  # float32, of A
    flip: In  # a vector: the mask by which A's bytes are flipped, 128 or 0
    c: Out
    rows: int
    columns: int  # of one group
    dwords: int  # of a row
    vectors: int  # of a full panel
    size: int  # bytes of a result
    c_row: int  # stride in results over rows of C
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
    batch_bias: int  # of bias and weight sums
    kind: int  # of result: `kernels/qgemm.py`
    zero: int  # C's zero point
    low: float  # minus the zero point if C has 8 bits
    high: float
    rows_a_scale: int  # rows that share a zero point and a scale; 0: all
    turn: int  # mask that makes bytes of C unsigned: 128 if they are signed, otherwise 0
    wild: int  # 1: a sum times its scale can reach 2**31
    quick: int  # dwords (groups of four on indexed targets) that come first and are summed faster: `kernels/qgemm.py`


@step("qgemm.x8_gemm")
class X8Gemm(GemmBytes):
    """A product of bytes."""

    gaps = Gaps("c", row="c_row", batches="batches")


@step("qgemm.x8_gemm_shifted")
class X8GemmShifted(GemmBytes):
    """Like X8Gemm, for weights with zero points: every panel ends with a vector of ones."""


@step("qgemm.x8_pack")
class X8Pack(Step):
    """B -> panels and values derived from its columns, for products of two computed matrices. A weight sum is the sum
    of a column's (w - zero point); its bias is reduced by that sum times A's zero point."""

    b: In
    bias: In | None
    packed: Out
    folded: Out  # biases
    sums: Out  # weight sums
    depth: int  # rows of B
    columns: int
    vectors: int  # of a full panel
    ones: int  # vectors of ones after it
    row_step: int  # stride in bytes over rows of B, columns
    column_step: int
    batches: int
    batch_b: int  # stride in bytes over batches: B, panels, tables of columns
    batch_packed: int
    batch_table: int
    flip: int  # mask by which B is flipped
    zero_b: int  # zero point of B after flipping
    zero_a: int  # zero point of A as the tile reads it
    overlap: int  # bytes that the last dword reads twice


class PadBytes(Step):
    """A channels-last image with a border of its zero point."""

    x: In
    zeros: In  # zero points
    y: Out
    images: int
    height: int
    width: int
    depth: int  # elements of a pixel
    top: int  # border before
    left: int
    high: int  # of y
    wide: int
    apart: int  # stride in elements of `zeros` over images


@step("qgemm.x8_pad")
class X8Pad(PadBytes):
    """… of bytes."""
