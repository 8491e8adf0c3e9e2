"""Gathers, scatters and one-hot. Indices may be negative; dynamic ones outside the operand are clipped to it."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from cloud.engine.lowering.registry import (
    Tensor,
    lowering,
    namespace,
    normalise_axes,
    static_array,
)
from cloud.errors import EngineError

__all__: list[str] = []


def _from_front(indices: Tensor, size: Any) -> Tensor:
    return namespace(indices).where(indices < 0, indices + size, indices)


@lowering("Gather")
def gather(x: Tensor, indices: Tensor, *, axis: int = 0) -> Tensor:
    xp = namespace(x, indices)
    (axis,) = normalise_axes((axis,), x.ndim)
    if xp is np:
        return np.take(x, indices, axis=axis)
    return jnp.take(x, _from_front(indices, x.shape[axis]), axis=axis, mode="clip")


@lowering("GatherElements")
def gather_elements(x: Tensor, indices: Tensor, *, axis: int = 0) -> Tensor:
    positions = list(np.indices(indices.shape, sparse=True))
    positions[axis] = _from_front(indices, x.shape[axis])
    return jnp.asarray(x)[tuple(positions)]


def _columns(indices: Tensor, sizes: tuple[int, ...]) -> tuple[Tensor, ...]:
    return tuple(_from_front(indices[..., i], sizes[i]) for i in range(indices.shape[-1]))


@lowering("GatherND")
def gather_nd(x: Tensor, indices: Tensor, *, batch_dims: int = 0) -> Tensor:
    lead = np.indices(indices.shape[:batch_dims], sparse=True)
    extra = indices.ndim - 1 - batch_dims
    batch = tuple(grid.reshape(grid.shape + (1,) * extra) for grid in lead)
    return jnp.asarray(x)[batch + _columns(indices, x.shape[batch_dims:])]


_SCATTER = {"none": "set", "add": "add", "mul": "multiply", "max": "max", "min": "min"}


def _scatter(x: Tensor, positions: tuple[Tensor, ...], updates: Tensor, reduction: str) -> Tensor:
    if reduction not in _SCATTER:
        raise EngineError(f"expected a reduction of {', '.join(_SCATTER)}, got {reduction!r}")
    return getattr(jnp.asarray(x).at[positions], _SCATTER[reduction])(updates)


@lowering("ScatterElements")
def scatter_elements(x: Tensor, indices: Tensor, updates: Tensor, *, axis: int = 0, reduction: str = "none") -> Tensor:
    positions = list(np.indices(indices.shape, sparse=True))
    positions[axis] = _from_front(indices, x.shape[axis])
    return _scatter(x, tuple(positions), updates, reduction)


@lowering("ScatterND")
def scatter_nd(x: Tensor, indices: Tensor, updates: Tensor, *, reduction: str = "none") -> Tensor:
    return _scatter(x, _columns(indices, x.shape), updates, reduction)


@lowering("OneHot")
def one_hot(indices: Tensor, depth: Tensor, values: Tensor, *, axis: int = -1) -> Tensor:
    """values: (off, on). Indices outside [-depth, depth) give a row of `off`."""
    count = int(static_array(depth, "depth").reshape(-1)[0])
    indices = jnp.asarray(indices)
    (place,) = normalise_axes((axis,), indices.ndim + 1)
    ladder = jnp.arange(count).reshape((-1,) + (1,) * (indices.ndim - place))
    hot = jnp.expand_dims(_from_front(indices, count), place) == ladder
    return jnp.where(hot, values[1], values[0])


@lowering("NonZero")
def non_zero(x: Tensor) -> Tensor:
    """Only for a static operand: the result's shape depends on its elements."""
    return np.array(np.nonzero(static_array(x, "NonZero's operand")), np.int64)


@lowering("Compress")
def compress(x: Tensor, condition: Tensor, *, axis: int | None = None) -> Tensor:
    """The condition must be static."""
    kept = np.flatnonzero(static_array(condition, "the condition"))
    return namespace(x).take(x, kept, axis=axis)


@lowering("ReverseSequence")
def reverse_sequence(x: Tensor, lengths: Tensor, *, batch_axis: int = 1, time_axis: int = 0) -> Tensor:
    moved = jnp.moveaxis(x, (time_axis, batch_axis), (0, 1))
    steps = jnp.arange(moved.shape[0])[:, None]
    source = jnp.where(steps < lengths, lengths - 1 - steps, steps)
    y = moved[source, jnp.arange(moved.shape[1])]
    return jnp.moveaxis(y, (0, 1), (time_axis, batch_axis))


@lowering("TensorScatter")
def tensor_scatter(
    past: Tensor, update: Tensor, write_indices: Tensor | None = None, *, axis: int = -2, mode: str = "linear"
) -> Tensor:
    """Write `update` into a cache along `axis`, for each batch row from its index in `write_indices` on."""
    (axis,) = normalise_axes((axis,), past.ndim)
    positions = list(np.indices(update.shape, sparse=True))
    start = 0 if write_indices is None else jnp.reshape(write_indices, (-1,) + (1,) * (past.ndim - 1))
    along = positions[axis] + start
    positions[axis] = along % past.shape[axis] if mode == "circular" else along
    return jnp.asarray(past).at[tuple(positions)].set(update)


@lowering("Det")
def determinant(x: Tensor) -> Tensor:
    return jnp.linalg.det(x)


@lowering("Inverse")
def inverse(x: Tensor) -> Tensor:
    return jnp.linalg.inv(x)
