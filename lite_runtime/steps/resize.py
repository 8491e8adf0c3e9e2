"""Resize: nearest by tables of byte offsets, all other modes as weighted sums of taps along an axis."""

from __future__ import annotations

from lite_runtime.steps.declaration import In, Out, Step, step

__all__ = ["Nearest", "Taps"]


@step("resize.nearest")
class Nearest(Step):
    """target[i, j, k, :] = source at bytes a[i] + b[j] + c[k]."""

    source: In
    tables: In  # int64: a, b and c, concatenated
    target: Out
    a: int  # sizes of the tables
    b: int
    c: int
    run: int  # bytes


@step("resize.taps_inside", "resize.taps_along")
class Taps(Step):
    """target[o, i, :] = sum over t of weights[i, t] * source[o, indices[i, t], :], float32."""

    source: In
    indices: In  # int64, times inner
    weights: In
    target: Out
    outer: int
    count: int  # of the axis in the target
    extent: int  # … in the source
    inner: int
    taps: int
