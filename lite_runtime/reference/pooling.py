"""Pools over windows and global pools."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from lite_runtime.graph import Array
from lite_runtime.reference.movement import to_channels_first, to_channels_last
from lite_runtime.reference.registry import define
from lite_runtime.reference.support import in_float32, integers, is_float, require
from lite_runtime.reference.windows import resolve

__all__: list[str] = []


@define("MaxPool")
def _max_pool(
    x: Array,
    /,
    kernel_shape: Sequence[int],
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    dilations: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    storage_order: int = 0,
    strides: Sequence[int] | None = None,
    layout: str = "NCHW",
) -> tuple[Array, Array]:
    """(maxima, their indices in the flattened input). The first of equal values wins; padding never does.

    Indices count in (batch, channels, space…) order; with `storage_order` 1, space is in column-major order.
    """
    x = to_channels_first(x, layout)
    space = x.shape[2:]
    window = resolve(
        space,
        kernel_shape,
        strides=strides,
        dilations=dilations,
        pads=pads,
        auto_pad=auto_pad,
        ceil_mode=ceil_mode,
    )
    lowest = -np.inf if is_float(x.dtype) else np.iinfo(x.dtype).min
    padded = window.pad(x, lowest)
    order = np.arange(prod(space)).reshape(space[::-1]).transpose() if storage_order else np.arange(prod(space))
    places = window.pad(order.reshape(space), -1)
    best = np.full((*x.shape[:2], *window.out), lowest, x.dtype)
    where = np.full(best.shape, -1, np.int64)
    for _, cut in window.taps():
        value, place = padded[cut], places[cut]
        better = (place >= 0) & ((value > best) | (where < 0))
        best = np.where(better, value, best)
        where = np.where(better, place, where)
    planes = np.arange(prod(x.shape[:2])).reshape(*x.shape[:2], *(1,) * len(space)) * prod(space)
    return to_channels_last(best, layout), to_channels_last(where + planes, layout)


@define("AveragePool")
@in_float32
def _average_pool(
    x: Array,
    /,
    kernel_shape: Sequence[int],
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    count_include_pad: int = 0,
    dilations: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
    layout: str = "NCHW",
) -> Array:
    """Means over the elements of each window; the padding counts as zeros if `count_include_pad`."""
    x = to_channels_first(x, layout)
    window = resolve(
        x.shape[2:],
        kernel_shape,
        strides=strides,
        dilations=dilations,
        pads=pads,
        auto_pad=auto_pad,
        ceil_mode=ceil_mode,
    )
    padded = window.pad(x, 0)
    counted = window.pad(np.ones(x.shape[2:], x.dtype), 0)
    if count_include_pad:  # positions beyond the declared padding, reached through ceil_mode, are still not counted
        sizes = zip(window.begin, x.shape[2:], window.end, strict=True)
        counted[tuple(slice(0, b + n + e) for b, n, e in sizes)] = 1
    total = np.zeros((*x.shape[:2], *window.out), x.dtype)
    count = np.zeros(window.out, x.dtype)
    for _, cut in window.taps():
        total += padded[cut]
        count += counted[cut]
    return to_channels_last(total / count, layout)


@define("LpPool")
@in_float32
def _lp_pool(
    x: Array,
    /,
    kernel_shape: Sequence[int],
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    dilations: Sequence[int] | None = None,
    p: int = 2,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
    layout: str = "NCHW",
) -> Array:
    """The p-norm of each window."""
    x = to_channels_first(x, layout)
    window = resolve(
        x.shape[2:],
        kernel_shape,
        strides=strides,
        dilations=dilations,
        pads=pads,
        auto_pad=auto_pad,
        ceil_mode=ceil_mode,
    )
    padded = window.pad(np.abs(x) ** p, 0)
    total = np.zeros((*x.shape[:2], *window.out), x.dtype)
    for _, cut in window.taps():
        total += padded[cut]
    return to_channels_last((total ** (1 / p)).astype(x.dtype), layout)


def _plane(x: Array) -> tuple[int, ...]:
    return tuple(range(2, x.ndim))


@define("GlobalAveragePool")
@in_float32
def _global_average_pool(x: Array, /, layout: str = "NCHW") -> Array:
    x = to_channels_first(x, layout)
    return to_channels_last(np.mean(x, axis=_plane(x), keepdims=True), layout)


@define("GlobalMaxPool")
def _global_max_pool(x: Array, /, layout: str = "NCHW") -> Array:
    x = to_channels_first(x, layout)
    return to_channels_last(np.max(x, axis=_plane(x), keepdims=True), layout)


@define("GlobalLpPool")
@in_float32
def _global_lp_pool(x: Array, /, p: int = 2, layout: str = "NCHW") -> Array:
    x = to_channels_first(x, layout)
    norm = np.sum(np.abs(x) ** p, axis=_plane(x), keepdims=True) ** (1 / p)
    return to_channels_last(norm.astype(x.dtype), layout)


@define("MaxUnpool")
def _max_unpool(
    x: Array,
    indices: Array,
    output_shape: Array | None = None,
    /,
    kernel_shape: Sequence[int] = (),
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Array:
    """Write every value at its index; zeros elsewhere. `output_shape` enlarges the canvas afterwards."""
    require(x.shape == indices.shape, f"expected indices of shape {x.shape}, got {indices.shape}")
    rank = x.ndim - 2
    strides, pads = tuple(strides or (1,) * rank), tuple(pads or (0,) * (2 * rank))
    own = tuple(
        (n - 1) * s + k - b - e
        for n, s, k, b, e in zip(x.shape[2:], strides, kernel_shape, pads[:rank], pads[rank:], strict=True)
    )
    counted = (*x.shape[:2], *own)
    final = counted if output_shape is None else integers(output_shape)
    require(len(final) == x.ndim, f"expected output_shape of {x.ndim} numbers, got {final}")
    out = np.zeros(final, x.dtype)
    flat = indices.ravel().astype(np.int64)
    require(flat.size == 0 or (flat.min() >= 0 and flat.max() < prod(counted)), f"expected indices within {counted}")
    where = np.unravel_index(flat, counted)
    out[where] = x.ravel()
    return out
