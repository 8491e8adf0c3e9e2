"""Quantisation over a tensor's own range."""

from __future__ import annotations

from lite_runtime.steps.declaration import In, Out, Step, step

__all__ = ["QuantizeRows", "Range"]


class _Pieces(Step):
    """Rows divided into pieces."""

    x: In
    rows: int
    n: int  # elements of a row
    pieces: int  # of a row
    size: int  # elements of a piece


@step("quantize.f32_range")
class Range(_Pieces):
    """(smallest, largest) of every piece of every row, widened to include 0."""

    ranges: Out


@step("quantize.f32_quantize_rows")
class QuantizeRows(_Pieces):
    """Quantises rows over their ranges."""

    ranges: In | None  # of the pieces; left out if a row is one piece
    y: Out | None
    scales: Out | None
    zeros: Out | None
    scheme: int  # 0: y is uint8; int8: 1 as XNNPACK, 2 symmetric, 3 asymmetric
