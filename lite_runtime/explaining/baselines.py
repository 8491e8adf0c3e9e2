"""What stands for "nothing there" in place of elements that a method takes away."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from lite_runtime.errors import ExplainError
from lite_runtime.explaining.layout import Layout
from lite_runtime.graph import Array

__all__ = ["BASELINES", "baseline"]

BASELINES = ("zero", "mean", "blur", "low", "high")


def baseline(x: Array, layout: Layout, how: str | float | Array = "zero") -> Array:
    """A baseline (*shape) in the sample's type.

    how: zero; mean, of each channel; blur, the sample smoothed along its places; low or high, the least or greatest
    value of the sample; a number; or an array of the sample's shape. A text has a number, a token's id (zero: 0).
    Raises ExplainError for anything else.
    """
    if isinstance(how, str):
        if how not in BASELINES:
            raise ExplainError(f"baseline: expected a number or one of {', '.join(BASELINES)}, got {how!r}")
        if how != "zero" and layout.kind == "text":
            raise ExplainError(f"baseline: expected a token's id for a text, got {how!r}")
        if how == "blur" and layout.kind == "table":
            raise ExplainError("baseline: expected a place for each value to blur, got a table; use mean or a number")
        return np.asarray(_NAMED[how](x, layout), x.dtype)
    given: Any = np.asarray(how)
    if given.shape not in ((), x.shape) or not np.isfinite(given).all():
        raise ExplainError(
            f"baseline: expected a finite number or an array of shape {list(x.shape)}, got {list(given.shape)}"
        )
    return np.broadcast_to(given, x.shape).astype(x.dtype)


def _mean(x: Array, layout: Layout) -> Array:
    axes = layout.places if layout.kind != "table" else tuple(range(x.ndim))
    return np.broadcast_to(x.mean(axes, keepdims=True), x.shape)


def _blur(x: Array, layout: Layout) -> Array:
    """Three running means along each place of a quarter of its size: nearly a Gaussian."""
    y = x.astype(np.float64)
    for axis in layout.places:
        size = max(1, x.shape[axis] // 8)
        for _ in range(3):
            padded = np.concatenate([np.take(y, [0] * size, axis), y, np.take(y, [-1] * size, axis)], axis)
            total = np.cumsum(padded, axis)
            total = np.concatenate([np.zeros_like(np.take(total, [0], axis)), total], axis)
            ends, starts = (np.arange(x.shape[axis]) + shift for shift in (2 * size + 1, 0))
            y = (np.take(total, ends, axis) - np.take(total, starts, axis)) / (2 * size + 1)
    return y


_NAMED: Mapping[str, Callable[[Array, Layout], Array]] = {
    "zero": lambda x, layout: np.zeros_like(x),
    "mean": _mean,
    "blur": _blur,
    "low": lambda x, layout: np.full_like(x, x.min()),
    "high": lambda x, layout: np.full_like(x, x.max()),
}
