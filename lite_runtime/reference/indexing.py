"""Gathering, scattering, selecting and sorting."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from lite_runtime.errors import InputError, UnsupportedOpError
from lite_runtime.graph import Array
from lite_runtime.reference.registry import define
from lite_runtime.reference.support import axis_of, integers, require, scalar, widen

__all__: list[str] = []


def _inside(indices: Array, size: int) -> Array:
    """Indices as non-negative numbers; raises InputError for those outside [-size, size)."""
    indices = indices.astype(np.int64)
    if indices.size and not (-size <= indices.min() and indices.max() < size):
        raise InputError(f"expected indices in [{-size}, {size - 1}], got {indices.min()} to {indices.max()}")
    return np.where(indices < 0, indices + size, indices)


@define("Gather")
def _gather(data: Array, indices: Array, /, axis: int = 0) -> Array:
    axis = axis_of(axis, data.ndim)
    return np.take(data, _inside(indices, data.shape[axis]), axis)


@define("GatherElements")
def _gather_elements(data: Array, indices: Array, /, axis: int = 0) -> Array:
    return np.asarray(data[_along(data, indices, axis)])


def _along(data: Array, indices: Array, axis: int) -> tuple[Array, ...]:
    """An open mesh over the shape of `indices`, with the indices themselves at `axis`."""
    axis = axis_of(axis, data.ndim)
    require(indices.ndim == data.ndim, f"expected indices of rank {data.ndim}, got shape {indices.shape}")
    mesh: list[Array] = list(np.ogrid[tuple(slice(n) for n in indices.shape)])
    mesh[axis] = _inside(indices, data.shape[axis])
    return tuple(mesh)


@define("GatherND")
def _gather_nd(data: Array, indices: Array, /, batch_dims: int = 0) -> Array:
    depth = indices.shape[-1]
    require(batch_dims + depth <= data.ndim, f"expected index tuples of at most {data.ndim - batch_dims}, got {depth}")
    require(
        data.shape[:batch_dims] == indices.shape[:batch_dims],
        f"expected equal batch sizes, got {data.shape[:batch_dims]} and {indices.shape[:batch_dims]}",
    )
    picks = tuple(_inside(indices[..., i], data.shape[batch_dims + i]) for i in range(depth))
    rest = (1,) * (indices.ndim - 1 - batch_dims)
    batch = [
        np.arange(n).reshape((1,) * i + (n,) + (1,) * (batch_dims - 1 - i) + rest)
        for i, n in enumerate(data.shape[:batch_dims])
    ]
    return np.asarray(data[(*batch, *picks)])


_COMBINE: dict[str, Callable[[Array, Any, Array], None]] = {
    "none": lambda out, where, updates: out.__setitem__(where, updates),
    "add": np.add.at,
    "mul": np.multiply.at,
    "max": np.maximum.at,
    "min": np.minimum.at,
}


def _scatter(data: Array, where: tuple[Array, ...], updates: Array, reduction: str) -> Array:
    if reduction not in _COMBINE:
        raise UnsupportedOpError(f"expected reduction of {', '.join(_COMBINE)}, got {reduction!r}")
    require(updates.dtype == data.dtype, f"expected updates of {data.dtype}, got {updates.dtype}")
    out = data.copy()
    _COMBINE[reduction](out, where, updates)
    return out


@define("ScatterElements")
def _scatter_elements(data: Array, indices: Array, updates: Array, /, axis: int = 0, reduction: str = "none") -> Array:
    require(indices.shape == updates.shape, f"expected updates of shape {indices.shape}, got {updates.shape}")
    return _scatter(data, _along(data, indices, axis), updates, reduction)


@define("ScatterND")
def _scatter_nd(data: Array, indices: Array, updates: Array, /, reduction: str = "none") -> Array:
    depth = indices.shape[-1]
    require(depth <= data.ndim, f"expected index tuples of at most {data.ndim}, got {depth}")
    expected = (*indices.shape[:-1], *data.shape[depth:])
    require(updates.shape == expected, f"expected updates of shape {expected}, got {updates.shape}")
    where = tuple(_inside(indices[..., i], data.shape[i]) for i in range(depth))
    return _scatter(data, where, updates, reduction)


@define("TensorScatter")
def _tensor_scatter(
    past_cache: Array, update: Array, write_indices: Array | None = None, /, axis: int = -2, mode: str = "linear"
) -> Array:
    """Each sample's update is written into its cache from its write index on; `circular` wraps around."""
    axis = axis_of(axis, past_cache.ndim)
    require(axis > 0, "expected axis other than the batch axis 0")
    if mode not in ("linear", "circular"):
        raise UnsupportedOpError(f"expected mode linear or circular, got {mode!r}")
    size, length = past_cache.shape[axis], update.shape[axis]
    starts = np.zeros(len(past_cache), np.int64) if write_indices is None else write_indices.astype(np.int64)
    places = starts[:, None] + np.arange(length)  # (batch, length)
    places = places % size if mode == "circular" else _inside(places, size)
    out = past_cache.copy()
    by_time, news = np.moveaxis(out, axis, 1), np.moveaxis(update, axis, 1)
    by_time[np.arange(len(out))[:, None], places] = news
    return out


@define("OneHot")
def _one_hot(indices: Array, depth: Array, values: Array, /, axis: int = -1) -> Array:
    size = int(scalar(depth, "depth"))
    require(values.shape == (2,), f"expected values [off, on], got shape {values.shape}")
    axis = axis_of(axis, indices.ndim + 1)
    whole = indices.astype(np.int64)
    whole = np.expand_dims(np.where(whole < 0, whole + size, whole), axis)
    classes = np.arange(size).reshape([-1 if i == axis else 1 for i in range(indices.ndim + 1)])
    return np.asarray(np.where(whole == classes, values[1], values[0]).astype(values.dtype))


@define("Compress")
def _compress(x: Array, condition: Array, /, axis: int | None = None) -> Array:
    if axis is None:
        return np.compress(condition, x.ravel())
    return np.compress(condition, x, axis_of(axis, x.ndim))


@define("NonZero")
def _non_zero(x: Array, /) -> Array:
    x = widen(x)
    return np.stack(np.nonzero(np.atleast_1d(x))).astype(np.int64) if x.ndim else np.zeros((0, int(x != 0)), np.int64)


@define("Unique")
def _unique(x: Array, /, axis: int | None = None, sorted: int = 1) -> tuple[Array, ...]:
    if axis is not None:
        axis = axis_of(axis, x.ndim)
    values, first, inverse, counts = np.unique(x, return_index=True, return_inverse=True, return_counts=True, axis=axis)
    inverse = inverse.ravel()
    if not sorted:
        order = np.argsort(first)  # the order in which they appear
        values = np.take(values, order, 0 if axis is None else axis)
        rank = np.empty_like(order)
        rank[order] = np.arange(len(order))
        first, counts, inverse = first[order], counts[order], rank[inverse]
    return values, first.astype(np.int64), inverse.astype(np.int64), counts.astype(np.int64)


@define("TopK")
def _top_k(x: Array, k: Array, /, axis: int = -1, largest: int = 1, sorted: int = 1) -> tuple[Array, Array]:
    """Equal values are ordered by index; the result is always sorted."""
    axis = axis_of(axis, x.ndim)
    count = int(scalar(k, "K"))
    require(0 <= count <= x.shape[axis], f"expected K in [0, {x.shape[axis]}], got {count}")
    keys = widen(x)
    if largest:  # a stable ascending sort of the flipped array, read backwards, keeps ties in order
        places = x.shape[axis] - 1 - np.flip(np.argsort(np.flip(keys, axis), axis, kind="stable"), axis)
    else:
        places = np.argsort(keys, axis, kind="stable")
    places = np.take(places, np.arange(count), axis)
    return np.take_along_axis(x, places, axis), places.astype(np.int64)


@define("ArrayFeatureExtractor")
def _array_feature_extractor(x: Array, indices: Array, /) -> Array:
    picked = np.take(x, integers(indices), -1)
    return picked.reshape(1, -1) if x.ndim == 1 else picked
