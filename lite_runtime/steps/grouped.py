"""Products in float32 whose right operand is selected for each row."""

from __future__ import annotations

from lite_runtime.steps.declaration import In, Out, Picks, Step, step

__all__ = ["F32Grouped"]


@step("grouped.f32_grouped")
class F32Grouped(Step):
    """y = clamp(x table[slot] + bias[slot] + R), then an activation. A slot outside the table is reported and treated
    as slot 0."""

    x: In
    table: In  # (matrices, depth, columns)
    slots: In  # int64
    biases: In | None  # (matrices, columns)
    residual: In | None  # as y
    y: Out
    rows: int
    each: int  # rows that share an entry of slots
    depth: int
    columns: int
    matrices: int
    low: float
    high: float
    activation: int
    alpha: float
    beta: float

    picks = Picks("table")
