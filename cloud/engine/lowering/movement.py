"""Operators that reshape, join, cut and repeat. For static operands they use NumPy, so shape arithmetic is constant."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from cloud.engine.lowering.registry import (
    Context,
    Tensor,
    lowering,
    namespace,
    normalise_axes,
    static_array,
    static_int,
    static_ints,
)
from cloud.errors import EngineError

__all__: list[str] = []


@lowering("Constant")
def constant(**value: Any) -> npt.NDArray[Any]:
    """A constant from one of the attributes value, value_float(s), value_int(s)."""
    ((name, held),) = value.items()
    if name == "value":
        return np.asarray(held)
    dtype = {"value_float": np.float32, "value_floats": np.float32, "value_int": np.int64, "value_ints": np.int64}
    if name not in dtype:
        raise EngineError(f"a Constant's {name} is not a tensor of numbers")
    return np.asarray(held, dtype[name])


@lowering("ConstantOfShape")
def constant_of_shape(shape: Tensor, *, value: npt.NDArray[Any] | None = None) -> npt.NDArray[Any]:
    fill = np.zeros((), np.float32) if value is None else value.reshape(())
    return np.full(static_ints(shape, "the shape"), fill)


@lowering("Shape")
def shape_of(x: Tensor, *, start: int = 0, end: int | None = None) -> npt.NDArray[np.int64]:
    return np.array(x.shape[start:end], np.int64)


@lowering("Size")
def size_of(x: Tensor) -> npt.NDArray[np.int64]:
    return np.array(x.size, np.int64)


@lowering("Range")
def range_of(start: Tensor, limit: Tensor, delta: Tensor) -> Tensor:
    begin, end, by = (static_array(v, "a Range's bound").reshape(()) for v in (start, limit, delta))
    count = max(int(np.ceil((end - begin) / by)), 0)
    return (begin + np.arange(count) * by).astype(begin.dtype)


@lowering("Reshape")
def reshape(x: Tensor, shape: Tensor, *, allowzero: int = 0) -> Tensor:
    wanted = static_ints(shape, "the shape")
    if not allowzero:
        wanted = tuple(x.shape[i] if n == 0 else n for i, n in enumerate(wanted))
    return namespace(x).reshape(x, wanted)


@lowering("Flatten")
def flatten(x: Tensor, *, axis: int = 1) -> Tensor:
    axis = axis + x.ndim if axis < 0 else axis
    return namespace(x).reshape(x, (int(np.prod(x.shape[:axis])), int(np.prod(x.shape[axis:]))))


@lowering("Squeeze")
def squeeze(x: Tensor, axes: Tensor | None = None) -> Tensor:
    chosen = None if axes is None else normalise_axes(static_ints(axes, "axes"), x.ndim)
    return namespace(x).squeeze(x, axis=chosen)


@lowering("Unsqueeze")
def unsqueeze(x: Tensor, axes: Tensor) -> Tensor:
    return namespace(x).expand_dims(x, static_ints(axes, "axes"))


@lowering("Transpose")
def transpose(x: Tensor, *, perm: Sequence[int] | None = None) -> Tensor:
    return namespace(x).transpose(x, perm)


@lowering("Concat")
def concat(*xs: Tensor, axis: int) -> Tensor:
    return namespace(*xs).concatenate(xs, axis=axis)


@lowering("Split")
def split(
    x: Tensor, sizes: Tensor | None = None, *, context: Context, axis: int = 0, num_outputs: int | None = None
) -> tuple[Tensor, ...]:
    if sizes is not None:
        lengths = static_ints(sizes, "the split")
    else:
        count = num_outputs or len(context.outputs)
        each = -(-x.shape[axis] // count)
        lengths = (*(each,) * (count - 1), x.shape[axis] - each * (count - 1))
    if sum(lengths) != x.shape[axis]:
        raise EngineError(f"expected parts that sum to {x.shape[axis]}, got {lengths}")
    edges = np.cumsum((0, *lengths))
    before = (slice(None),) * (axis % x.ndim)
    return tuple(x[(*before, slice(int(a), int(b)))] for a, b in pairwise(edges))


@lowering("Slice")
def slice_of(
    x: Tensor, starts: Tensor, ends: Tensor, axes: Tensor | None = None, steps: Tensor | None = None
) -> Tensor:
    begin, end = static_ints(starts, "starts"), static_ints(ends, "ends")
    over = tuple(range(len(begin))) if axes is None else normalise_axes(static_ints(axes, "axes"), x.ndim)
    by = (1,) * len(begin) if steps is None else static_ints(steps, "steps")
    cuts = [slice(None)] * x.ndim
    for axis, first, last, step in zip(over, begin, end, by, strict=True):
        stop: int | None = last
        if step < 0 and last < -x.shape[axis]:  # before the first element: None in Python
            stop = None
        cuts[axis] = slice(first, stop, step)
    return x[tuple(cuts)]


@lowering("Pad")
def pad(
    x: Tensor, pads: Tensor, value: Tensor | None = None, axes: Tensor | None = None, *, mode: str = "constant"
) -> Tensor:
    """Padding; negative pads crop."""
    xp = namespace(x, value)
    flat = static_ints(pads, "pads")
    over = tuple(range(x.ndim)) if axes is None else normalise_axes(static_ints(axes, "axes"), x.ndim)
    widths = [(0, 0)] * x.ndim
    for i, axis in enumerate(over):
        widths[axis] = (flat[i], flat[i + len(over)])
    cuts = tuple(slice(max(-b, 0), n - max(-e, 0)) for (b, e), n in zip(widths, x.shape, strict=True))
    x = x[cuts]
    widths = [(max(b, 0), max(e, 0)) for b, e in widths]
    if mode == "constant":
        return xp.pad(x, widths, constant_values=0 if value is None else xp.reshape(value, ()))
    return xp.pad(x, widths, mode=mode)


@lowering("Tile")
def tile(x: Tensor, repeats: Tensor) -> Tensor:
    return namespace(x).tile(x, static_ints(repeats, "repeats"))


@lowering("Expand")
def expand(x: Tensor, shape: Tensor) -> Tensor:
    wanted = np.broadcast_shapes(x.shape, static_ints(shape, "the shape"))
    return namespace(x).broadcast_to(x, wanted)


@lowering("DepthToSpace")
def depth_to_space(x: Tensor, *, blocksize: int, mode: str = "DCR") -> Tensor:
    n, c, h, w = x.shape
    depth = c // blocksize**2
    if mode == "DCR":
        y = jnp.transpose(x.reshape(n, blocksize, blocksize, depth, h, w), (0, 3, 4, 1, 5, 2))
    else:
        y = jnp.transpose(x.reshape(n, depth, blocksize, blocksize, h, w), (0, 1, 4, 2, 5, 3))
    return y.reshape(n, depth, h * blocksize, w * blocksize)


@lowering("SpaceToDepth")
def space_to_depth(x: Tensor, *, blocksize: int, mode: str = "DCR") -> Tensor:
    n, c, h, w = x.shape
    y = x.reshape(n, c, h // blocksize, blocksize, w // blocksize, blocksize)
    order = (0, 3, 5, 1, 2, 4) if mode == "DCR" else (0, 1, 3, 5, 2, 4)
    return jnp.transpose(y, order).reshape(n, c * blocksize**2, h // blocksize, w // blocksize)


@lowering("Trilu")
def trilu(x: Tensor, k: Tensor | None = None, *, upper: int = 1) -> Tensor:
    offset = 0 if k is None else static_int(k, "k")
    xp = namespace(x)
    return xp.triu(x, offset) if upper else xp.tril(x, offset)


@lowering("EyeLike")
def eye_like(x: Tensor, *, dtype: int | None = None, k: int = 0) -> Tensor:
    rows, columns = x.shape
    return np.eye(rows, columns, k).astype(x.dtype if dtype is None else ir.DataType(dtype).numpy())


@lowering("CenterCropPad")
def center_crop_pad(x: Tensor, shape: Tensor, *, axes: Sequence[int] | None = None) -> Tensor:
    over = tuple(range(x.ndim)) if axes is None else normalise_axes(axes, x.ndim)
    widths, cuts = [(0, 0)] * x.ndim, [slice(None)] * x.ndim
    for axis, wanted in zip(over, static_ints(shape, "the shape"), strict=True):
        spare = wanted - x.shape[axis]
        if spare >= 0:
            widths[axis] = (spare // 2, spare - spare // 2)
        else:
            cuts[axis] = slice(-spare // 2, -spare // 2 + wanted)
    return namespace(x).pad(x[tuple(cuts)], widths)
