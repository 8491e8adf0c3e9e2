"""Operators of a user's program that bring a kernel of their own."""

from __future__ import annotations

from lite_runtime.steps.declaration import In, Out, Step, step

__all__ = ["Call"]


@step("user.call")
class Call(Step):
    """Call a function of this process: the program is valid in no other."""

    x0: In | None
    x1: In | None
    x2: In | None
    x3: In | None
    x4: In | None
    x5: In | None
    x6: In | None
    x7: In | None
    y0: Out
    y1: Out | None
    y2: Out | None
    y3: Out | None
    function: int  # its address; it gets this record, the bases, the worker's number and how many there are


INPUTS = tuple(f"x{i}" for i in range(8))
OUTPUTS = tuple(f"y{i}" for i in range(4))
