"""Products of float32 with constant weights that are kept narrow in memory."""

from __future__ import annotations

from lite_runtime.steps.declaration import In, Out, Step, step

__all__ = ["NarrowGemm"]


@step("wgemm.i8_gemm", "wgemm.i4_gemm", "wgemm.f16_gemm")
class NarrowGemm(Step):
    """C = clamp(A W + bias + R), then an activation; W from int8, 4 bits or float16."""

    a: In
    w: In  # panels
    scales: In | None  # none for float16
    offsets: In | None
    bias: In | None
    residual: In | None  # as C
    c: Out
    rows: int
    columns: int
    depth: int
    vectors: int  # of a full panel
    block: int  # rows of W that share a scale
    low: float
    high: float
    activation: int
    alpha: float
    beta: float
