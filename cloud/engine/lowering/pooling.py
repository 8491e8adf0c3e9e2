"""Pooling over sliding windows and over all positions; channels first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax import lax

from cloud._jax import canonical_dtype
from cloud.engine.lowering.registry import Context, Tensor, lowering, static_ints
from cloud.engine.lowering.spatial import per_axis, window_pads

__all__: list[str] = []


class _Windows:
    """Window geometry of one pool: `pads` as in the model, `reach` including the amount that ceil_mode adds at the
    end."""

    def __init__(
        self, x: Tensor, kernel: Sequence[int], strides: Sequence[int] | None, dilations: Sequence[int] | None,
        auto_pad: str, pads: Sequence[int] | None, ceil_mode: int,
    ) -> None:  # fmt: skip
        rank = x.ndim - 2
        self.kernel, self.strides, self.dilations = (per_axis(values, rank) for values in (kernel, strides, dilations))
        self.pads = window_pads(auto_pad, pads, x.shape[2:], self.kernel, self.strides, self.dilations)
        self.reach = self._grown(x.shape[2:]) if ceil_mode else self.pads

    def _grown(self, sizes: Sequence[int]) -> list[tuple[int, int]]:
        grown = []
        for n, k, s, d, (begin, end) in zip(sizes, self.kernel, self.strides, self.dilations, self.pads, strict=True):
            room = n + begin + end - (k - 1) * d - 1
            count = -(-room // s) + 1
            if (count - 1) * s >= n + begin:  # a window must not start in the padding at the end
                count -= 1
            grown.append((begin, end + max((count - 1) * s - room, 0)))
        return grown

    def reduce(self, x: Tensor, start: Tensor, combine: Callable[..., Any], pads: Sequence[tuple[int, int]]) -> Tensor:
        return lax.reduce_window(
            x, start, combine, (1, 1, *self.kernel), (1, 1, *self.strides), [(0, 0), (0, 0), *pads],
            window_dilation=(1, 1, *self.dilations),
        )  # fmt: skip

    def sums(self, x: Tensor) -> Tensor:
        return self.reduce(x, np.zeros((), x.dtype), lax.add, self.reach)

    def counts(self, sizes: Sequence[int], include_pads: bool) -> Tensor:
        """Elements under each window, [1, 1, o...]."""
        ones = jnp.ones((1, 1, *sizes), jnp.float32)
        pads = self.reach
        if include_pads:
            ones = jnp.pad(ones, [(0, 0), (0, 0), *self.pads], constant_values=1)
            pads = [(0, all_ - own) for (_, all_), (_, own) in zip(self.reach, self.pads, strict=True)]
        return self.reduce(ones, np.zeros((), np.float32), lax.add, pads)


@lowering("MaxPool")
def max_pool(
    x: Tensor, *, context: Context, kernel_shape: Sequence[int], auto_pad: str = "NOTSET", ceil_mode: int = 0,
    dilations: Sequence[int] | None = None, pads: Sequence[int] | None = None, storage_order: int = 0,
    strides: Sequence[int] | None = None,
) -> tuple[Tensor, ...]:  # fmt: skip
    """The values and, if used, their indices in the whole of x, in row-major order or, with `storage_order` 1, in
    column-major order of the spatial axes."""
    windows = _Windows(x, kernel_shape, strides, dilations, auto_pad, pads, ceil_mode)
    lowest = np.asarray(-np.inf if jnp.issubdtype(x.dtype, jnp.floating) else np.iinfo(x.dtype).min, x.dtype)
    values = windows.reduce(x, lowest, lax.max, windows.reach)
    return (values, _places(x, windows, lowest, storage_order)) if context.wants(1) else (values,)


def _places(x: Tensor, windows: _Windows, lowest: npt.NDArray[np.generic], storage_order: int) -> Tensor:
    """The index of the first largest element under each window."""
    numbers = np.arange(x.size, dtype=np.int32).reshape(x.shape)
    none = np.int32(x.size)

    def larger(one: Any, other: Any) -> Any:
        ours = (one[0] > other[0]) | ((one[0] == other[0]) & (one[1] <= other[1]))
        return tuple(jnp.where(ours, a, b) for a, b in zip(one, other, strict=True))

    found = windows.reduce((lax.stop_gradient(x), numbers), (lowest, none), larger, windows.reach)[1]
    if storage_order:
        *lead, rows, columns = x.shape
        found = jnp.asarray(np.arange(x.size).reshape(*lead, columns, rows).swapaxes(-1, -2).reshape(-1))[found]
    return found.astype(canonical_dtype(np.int64))


@lowering("MaxUnpool")
def max_unpool(
    x: Tensor, places: Tensor, output_shape: Tensor | None = None, *, kernel_shape: Sequence[int],
    pads: Sequence[int] | None = None, strides: Sequence[int] | None = None,
) -> Tensor:  # fmt: skip
    """Every value at its original index (see MaxPool), zeros elsewhere; a larger `output_shape` is filled with
    zeros."""
    rank = x.ndim - 2
    ends = window_pads("NOTSET", pads, x.shape[2:], kernel_shape, (1,) * rank, (1,) * rank)
    sizes = zip(x.shape[2:], per_axis(strides, rank), kernel_shape, ends, strict=True)
    counted = (*x.shape[:2], *((n - 1) * s + k - begin - end for n, s, k, (begin, end) in sizes))
    shape = counted if output_shape is None else static_ints(output_shape, "the output's shape")
    return jnp.zeros(shape, x.dtype).at[jnp.unravel_index(places.reshape(-1), counted)].set(x.reshape(-1))


@lowering("AveragePool")
def average_pool(
    x: Tensor, *, kernel_shape: Sequence[int], auto_pad: str = "NOTSET", ceil_mode: int = 0,
    count_include_pad: int = 0, dilations: Sequence[int] | None = None, pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Tensor:  # fmt: skip
    windows = _Windows(x, kernel_shape, strides, dilations, auto_pad, pads, ceil_mode)
    counts = windows.counts(x.shape[2:], bool(count_include_pad))
    return (windows.sums(x) / counts).astype(x.dtype)


@lowering("LpPool")
def lp_pool(
    x: Tensor, *, kernel_shape: Sequence[int], auto_pad: str = "NOTSET", ceil_mode: int = 0,
    dilations: Sequence[int] | None = None, p: int = 2, pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Tensor:  # fmt: skip
    windows = _Windows(x, kernel_shape, strides, dilations, auto_pad, pads, ceil_mode)
    return windows.sums(jnp.abs(x) ** p) ** (1 / p)


def _positions(x: Tensor) -> tuple[int, ...]:
    return tuple(range(2, x.ndim))


@lowering("GlobalAveragePool")
def global_average_pool(x: Tensor) -> Tensor:
    return jnp.mean(x, axis=_positions(x), keepdims=True)


@lowering("GlobalMaxPool")
def global_max_pool(x: Tensor) -> Tensor:
    return jnp.max(x, axis=_positions(x), keepdims=True)


@lowering("GlobalLpPool")
def global_lp_pool(x: Tensor, *, p: int = 2) -> Tensor:
    return jnp.sum(jnp.abs(x) ** p, axis=_positions(x), keepdims=True) ** (1 / p)
