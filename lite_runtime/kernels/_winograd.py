"""Where Winograd's polynomials meet, shared by the kernels and by the packing of weights (needs no compiler)."""

from __future__ import annotations

__all__ = ["POINTS", "A", "B"]

A, B = 0.75, 1.5
"""The finite points of F(4x4, 3x3) beside 0, each with its negative."""
POINTS: dict[int, tuple[float, ...]] = {4: (0.0, A, -A, B, -B), 2: (0.0, 1.0, -1.0)}
"""By m, the results a tile has along an axis: the finite points in the order of the transforms; infinity comes last."""
