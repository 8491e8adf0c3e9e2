"""Sums of bytes to bytes in LiteRT's fixed-point arithmetic."""

from __future__ import annotations

from lite_runtime.steps.declaration import In, Out, Step, step

__all__ = ["SettleSums"]


@step("qsettle.i32_settle")
class SettleSums(Step):
    """Sums of bytes -> bytes by multipliers and shifts, rounded as LiteRT's own kernels do."""

    x: In  # int32 sums
    multipliers: In  # int32, of each column, padded to whole vectors
    shifts: In  # with the flag of `emit_fixed` in `kernels/_dot.py`
    y: Out
    rows: int
    columns: int
    zero: int  # y's zero point
    low: int  # of y
    high: int
