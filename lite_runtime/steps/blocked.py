"""Products with weights of 4 or 8 bits in blocks, in the panels of `reference.blocked`."""

from __future__ import annotations

from lite_runtime.steps.declaration import In, Out, Picks, Step, step

__all__ = ["BlockGemm", "EmbedBlocks", "FloatBlockGemm", "GatedBlocks", "QuantizeBlocks"]


@step("blocked.quantize", "blocked.quantize__16")
class QuantizeBlocks(Step):
    """Blocks of 32 or 16 float32 -> int8, scale, scale times sum."""

    x: In
    q: Out
    scales: Out
    sums: Out
    blocks: int


class _Table(Step):
    """Weights in blocks."""

    w: In
    scales: In
    offsets: In | None
    columns: int
    depth: int
    block: int  # values that share a scale of W
    wide: int  # 1: scales and offsets of W are float32, 0: float16
    zero: float  # subtracted from values of W


class _Product(_Table):
    """C = A W + bias + R."""

    a: In
    bias: In | None
    residual: In | None
    c: Out
    rows: int


@step("blocked.i4_gemm", "blocked.i8_gemm", "blocked.i4_gemm__16", "blocked.i8_gemm__16")
class BlockGemm(_Product):
    """A from QuantizeBlocks; blocks of W are multiples of A's."""

    a_scales: In
    a_sums: In


@step("blocked.i4_float", "blocked.i8_float")
class FloatBlockGemm(_Product):
    """A of float32."""


@step("blocked.i4_gated", "blocked.i8_gated")
class GatedBlocks(_Table):
    """QuantizeBlocks of act(A W) * (A V), in blocks of 32; A from QuantizeBlocks; W and V have one format."""

    v: In
    v_scales: In
    v_offsets: In | None
    a: In
    a_scales: In
    a_sums: In
    q: Out
    q_scales: Out
    q_sums: Out
    rows: int
    activation: int


@step("blocked.i4_embed", "blocked.i8_embed")
class EmbedBlocks(_Table):
    """Rows of a table as float32."""

    picks = Picks("w", "y")

    indices: In
    y: Out
    count: int
    width: int  # bytes of an index
