"""Convolutions, transposed convolutions, and Col2Im."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from lite_runtime.errors import UnsupportedOpError
from lite_runtime.graph import Array
from lite_runtime.reference.activation import activate
from lite_runtime.reference.movement import to_channels_first, to_channels_last
from lite_runtime.reference.registry import define
from lite_runtime.reference.support import in_float32, integers, require
from lite_runtime.reference.windows import Window, resolve

__all__ = ["convolve", "spread"]


def convolve(x: Array, w: Array, window: Window, group: int) -> Array:
    """x (n, c, space…), w (m, c / group, kernel…) -> (n, m, out…), in the type of x."""
    n, c = x.shape[:2]
    m = w.shape[0]
    require(c == w.shape[1] * group, f"expected {w.shape[1] * group} channels for W {w.shape}, group {group}, got {c}")
    require(m % group == 0, f"expected output channels divisible by group {group}, got {m}")
    padded = window.pad(x, 0)
    positions = prod(window.out)
    y = np.zeros((n, group, m // group, positions), x.dtype)
    for place, cut in window.taps():
        met = padded[cut].reshape(n, group, c // group, positions)
        taps = w[place].reshape(group, m // group, c // group)
        y += taps * met if c == group else taps @ met
    return y.reshape(n, m, *window.out)


def _per_channel(b: Array, rank: int) -> Array:
    return b.reshape(1, -1, *(1,) * (rank - 2))


def _check_rank(x: Array, w: Array, kernel_shape: Sequence[int] | None) -> None:
    require(x.ndim == w.ndim and x.ndim >= 3, f"expected X and W of one rank, at least 3, got {x.shape} and {w.shape}")
    given = not kernel_shape or tuple(kernel_shape) == w.shape[2:]
    require(given, f"expected kernel_shape {w.shape[2:]} as W has it, got {kernel_shape}")


@define("Conv")
@in_float32
def _conv(
    x: Array,
    w: Array,
    b: Array | None = None,
    residual: Array | None = None,
    /,
    auto_pad: str = "NOTSET",
    dilations: Sequence[int] | None = None,
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
    layout: str = "NCHW",
    activation: str = "",
    **parameters: Any,
) -> Array:
    """act(conv(X, W) + B + R). X, R and the result are channels-last if layout is NHWC; W never is."""
    x = to_channels_first(x, layout)
    _check_rank(x, w, kernel_shape)
    window = resolve(x.shape[2:], w.shape[2:], strides=strides, dilations=dilations, pads=pads, auto_pad=auto_pad)
    y = convolve(x, w, window, group)
    if b is not None:
        require(b.shape == (w.shape[0],), f"expected B of shape ({w.shape[0]},), got {b.shape}")
        y = y + _per_channel(b, y.ndim)
    if residual is not None:
        residual = to_channels_first(residual, layout)
        require(residual.shape == y.shape, f"expected R of the result's shape {y.shape}, got {residual.shape}")
        y = y + residual
    return to_channels_last(activate(y, activation, **parameters), layout)


@define("ConvTranspose")
@in_float32
def _conv_transpose(
    x: Array,
    w: Array,
    b: Array | None = None,
    /,
    layout: str = "NCHW",
    activation: str = "",
    auto_pad: str = "NOTSET",
    dilations: Sequence[int] | None = None,
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,
    output_padding: Sequence[int] | None = None,
    output_shape: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
    **parameters: Any,
) -> Array:
    """act(spread(X, W) + B). X and the result are channels-last if layout is NHWC; W never is."""
    y = spread(
        to_channels_first(x, layout),
        w,
        auto_pad=auto_pad,
        dilations=dilations,
        group=group,
        kernel_shape=kernel_shape,
        output_padding=output_padding,
        output_shape=output_shape,
        pads=pads,
        strides=strides,
    )
    if b is not None:
        require(b.shape == y.shape[1:2], f"expected B of shape {y.shape[1:2]}, got {b.shape}")
        y = y + _per_channel(b, y.ndim)
    return to_channels_last(activate(y, activation, **parameters), layout)


def spread(
    x: Array,
    w: Array,
    *,
    auto_pad: str = "NOTSET",
    dilations: Sequence[int] | None = None,
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,
    output_padding: Sequence[int] | None = None,
    output_shape: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Array:
    """x (n, channels, space…), w (channels, m / group, kernel…) -> (n, m, out…), in the type of x: every element adds
    its multiple of the kernel to the result."""
    _check_rank(x, w, kernel_shape)
    rank, kernel = x.ndim - 2, w.shape[2:]
    strides, dilations = tuple(strides or (1,) * rank), tuple(dilations or (1,) * rank)
    extra = tuple(output_padding or (0,) * rank)
    full = tuple(
        s * (n - 1) + (k - 1) * d + 1 + e
        for s, n, k, d, e in zip(strides, x.shape[2:], kernel, dilations, extra, strict=True)
    )
    begin, out = _crop(full, x.shape[2:], strides, tuple(pads or (0,) * (2 * rank)), auto_pad, output_shape or None)
    n, c, m = x.shape[0], x.shape[1], w.shape[1]
    require(c == w.shape[0], f"expected {w.shape[0]} channels as W has, got {c}")
    require(c % group == 0, f"expected channels divisible by group {group}, got {c}")
    canvas = np.zeros((n, group * m, *(max(f, b + o) for f, b, o in zip(full, begin, out, strict=True))), x.dtype)
    window = Window(kernel, strides, dilations, (0,) * rank, (0,) * rank, x.shape[2:])
    pixels = x.reshape(n, group, c // group, prod(x.shape[2:]))
    for place, cut in window.taps():
        taps = w[place].reshape(group, c // group, m).swapaxes(1, 2)
        canvas[cut] += (taps @ pixels).reshape(n, group * m, *x.shape[2:])
    inner: Any = (..., *(slice(b, b + o) for b, o in zip(begin, out, strict=True)))
    return np.asarray(canvas[inner])


def _crop(
    full: tuple[int, ...],
    space: Sequence[int],
    strides: Sequence[int],
    pads: Sequence[int],
    auto_pad: str,
    output_shape: Sequence[int] | None,
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(start of the result in the full canvas, its sizes)."""
    rank = len(full)
    if auto_pad in ("SAME_UPPER", "SAME_LOWER") and output_shape is None:
        output_shape = [n * s for n, s in zip(space, strides, strict=True)]
    if output_shape is not None:
        out = tuple(output_shape)[-rank:]
        total = [max(0, f - o) for f, o in zip(full, out, strict=True)]
        lower = auto_pad != "SAME_UPPER"  # an odd element is added in front unless SAME_UPPER
        return tuple(t - t // 2 if lower else t // 2 for t in total), out
    if auto_pad == "VALID":
        return (0,) * rank, full
    require(len(pads) == 2 * rank, f"expected pads of {2 * rank} numbers, got {pads}")
    out = tuple(f - b - e for f, b, e in zip(full, pads[:rank], pads[rank:], strict=True))
    require(min(out, default=0) >= 0, f"expected pads within the canvas {full}, got {pads}")
    return tuple(pads[:rank]), out


@define("CausalConvWithState")
@in_float32
def _causal_conv(
    x: Array, w: Array, bias: Array | None = None, past: Array | None = None, /, activation: str = "none"
) -> tuple[Array, Array]:
    """Depthwise convolution over time, continuing `past` (batch, channels, k - 1); returns the last k - 1 steps as the
    new state."""
    require(x.ndim == 3 and w.ndim == 3, f"expected X and W of rank 3, got {x.shape} and {w.shape}")
    k = w.shape[2]
    if past is None:
        past = np.zeros((*x.shape[:2], k - 1), x.dtype)
    seen = np.concatenate([past, x], axis=2)
    y = convolve(seen, w, resolve(seen.shape[2:], (k,)), x.shape[1])
    y = y if bias is None else y + _per_channel(bias, 3)
    names = {"none": "", "silu": "Silu", "swish": "Silu"}
    if activation not in names:
        raise UnsupportedOpError(f"expected activation none, silu or swish, got {activation!r}")
    return activate(y, names[activation]), seen[:, :, seen.shape[2] - (k - 1) :]


@define("DeformConv")
@in_float32
def _deform_conv(
    x: Array,
    w: Array,
    offset: Array,
    b: Array | None = None,
    mask: Array | None = None,
    /,
    dilations: Sequence[int] | None = None,
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,
    offset_group: int = 1,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Array:
    """A 2-D convolution whose taps read, by bilinear interpolation, at positions displaced by `offset`
    (n, groups * taps * 2, out…)."""
    _check_rank(x, w, kernel_shape)
    require(x.ndim == 4, f"expected an image batch of rank 4, got shape {x.shape}")
    window = resolve(x.shape[2:], w.shape[2:], strides=strides, dilations=dilations, pads=pads)
    (n, c), m, (oh, ow) = x.shape[:2], w.shape[0], window.out
    require(c % offset_group == 0, f"expected channels divisible by offset_group {offset_group}, got {c}")
    offset = offset.reshape(n, offset_group, *window.kernel, 2, oh, ow)
    weight = np.ones((n, offset_group, *window.kernel, oh, ow), x.dtype) if mask is None else mask
    weight = weight.reshape(n, offset_group, *window.kernel, oh, ow)
    rows = np.arange(oh)[:, None] * window.strides[0] - window.begin[0]
    columns = np.arange(ow)[None, :] * window.strides[1] - window.begin[1]
    split = x.reshape(n, offset_group, c // offset_group, *x.shape[2:])
    y = np.zeros((n, group, m // group, oh * ow), x.dtype)
    for i, j in np.ndindex(*window.kernel):
        moved = offset[:, :, i, j]
        at = (rows + i * window.dilations[0] + moved[:, :, 0], columns + j * window.dilations[1] + moved[:, :, 1])
        met = _bilinear(split, *at) * weight[:, :, i, j][:, :, None]
        y += w[:, :, i, j].reshape(group, m // group, c // group) @ met.reshape(n, group, c // group, oh * ow)
    y = y.reshape(n, m, oh, ow)
    return y if b is None else y + _per_channel(b, 4)


def _bilinear(x: Array, row: Array, column: Array) -> Array:
    """x (n, g, c, h, w) read at fractional positions (n, g, oh, ow), zero outside -> (n, g, c, oh, ow)."""
    h, w = x.shape[-2:]
    top, left = np.floor(row), np.floor(column)
    total = np.zeros((*x.shape[:3], *row.shape[2:]), x.dtype)
    batch, groups = np.ogrid[: x.shape[0], : x.shape[1]]
    pixels = np.moveaxis(x, 2, -1)  # (n, g, h, w, c)
    for down, right in np.ndindex(2, 2):
        r, c = (top + down).astype(np.int64), (left + right).astype(np.int64)
        share = (1 - np.abs(row - r)) * (1 - np.abs(column - c)) * ((r >= 0) & (r < h) & (c >= 0) & (c < w))
        read = pixels[batch[..., None, None], groups[..., None, None], np.clip(r, 0, h - 1), np.clip(c, 0, w - 1)]
        total += np.moveaxis(read, -1, 2) * share[:, :, None].astype(x.dtype)
    return total


@define("Col2Im")
@in_float32
def _col2im(
    columns: Array,
    image_shape: Array,
    block_shape: Array,
    /,
    dilations: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Array:
    """columns (n, c * taps, positions) added at the positions from which im2col would have read them."""
    space, block = integers(image_shape), integers(block_shape)
    window = resolve(space, block, strides=strides, dilations=dilations, pads=pads)
    n, taps = columns.shape[0], prod(block)
    expected = (n, columns.shape[1] // taps * taps, prod(window.out))
    require(columns.shape == expected, f"expected columns of shape {expected}, got {columns.shape}")
    split = columns.reshape(n, -1, taps, *window.out)
    canvas = window.pad(np.zeros((n, split.shape[1], *space), columns.dtype), 0)
    for i, (_, cut) in enumerate(window.taps()):
        canvas[cut] += split[:, :, i]
    inner: Any = (..., *(slice(b, b + s) for b, s in zip(window.begin, space, strict=True)))
    return np.asarray(canvas[inner])
