"""Reductions of float32 over the middle of [outer, n, inner]."""

from __future__ import annotations

from lite_runtime.steps.declaration import In, Out, Step, step

__all__ = ["Reduce"]


@step(
    *(
        f"reduce.f32_{what}__{tile}"
        for what in ("sum", "sum_abs", "sum_square", "prod", "max", "max_negated", "log_sum_exp")
        for tile in ("rows", "columns")
    )
)
class Reduce(Step):
    """y = finish(the reduction of x)."""

    x: In
    y: Out
    outer: int
    n: int
    inner: int
    finish: int  # final operation on a result: `kernels/reduce.py`
    divisor: float  # divisor of a mean
