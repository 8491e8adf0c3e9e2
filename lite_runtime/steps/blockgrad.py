"""Gradients through products with weights in blocks: the products with their transposes."""

from __future__ import annotations

from lite_runtime.steps.declaration import In, Out, Step, step

__all__ = ["ByteBlockGrad", "FloatBlockGrad"]


class _Product(Step):
    """C = A W + R for W of `columns` outputs and `depth` inputs: rows of A are outputs, those of C inputs."""

    a: In
    w: In
    scales: In
    offsets: In | None
    residual: In | None
    c: Out
    rows: int
    columns: int
    depth: int
    block: int  # values that share a scale of W
    wide: int  # 1: scales and offsets of W are float32, 0: float16
    zero: float  # subtracted from values of W


@step("blockgrad.i4_gemm", "blockgrad.i8_gemm")
class ByteBlockGrad(_Product):
    """A from QuantizeBlocks; W is rounded once more, in blocks of 32 outputs."""

    a_scales: In
    a_sums: In


@step("blockgrad.i4_float", "blockgrad.i8_float")
class FloatBlockGrad(_Product):
    """A of float32."""
