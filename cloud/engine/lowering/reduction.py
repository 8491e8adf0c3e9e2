"""Reductions over axes, arg-max, running sums, top-k."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import jax.scipy.special
import numpy as np
from jax import lax

from cloud._jax import canonical_dtype
from cloud.engine.lowering.registry import (
    Tensor,
    lowering,
    namespace,
    normalise_axes,
    static_int,
    static_ints,
)

__all__: list[str] = []

Reduce = Callable[..., Any]


def _l2(xp: Any, x: Tensor, **over: Any) -> Tensor:
    return xp.sqrt(xp.sum(x * x, **over))


def _log_sum_exp(xp: Any, x: Tensor, **over: Any) -> Tensor:
    return jax.scipy.special.logsumexp(x, **over)


def _of_nothing(x: Tensor, *, lowest: bool) -> dict[str, Any]:
    """The maximum (`lowest`) or minimum of no elements: the neutral element."""
    if x.size:
        return {}
    if x.dtype == bool:
        return {"initial": not lowest}
    if jnp.issubdtype(x.dtype, jnp.integer):
        limits = np.iinfo(x.dtype)
        return {"initial": limits.min if lowest else limits.max}
    return {"initial": -np.inf if lowest else np.inf}


# ONNX name -> reduction of x with NumPy's axis and keepdims
_REDUCTIONS: dict[str, Reduce] = {
    "ReduceL1": lambda xp, x, **over: xp.sum(xp.abs(x), **over),
    "ReduceL2": _l2,
    "ReduceLogSum": lambda xp, x, **over: xp.log(xp.sum(x, **over)),
    "ReduceLogSumExp": _log_sum_exp,
    "ReduceMax": lambda xp, x, **over: xp.max(x, **over, **_of_nothing(x, lowest=True)),
    "ReduceMean": lambda xp, x, **over: xp.mean(x, **over),
    "ReduceMin": lambda xp, x, **over: xp.min(x, **over, **_of_nothing(x, lowest=False)),
    "ReduceProd": lambda xp, x, **over: xp.prod(x, **over),
    "ReduceSum": lambda xp, x, **over: xp.sum(x, **over),
    "ReduceSumSquare": lambda xp, x, **over: xp.sum(x * x, **over),
}


def _reduction(reduce: Reduce) -> Callable[..., Tensor]:
    def rule(x: Tensor, axes: Tensor | None = None, *, keepdims: int = 1, noop_with_empty_axes: int = 0) -> Tensor:
        chosen = () if axes is None else static_ints(axes, "axes")
        if not chosen and noop_with_empty_axes:
            return reduce(namespace(x), x, axis=(), keepdims=bool(keepdims)).astype(x.dtype)
        over = normalise_axes(chosen, x.ndim) or tuple(range(x.ndim))
        return reduce(namespace(x), x, axis=over, keepdims=bool(keepdims)).astype(x.dtype)

    return rule


for _op, _reduce in _REDUCTIONS.items():
    lowering(_op)(_reduction(_reduce))


def _arg(x: Tensor, find: Callable[..., Tensor], axis: int, keepdims: int, select_last_index: int) -> Tensor:
    axis = axis % x.ndim
    found = find(jnp.flip(x, axis) if select_last_index else x, axis=axis, keepdims=bool(keepdims))
    if select_last_index:
        found = x.shape[axis] - 1 - found
    return found.astype(canonical_dtype(np.int64))


@lowering("ArgMax")
def arg_max(x: Tensor, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> Tensor:
    return _arg(x, jnp.argmax, axis, keepdims, select_last_index)


@lowering("ArgMin")
def arg_min(x: Tensor, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> Tensor:
    return _arg(x, jnp.argmin, axis, keepdims, select_last_index)


def _running(x: Tensor, axis: Tensor, name: str, start: int, exclusive: int, reverse: int) -> Tensor:
    xp = namespace(x)
    along = static_int(axis, "axis") % x.ndim
    if reverse:
        x = xp.flip(x, along)
    if exclusive:
        widths = [(int(i == along), 0) for i in range(x.ndim)]
        x = xp.pad(x, widths, constant_values=start)[tuple(slice(0, n) for n in x.shape)]
    y = getattr(xp, name)(x, axis=along).astype(x.dtype)
    return xp.flip(y, along) if reverse else y


@lowering("CumSum")
def cum_sum(x: Tensor, axis: Tensor, *, exclusive: int = 0, reverse: int = 0) -> Tensor:
    return _running(x, axis, "cumsum", 0, exclusive, reverse)


@lowering("CumProd")
def cum_prod(x: Tensor, axis: Tensor, *, exclusive: int = 0, reverse: int = 0) -> Tensor:
    return _running(x, axis, "cumprod", 1, exclusive, reverse)


@lowering("TopK")
def top_k(x: Tensor, k: Tensor, *, axis: int = -1, largest: int = 1, sorted: int = 1) -> tuple[Tensor, Tensor]:
    """Equal elements come in the order of their indices."""
    count = static_int(k, "k")
    moved = jnp.moveaxis(x, axis, -1)
    integer = jnp.issubdtype(moved.dtype, jnp.integer)
    keys = moved if largest else (~moved if integer else -moved)  # ~x turns the order of integers without overflow
    _, indices = lax.top_k(keys, count)
    values = jnp.take_along_axis(moved, indices, axis=-1)
    back = (jnp.moveaxis(y, -1, axis) for y in (values, indices))
    first, second = back
    return first, second.astype(canonical_dtype(np.int64))
