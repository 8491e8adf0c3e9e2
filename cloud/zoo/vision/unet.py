"""U-Net."""

from __future__ import annotations

import onnx_ir as ir

from cloud.zoo.build import BATCH, Builder, dims

__all__ = ["unet"]


def unet(
    input_shape: tuple[int, int, int] = (1, 256, 256), classes: int = 1, seed: int = 0, *, width: int = 64,
    levels: int = 4,
) -> ir.Model:  # fmt: skip
    """U-Net (Ronneberger et al., 2015): `x` [batch, C, H, W] -> `logits` [batch, classes, H, W] of every pixel;
    31,036,481 parameters.

    `levels` times two 3x3 convolutions and a max pool of 2x2, with twice the filters each time, from `width`; as many
    times a transposed convolution, the values of the same resolution beside it, and two convolutions. Convolutions
    have batch norm and are padded, so that masks are as large as images (the paper crops); H and W are multiples of
    2^levels.
    """
    b = Builder("unet", seed)
    y = b.input("x", (BATCH, *input_shape))
    skipped = []
    for level in range(levels):
        y = _twice(b, y, width << level, f"down{level}")
        skipped.append(y)
        y = b.pool(y, 2, name=f"down{level}.pool")
    y = _twice(b, y, width << levels, "bottom")
    for level in reversed(range(levels)):
        y = b.concat(skipped[level], _doubled(b, y, width << level, f"up{level}"), axis=1)
        y = _twice(b, y, width << level, f"up{level}")
    return b.model(logits=b.conv(y, classes, 1, bias=True, name="head"))


def _twice(b: Builder, x: ir.Value, filters: int, name: str) -> ir.Value:
    return b.conv_bn_relu(b.conv_bn_relu(x, filters, 3, name=f"{name}.a"), filters, 3, name=f"{name}.b")


def _doubled(b: Builder, x: ir.Value, filters: int, name: str) -> ir.Value:
    batch, channels, height, width = dims(x)
    weight = b.normal(f"{name}.up.weight", (int(channels), filters, 2, 2), (2 / int(channels)) ** 0.5)
    bias = b.normal(f"{name}.up.bias", (filters,), 0.0)
    shape = (batch, filters, 2 * int(height), 2 * int(width))
    return b.op("ConvTranspose", x, weight, bias, name=f"{name}.up", kernel_shape=[2, 2], strides=[2, 2], shape=shape)
