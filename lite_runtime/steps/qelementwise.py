"""Sums and products of two quantised tensors of bytes, broadcast."""

from __future__ import annotations

from lite_runtime.steps.declaration import In, Out, Row, Step, step

__all__ = ["ByteProduct", "ByteSum", "Group"]


class Group(Row):
    """A dimension around the run: its extent, and the byte distances between its indices in a and b."""

    extent: int
    a_step: int
    b_step: int


class _Two(Step):
    """Along a run, a varies element by element; b does too, or (`__spread`) is constant."""

    a: In
    b: In
    y: Out


@step(*(f"qelementwise.{dtype}_sum{spread}" for dtype in ("int8", "uint8") for spread in ("", "__spread")))
class ByteSum(_Two):
    """y = clamp((a * a_factor + b * b_factor + start) >> shift, plus y's zero point)."""

    a_factor: int
    b_factor: int
    start: int  # the half for rounding, minus the zero points' contribution
    shift: int
    zero: int  # y's zero point
    low: int
    high: int
    total: int  # elements of y
    run: int  # elements
    group_count: int
    groups: tuple[Group, ...]  # from the innermost outwards

    counts = (("groups", "group_count"),)


@step(*(f"qelementwise.{dtype}_product{spread}" for dtype in ("int8", "uint8") for spread in ("", "__spread")))
class ByteProduct(_Two):
    """y = clamp((a - a_zero) * (b - b_zero) * factor, plus y's zero point)."""

    a_zero: int
    b_zero: int
    zero: int  # y's zero point
    factor: float
    low: float  # minus y's zero point
    high: float
    total: int  # elements of y
    run: int  # elements
    group_count: int
    groups: tuple[Group, ...]  # from the innermost outwards

    counts = (("groups", "group_count"),)
