"""Reductions of integers over the middle of [outer, n, inner], and the conversion of a sum to a quantised mean."""

from __future__ import annotations

from lite_runtime.steps.declaration import In, Out, Step, step

__all__ = ["AverageSum", "IntegerReduce", "PlaceSum"]


_SUMS = (
    *(f"{stored}_{held}" for held in ("int32", "int64") for stored in ("int8", "uint8", "int16")),
    "int32_int32",
    "int64_int64",
)
_ENDS = tuple(f"{held}_{stored}" for stored in ("int8", "uint8", "int16") for held in ("int32", "int64"))


@step(
    *(f"qreduce.{kinds}_sum__{tile}" for kinds in _SUMS for tile in ("rows", "columns")),
    *(f"qreduce.{d}_{what}__{t}" for d in ("int8", "uint8") for what in ("max", "min") for t in ("rows", "columns")),
)
class IntegerReduce(Step):
    """Sums, maxima or minima; sums wrap in their accumulator type. finish and divisor are those of `Reduce`, which the
    planner emits by the same rules; they are not read."""

    x: In
    y: Out
    outer: int
    n: int
    inner: int
    finish: int
    divisor: float


@step(*(f"qreduce.{kinds}_place" for kinds in _ENDS))
class PlaceSum(Step):
    """y = clamp(round_half_even(float32(x) * factor + shift)), with product and sum each rounded."""

    x: In
    y: Out
    elements: int
    factor: float
    shift: float
    low: float
    high: float


@step(*(f"qreduce.{kinds}_average" for kinds in _ENDS))
class AverageSum(Step):
    """y = clamp(x / n), halves away from zero."""

    x: In
    y: Out
    elements: int
    n: int
    low: float
    high: float
