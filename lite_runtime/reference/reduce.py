"""Reductions, cumulative sums and products, and indices of extremes."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import numpy as np

from lite_runtime.graph import Array
from lite_runtime.reference.registry import define
from lite_runtime.reference.support import axes_of, axis_of, in_float32, is_float, scalar

__all__: list[str] = []

Axes = tuple[int, ...]


def _extreme(fn: Callable[..., Array], of_nothing: Callable[[np.dtype], object]) -> Callable[[Array, Axes], Array]:
    def extreme(x: Array, axes: Axes) -> Array:
        return fn(x, axis=axes, keepdims=True, initial=of_nothing(x.dtype)) if axes else x

    return extreme


def _lowest(dtype: np.dtype) -> object:
    return False if dtype.kind == "b" else -np.inf if is_float(dtype) else np.iinfo(dtype).min


def _highest(dtype: np.dtype) -> object:
    return True if dtype.kind == "b" else np.inf if is_float(dtype) else np.iinfo(dtype).max


def _sum(x: Array, axes: Axes) -> Array:
    return np.asarray(np.sum(x, axis=axes, keepdims=True, dtype=x.dtype))


def _log_sum_exp(x: Array, axes: Axes) -> Array:
    """Shifted by the maximum, so that exp neither overflows nor underflows for all elements."""
    highest = np.max(x, axis=axes, keepdims=True, initial=-np.inf) if x.dtype.kind == "f" else 0
    shift = np.where(np.isfinite(highest), highest, 0).astype(x.dtype)
    return np.asarray(np.log(np.sum(np.exp(x - shift), axis=axes, keepdims=True)) + shift)


def _mean(x: Array, axes: Axes) -> Array:
    count = prod(x.shape[a] for a in axes)
    return np.asarray(np.sum(x, axis=axes, keepdims=True) / np.asarray(count, x.dtype)) if axes else x


_REDUCTIONS: dict[str, Callable[[Array, Axes], Array]] = {
    "ReduceL1": lambda x, axes: _sum(np.abs(x), axes),
    "ReduceL2": lambda x, axes: np.sqrt(_sum(x * x, axes)),
    "ReduceLogSum": lambda x, axes: np.log(_sum(x, axes)),
    "ReduceLogSumExp": _log_sum_exp,
    "ReduceMax": _extreme(np.max, _lowest),
    "ReduceMean": _mean,
    "ReduceMin": _extreme(np.min, _highest),
    "ReduceProd": lambda x, axes: np.prod(x, axis=axes, keepdims=True, dtype=x.dtype),
    "ReduceSum": _sum,
    "ReduceSumSquare": lambda x, axes: _sum(x * x, axes),
}
"""Each keeps the reduced axes at size 1; over no axes, only the elementwise part remains (Log, Square, …)."""


def _define_reduction(op: str, fn: Callable[[Array, Axes], Array]) -> None:
    @define(op)
    @in_float32
    def reduction(data: Array, axes: Array | None = None, /, keepdims: int = 1, noop_with_empty_axes: int = 0) -> Array:
        if axes is None or axes.size == 0:
            axes = np.zeros(0, np.int64) if noop_with_empty_axes else None
        where = axes_of(axes, data.ndim)
        kept = np.asarray(fn(data, where)).astype(data.dtype)
        return kept if keepdims else kept.reshape([n for i, n in enumerate(data.shape) if i not in where])


for _op, _fn in _REDUCTIONS.items():
    _define_reduction(_op, _fn)


def _place(pick: Callable[..., Array], data: Array, axis: int, keepdims: int, select_last_index: int) -> Array:
    axis = axis_of(axis, data.ndim)
    if select_last_index:
        places = data.shape[axis] - 1 - pick(np.flip(data, axis), axis=axis, keepdims=True)
    else:
        places = pick(data, axis=axis, keepdims=True)
    return np.asarray((places if keepdims else np.squeeze(places, axis)).astype(np.int64))


@define("ArgMax")
@in_float32
def _arg_max(data: Array, /, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> Array:
    return _place(np.argmax, data, axis, keepdims, select_last_index)


@define("ArgMin")
@in_float32
def _arg_min(data: Array, /, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> Array:
    return _place(np.argmin, data, axis, keepdims, select_last_index)


def _running(fn: Callable[..., Array], of_nothing: int) -> Callable[..., Array]:
    @in_float32
    def running(x: Array, axis: Array, /, exclusive: int = 0, reverse: int = 0) -> Array:
        along = axis_of(int(scalar(axis, "axis")), x.ndim)
        ordered = np.moveaxis(x, along, 0)
        ordered = ordered[::-1] if reverse else ordered
        if exclusive:
            ordered = np.concatenate([np.full_like(ordered[:1], of_nothing), ordered[:-1]])
        total = fn(ordered, axis=0, dtype=x.dtype)
        return np.moveaxis(total[::-1] if reverse else total, 0, along)

    return running


define("CumSum")(_running(np.cumsum, 0))
define("CumProd")(_running(np.cumprod, 1))
