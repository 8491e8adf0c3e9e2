"""The gradient of LayerNormalization, float32."""

from __future__ import annotations

from lite_runtime.steps.declaration import In, Out, Step, step

__all__ = ["LayerNormGrad"]


@step("layernorm.f32_grad")
class LayerNormGrad(Step):
    """dX, and the sums of chunks for the gradients of scale and bias."""

    dy: In  # (rows, n)
    x: In
    scale: In  # (n,)
    mean: In  # (rows,)
    inverse: In  # (rows,): 1 / deviation
    dx: Out
    parts: Out  # (2, chunks, n): sums of dY * normal, of dY
    rows: int
    n: int
    chunk: int  # rows of a chunk
