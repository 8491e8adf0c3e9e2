"""Products with weights of 4 or 8 bits in blocks, in the panels of `reference.blocked`."""

from __future__ import annotations

from lite_runtime.steps.declaration import In, Out, Picks, Step, step

__all__ = ["BlockGemm", "EmbedBlocks", "FloatBlockGemm", "QuantizeBlocks"]


@step("blocked.quantize")
class QuantizeBlocks(Step):
    """Blocks of 32 float32 -> int8, scale, scale times sum."""

    x: In
    q: Out
    scales: Out
    sums: Out
    blocks: int


@step("blocked.i4_gemm", "blocked.i8_gemm")
class BlockGemm(Step):
    """C = A W + bias + R; A from QuantizeBlocks."""

    a: In
    a_scales: In
    a_sums: In
    w: In
    scales: In
    offsets: In | None
    bias: In | None
    residual: In | None
    c: Out
    rows: int
    columns: int
    depth: int
    block: int  # values that share a scale of W, a multiple of 32
    wide: int  # 1: scales and offsets of W are float32, 0: float16
    zero: float  # subtracted from values of W


@step("blocked.i4_float", "blocked.i8_float")
class FloatBlockGemm(Step):
    """C = A W + bias + R; A of float32."""

    a: In
    w: In
    scales: In
    offsets: In | None
    bias: In | None
    residual: In | None
    c: Out
    rows: int
    columns: int
    depth: int
    block: int
    wide: int
    zero: float


@step("blocked.i4_embed", "blocked.i8_embed")
class EmbedBlocks(Step):
    """Rows of a table as float32."""

    picks = Picks("w", "y")

    w: In
    indices: In
    scales: In
    offsets: In | None
    y: Out
    count: int
    columns: int  # rows of the table
    depth: int
    block: int
    wide: int
    zero: float
    width: int  # bytes of an index
