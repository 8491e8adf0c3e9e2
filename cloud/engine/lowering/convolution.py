"""Convolution and its transpose, 1-D to 3-D, channels first, in groups."""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax

from cloud._jax import shaped
from cloud.engine.lowering.registry import Tensor, lowering, static_ints
from cloud.engine.lowering.spatial import per_axis, window_pads
from cloud.errors import EngineError

__all__: list[str] = []

_LAYOUTS = {1: ("NCH", "OIH", "NCH"), 2: ("NCHW", "OIHW", "NCHW"), 3: ("NCDHW", "OIDHW", "NCDHW")}


def _layout(x: Tensor, w: Tensor) -> tuple[str, str, str]:
    if x.ndim != w.ndim or x.ndim - 2 not in _LAYOUTS:
        raise EngineError(f"expected an operand and a kernel of the same rank, 3 to 5, got {x.shape} and {w.shape}")
    return _LAYOUTS[x.ndim - 2]


def _add_bias(y: Tensor, b: Tensor | None) -> Tensor:
    return y if b is None else y + jnp.reshape(b, (1, -1) + (1,) * (y.ndim - 2))


@lowering("Conv")
def conv(
    x: Tensor, w: Tensor, b: Tensor | None = None,
    *, auto_pad: str = "NOTSET", dilations: Sequence[int] | None = None, group: int = 1,
    kernel_shape: Sequence[int] | None = None, pads: Sequence[int] | None = None, strides: Sequence[int] | None = None,
) -> Tensor:  # fmt: skip
    """x [N, C, d...], w [M, C/group, k...], b [M]."""
    layout = _layout(x, w)
    if x.shape[1] != w.shape[1] * group:
        raise EngineError(f"expected {w.shape[1] * group} channels (kernel {w.shape}, group {group}), got {x.shape[1]}")
    rank = x.ndim - 2
    strides, dilations = per_axis(strides, rank), per_axis(dilations, rank)
    padding = window_pads(auto_pad, pads, x.shape[2:], w.shape[2:], strides, dilations)
    y = lax.conv_general_dilated(
        x, w, strides, padding, rhs_dilation=dilations, dimension_numbers=layout, feature_group_count=group
    )
    return _add_bias(y, b)


@lowering("ConvTranspose")
def conv_transpose(
    x: Tensor, w: Tensor, b: Tensor | None = None,
    *, auto_pad: str = "NOTSET", dilations: Sequence[int] | None = None, group: int = 1,
    kernel_shape: Sequence[int] | None = None, output_padding: Sequence[int] | None = None,
    output_shape: Sequence[int] | None = None, pads: Sequence[int] | None = None, strides: Sequence[int] | None = None,
) -> Tensor:  # fmt: skip
    """x [N, C, d...], w [C, M/group, k...]: a convolution of x, dilated by the strides, with the kernel flipped."""
    layout = _layout(x, w)
    rank = x.ndim - 2
    strides, dilations = per_axis(strides, rank), per_axis(dilations, rank)
    extra = per_axis(output_padding, rank, 0)
    reach = [(k - 1) * d for k, d in zip(w.shape[2:], dilations, strict=True)]
    full = [(n - 1) * s + r + 1 + e for n, s, r, e in zip(x.shape[2:], strides, reach, extra, strict=True)]
    wanted = output_shape[-rank:] if output_shape else None
    if wanted is None and auto_pad.startswith("SAME"):
        wanted = [n * s for n, s in zip(x.shape[2:], strides, strict=True)]
    if wanted is None:
        removed = window_pads(auto_pad, pads, x.shape[2:], w.shape[2:], strides, dilations)
    else:
        totals = [max(f - o, 0) for f, o in zip(full, wanted, strict=True)]
        extra = tuple(e + max(o - f, 0) for e, f, o in zip(extra, full, wanted, strict=True))
        halves = [(t // 2, t - t // 2) for t in totals]
        removed = halves if auto_pad == "SAME_UPPER" else [(end, begin) for begin, end in halves]
    padding = [(r - begin, r - end + e) for r, (begin, end), e in zip(reach, removed, extra, strict=True)]

    channels, per_group = w.shape[0] // group, w.shape[1]
    turned = jnp.flip(w, axis=tuple(range(2, w.ndim))).reshape(group, channels, per_group, *w.shape[2:])
    turned = jnp.swapaxes(turned, 1, 2).reshape(group * per_group, channels, *w.shape[2:])
    y = lax.conv_general_dilated(
        x, turned, (1,) * rank, padding, lhs_dilation=strides, rhs_dilation=dilations,
        dimension_numbers=layout, feature_group_count=group,
    )  # fmt: skip
    return _add_bias(y, b)


@lowering("Col2Im")
def col2im(
    columns: Tensor, image_shape: Tensor, block_shape: Tensor, *, dilations: Sequence[int] | None = None,
    pads: Sequence[int] | None = None, strides: Sequence[int] | None = None,
) -> Tensor:  # fmt: skip
    """columns [N, C * taps, positions] added at the positions an im2col read them from: its transpose."""
    space, block = static_ints(image_shape, "the image's shape"), static_ints(block_shape, "the block's shape")
    rank = len(space)
    strides, dilations = per_axis(strides, rank), per_axis(dilations, rank)
    padding = window_pads("NOTSET", pads, space, block, strides, dilations)

    def im2col(image: Tensor) -> Tensor:
        exact = lax.Precision.HIGHEST
        return lax.conv_general_dilated_patches(
            image, block, strides, padding, rhs_dilation=dilations, precision=exact
        )

    image = shaped((columns.shape[0], columns.shape[1] // math.prod(block), *space), columns.dtype)
    (y,) = jax.linear_transpose(im2col, image)(jnp.reshape(columns, jax.eval_shape(im2col, image).shape))
    return y
