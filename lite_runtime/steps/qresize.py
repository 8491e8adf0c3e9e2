"""Linear resizing of integers over two axes with integer weights."""

from __future__ import annotations

from lite_runtime.steps.declaration import In, Out, Step, step

__all__ = ["IntegerLinear"]


@step(*(f"qresize.{dtype}_linear" for dtype in ("int8", "uint8", "int16")))
class IntegerLinear(Step):
    """y from the four elements at a row's and a column's two offsets."""

    x: In
    rows: In  # int64 each: two byte offsets, two weights that sum to 2**11
    columns: In
    y: Out
    high: int  # rows of y
    wide: int
    run: int  # elements
