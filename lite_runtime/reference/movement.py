"""Operators that move, copy or create elements without arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, prod
from typing import Any

import numpy as np

from lite_runtime.errors import UnsupportedOpError
from lite_runtime.graph import Array
from lite_runtime.reference.registry import Context, define
from lite_runtime.reference.support import (
    axes_of,
    axis_of,
    dtype_of,
    integers,
    optional_scalar,
    require,
    scalar,
    widen,
)

__all__ = ["to_channels_first", "to_channels_last"]


def to_channels_first(x: Array, layout: str) -> Array:
    """`x` as (batch, channels, space…); it is (batch, space…, channels) if layout is NHWC."""
    if layout not in ("NCHW", "NHWC"):
        raise UnsupportedOpError(f"expected layout NCHW or NHWC, got {layout!r}")
    require(x.ndim >= 2, f"expected at least a batch and a channel axis, got shape {x.shape}")
    return np.moveaxis(x, -1, 1) if layout == "NHWC" else x


def to_channels_last(y: Array, layout: str) -> Array:
    """The inverse: (batch, channels, space…) to `layout`."""
    return np.moveaxis(y, 1, -1) if layout == "NHWC" else y


@define("Identity")
def _identity(x: Any, /) -> Any:
    return x


@define("Constant")
def _constant(
    value: Array | None = None,
    value_float: float | None = None,
    value_floats: Sequence[float] | None = None,
    value_int: int | None = None,
    value_ints: Sequence[int] | None = None,
    value_string: str | None = None,
    value_strings: Sequence[str] | None = None,
) -> Array:
    if value is not None:
        return np.asarray(value)
    choices = (
        (value_float, np.float32),
        (value_floats, np.float32),
        (value_int, np.int64),
        (value_ints, np.int64),
        (value_string, object),
        (value_strings, object),
    )
    for given, dtype in choices:
        if given is not None:
            return np.array(given, dtype)
    raise UnsupportedOpError("expected one of value, value_float(s), value_int(s), value_string(s), got none")


@define("ConstantOfShape")
def _constant_of_shape(shape: Array, /, value: Array | None = None) -> Array:
    value = np.zeros(1, np.float32) if value is None else np.asarray(value)
    return np.full(integers(shape), scalar(value, "value"), value.dtype)


@define("EyeLike")
def _eye_like(x: Array, /, dtype: int | str | None = None, k: int = 0) -> Array:
    require(x.ndim == 2, f"expected a matrix, got shape {x.shape}")
    return np.eye(x.shape[0], x.shape[1], k).astype(x.dtype if dtype is None else dtype_of(dtype))


@define("Range")
def _range(start: Array, limit: Array, delta: Array, /, stash_type: int | str = 1) -> Array:
    """start, start + delta, … below limit; narrow floats are computed in `stash_type`."""
    dtype = start.dtype
    first, last, step = (scalar(widen(v), "a bound") for v in (start, limit, delta))
    require(step != 0, "expected a delta other than 0")
    if dtype.kind in "iu":
        return np.arange(int(first), int(last), int(step), dtype=dtype)
    count = max(0, ceil((float(last) - float(first)) / float(step)))
    return np.asarray((first + np.arange(count).astype(first.dtype) * step).astype(dtype))


@define("Shape")
def _shape(x: Array, /, start: int = 0, end: int | None = None) -> Array:
    return np.array(x.shape[slice(start, end)], np.int64)


@define("Size")
def _size(x: Array, /) -> Array:
    return np.array(x.size, np.int64)


@define("Reshape")
def _reshape(x: Array, shape: Array, /, allowzero: int = 0) -> Array:
    """A 0 copies the input's size (unless allowzero); one -1 takes the remaining elements."""
    wanted = list(integers(shape))
    for i, n in enumerate(wanted):
        if n == 0 and not allowzero:
            require(i < x.ndim, f"expected an input axis {i} for the 0 in shape {wanted}, got rank {x.ndim}")
            wanted[i] = x.shape[i]
    if wanted.count(-1) == 1 and 0 in wanted:  # NumPy cannot infer the -1
        rest = prod(n for n in wanted if n != -1)
        require(rest > 0, f"expected a shape whose -1 can be inferred, got {wanted}")
    known = prod(n for n in wanted if n != -1)
    fits = x.size == known if -1 not in wanted else known > 0 and x.size % known == 0
    require(fits and wanted.count(-1) <= 1, f"expected a shape of {x.size} elements, got {wanted}")
    return x.reshape(wanted)


@define("Flatten")
def _flatten(x: Array, /, axis: int = 1) -> Array:
    require(-x.ndim <= axis <= x.ndim, f"expected axis in [{-x.ndim}, {x.ndim}], got {axis}")
    axis = axis + x.ndim if axis < 0 else axis
    return x.reshape(prod(x.shape[:axis]), prod(x.shape[axis:]))


@define("Squeeze")
def _squeeze(x: Array, axes: Array | None = None, /) -> Array:
    drop = [i for i, n in enumerate(x.shape) if n == 1] if axes is None else axes_of(axes, x.ndim)
    require(all(x.shape[i] == 1 for i in drop), f"expected axes of size 1 at {list(drop)}, got shape {x.shape}")
    return x.reshape([n for i, n in enumerate(x.shape) if i not in drop])


@define("Unsqueeze")
def _unsqueeze(x: Array, axes: Array, /) -> Array:
    return np.expand_dims(x, axes_of(axes, x.ndim + np.size(axes)))


@define("Transpose")
def _transpose(x: Array, /, perm: Sequence[int] | None = None) -> Array:
    perm = tuple(range(x.ndim))[::-1] if perm is None else tuple(perm)
    require(sorted(perm) == list(range(x.ndim)), f"expected a permutation of {x.ndim} axes, got {perm}")
    return x.transpose(perm)


@define("Concat")
def _concat(*inputs: Array, axis: int) -> Array:
    require(len(inputs) > 0, "expected at least one input, got none")
    axis = axis_of(axis, inputs[0].ndim)
    shapes = [x.shape for x in inputs]
    rests = {(*s[:axis], *s[axis + 1 :]) for s in shapes}
    require(len(rests) == 1, f"expected shapes that differ at axis {axis} only, got {shapes}")
    return np.concatenate(inputs, axis)


@define("Split")
def _split(
    x: Array, split: Array | None = None, /, axis: int = 0, num_outputs: int | None = None, *, context: Context
) -> tuple[Array, ...]:
    axis = axis_of(axis, x.ndim)
    size = x.shape[axis]
    if split is None:
        parts = num_outputs or len(context.outputs)
        chunk = -(-size // parts)
        sizes = [max(0, min(chunk, size - i * chunk)) for i in range(parts)]
    else:
        sizes = list(integers(split))
    require(sum(sizes) == size, f"expected sizes that add up to {size} along axis {axis}, got {sizes}")
    return tuple(np.split(x, np.cumsum(sizes)[:-1], axis))


@define("Slice")
def _slice(x: Array, starts: Array, ends: Array, axes: Array | None = None, steps: Array | None = None, /) -> Array:
    where = axes_of(np.arange(np.size(starts)) if axes is None else axes, x.ndim)
    stride = (1,) * len(where) if steps is None else integers(steps)
    given = (integers(starts), integers(ends), stride)
    require(all(len(g) == len(where) for g in given), f"expected {len(where)} starts, ends and steps, got {given}")
    require(0 not in stride, f"expected steps other than 0, got {stride}")
    cut = [slice(None)] * x.ndim
    for axis, start, end, step in zip(where, *given, strict=True):
        cut[axis] = _bounds(start, end, step, x.shape[axis])
    return x[tuple(cut)]


def _bounds(start: int, end: int, step: int, size: int) -> slice:
    """ONNX's clamping as a Python slice: for a negative step, the end before the first element is written as None."""
    start, end = (v + size if v < 0 else v for v in (start, end))
    if step > 0:
        return slice(min(max(start, 0), size), min(max(end, 0), size), step)
    start, end = min(max(start, 0), size - 1), min(max(end, -1), size - 1)
    return slice(start, None if end < 0 else end, step)


@define("Expand")
def _expand(x: Array, shape: Array, /) -> Array:
    return np.broadcast_to(x, np.broadcast_shapes(x.shape, integers(shape))).copy()


@define("Tile")
def _tile(x: Array, repeats: Array, /) -> Array:
    require(np.size(repeats) == x.ndim, f"expected {x.ndim} repeats, got {np.size(repeats)}")
    return np.tile(x, integers(repeats))


@define("Pad")
def _pad(
    x: Array, pads: Array, constant_value: Array | None = None, axes: Array | None = None, /, mode: str = "constant"
) -> Array:
    """Pads are (begins…, ends…) over `axes`; negative pads remove elements."""
    where, amounts = axes_of(axes, x.ndim), integers(pads)
    require(len(amounts) == 2 * len(where), f"expected {2 * len(where)} pads, got {len(amounts)}")
    begin, end = [0] * x.ndim, [0] * x.ndim
    for i, axis in enumerate(where):
        begin[axis], end[axis] = amounts[i], amounts[i + len(where)]
    kept = tuple(slice(max(0, -b), n - max(0, -e)) for b, e, n in zip(begin, end, x.shape, strict=True))
    widths = [(max(0, b), max(0, e)) for b, e in zip(begin, end, strict=True)]
    if mode == "constant":
        fill = optional_scalar(constant_value, "" if x.dtype == object else x.dtype.type(0), "constant_value")
        out = np.full([n + b + e for n, b, e in zip(x.shape, begin, end, strict=True)], fill, x.dtype)
        inner = tuple(slice(b, b + n) for (b, _), n in zip(widths, x[kept].shape, strict=True))
        out[inner] = x[kept]
        return out
    if mode not in ("reflect", "edge", "wrap"):
        raise UnsupportedOpError(f"expected mode constant, reflect, edge or wrap, got {mode!r}")
    return np.pad(x[kept], widths, mode=mode)  # type: ignore[call-overload,no-any-return]


@define("CenterCropPad")
def _center_crop_pad(x: Array, shape: Array, /, axes: Sequence[int] | None = None) -> Array:
    where = axes_of(axes, x.ndim)
    target = list(x.shape)
    for axis, n in zip(where, integers(shape), strict=True):
        target[axis] = n
    out = np.zeros(target, x.dtype)
    source, sink = [], []
    for n, m in zip(x.shape, target, strict=True):
        size, crop, pad = min(n, m), max(0, n - m) // 2, max(0, m - n) // 2
        source.append(slice(crop, crop + size))
        sink.append(slice(pad, pad + size))
    out[tuple(sink)] = x[tuple(source)]
    return out


@define("DepthToSpace")
def _depth_to_space(x: Array, /, blocksize: int, mode: str = "DCR", layout: str = "NCHW") -> Array:
    x = to_channels_first(x, layout)
    _need_image(x)
    n, c, h, w = x.shape
    b = blocksize
    require(c % (b * b) == 0, f"expected channels divisible by {b * b}, got {c}")
    if _is_dcr(mode):
        y = x.reshape(n, b, b, c // (b * b), h, w).transpose(0, 3, 4, 1, 5, 2)
    else:
        y = x.reshape(n, c // (b * b), b, b, h, w).transpose(0, 1, 4, 2, 5, 3)
    return to_channels_last(y.reshape(n, c // (b * b), h * b, w * b), layout)


@define("SpaceToDepth")
def _space_to_depth(x: Array, /, blocksize: int, mode: str = "DCR", layout: str = "NCHW") -> Array:
    x = to_channels_first(x, layout)
    _need_image(x)
    n, c, h, w = x.shape
    b = blocksize
    require(h % b == 0 and w % b == 0, f"expected height and width divisible by {b}, got {h} and {w}")
    split = x.reshape(n, c, h // b, b, w // b, b)
    y = split.transpose((0, 3, 5, 1, 2, 4) if _is_dcr(mode) else (0, 1, 3, 5, 2, 4))
    return to_channels_last(y.reshape(n, c * b * b, h // b, w // b), layout)


def _need_image(x: Array) -> None:
    require(x.ndim == 4, f"expected an image batch of rank 4, got shape {x.shape}")


def _is_dcr(mode: str) -> bool:
    if mode not in ("DCR", "CRD"):
        raise UnsupportedOpError(f"expected mode DCR or CRD, got {mode!r}")
    return mode == "DCR"


@define("ReverseSequence")
def _reverse_sequence(x: Array, sequence_lens: Array, /, batch_axis: int = 1, time_axis: int = 0) -> Array:
    require({batch_axis, time_axis} == {0, 1}, f"expected axes 0 and 1, got {batch_axis} and {time_axis}")
    out = np.moveaxis(x, batch_axis, 0).copy()  # (batch, time, …)
    require(np.size(sequence_lens) == len(out), f"expected {len(out)} lengths, got {np.size(sequence_lens)}")
    for row, length in zip(out, integers(sequence_lens), strict=True):
        row[:length] = row[:length][::-1].copy()
    return np.moveaxis(out, 0, batch_axis)


@define("Trilu")
def _trilu(x: Array, k: Array | None = None, /, upper: int = 1) -> Array:
    require(x.ndim >= 2, f"expected at least a matrix, got shape {x.shape}")
    diagonal = int(optional_scalar(k, 0, "k"))
    rows, columns = np.ogrid[: x.shape[-2], : x.shape[-1]]
    keep = columns - rows >= diagonal if upper else columns - rows <= diagonal
    return np.where(keep, x, x.dtype.type(0)).astype(x.dtype)
