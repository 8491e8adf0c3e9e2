"""Rotary positions of queries and keys, float32."""

from __future__ import annotations

from lite_runtime.steps.declaration import In, Out, Picks, Step, step

__all__ = ["Rotate"]


@step("rotary.f32_rotate")
class Rotate(Step):
    """Pairs of features of each head, turned by the angles of their position."""

    picks = Picks("cos", "y")

    x: In
    cos: In
    sin: In
    positions: In | None  # int64 rows of cos and sin; without them, every row of x has its own
    y: Out
    batches: int
    heads: int
    length: int
    size: int  # features of a head
    half: int  # pairs
    batch: int  # elements from one batch, head or position to the next
    head: int
    row: int
    rows: int  # rows of cos and sin
    interleaved: int
