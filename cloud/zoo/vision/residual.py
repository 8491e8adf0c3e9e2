"""Residual networks of 18 to 152 layers."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from cloud.zoo.build import BATCH, Builder, dims

__all__ = ["resnet18", "resnet50"]


def resnet18(
    input_shape: tuple[int, int, int] = (3, 224, 224), classes: int = 1000, seed: int = 0, *,
    width: int = 64, blocks: Sequence[int] = (2, 2, 2, 2), small: bool = False,
) -> ir.Model:  # fmt: skip
    """ResNet-18 (He et al., "Deep Residual Learning for Image Recognition", 2016): `x` [batch, C, H, W] -> `logits`
    [batch, classes]; 11,689,512 parameters.

    Blocks of two 3x3 convolutions, `blocks` of them in each stage, `width` filters in the first and twice as many in
    each further one, with half the resolution. `small`: the stem is a 3x3 convolution of stride 1 without a pool, as in
    the paper's networks for 32x32 images. Weights are named as torchvision's.
    """
    return _resnet("resnet18", input_shape, classes, seed, width, blocks, small, bottleneck=False)


def resnet50(
    input_shape: tuple[int, int, int] = (3, 224, 224), classes: int = 1000, seed: int = 0, *,
    width: int = 64, blocks: Sequence[int] = (3, 4, 6, 3), small: bool = False,
) -> ir.Model:  # fmt: skip
    """ResNet-50, as `resnet18` with blocks of 1x1, 3x3 and 1x1 convolutions, the last with four times the filters;
    25,557,032 parameters. The stride is that of the 3x3 convolution, as in torchvision's."""
    return _resnet("resnet50", input_shape, classes, seed, width, blocks, small, bottleneck=True)


def _resnet(
    name: str, input_shape: tuple[int, int, int], classes: int, seed: int, width: int, blocks: Sequence[int],
    small: bool, *, bottleneck: bool,
) -> ir.Model:  # fmt: skip
    b = Builder(name, seed)
    x = b.input("x", (BATCH, *input_shape))
    kernel, stride, pads = (3, 1, 1) if small else (7, 2, 3)
    y = b.relu(_conv_bn(b, x, width, kernel, stride, pads, "conv1", "bn1"))
    y = y if small else b.pool(y, 3, stride=2, pads=1, name="maxpool")
    for stage, count in enumerate(blocks):
        for i in range(count):
            stride = 2 if stage and not i else 1
            y = _block(b, y, width << stage, stride, f"layer{stage + 1}.{i}", bottleneck)
    return b.model(logits=b.dense(b.global_average_pool(y, name="avgpool"), classes, name="fc"))


def _block(b: Builder, x: ir.Value, width: int, stride: int, name: str, bottleneck: bool) -> ir.Value:
    # Kernel, stride and filters of each convolution.
    rows = ((1, 1, width), (3, stride, width), (1, 1, 4 * width)) if bottleneck else ((3, stride, width), (3, 1, width))
    y, out = x, rows[-1][2]
    for i, (kernel, step, filters) in enumerate(rows, 1):
        y = _conv_bn(b, y, filters, kernel, step, kernel // 2, f"{name}.conv{i}", f"{name}.bn{i}")
        y = b.relu(y, name=f"{name}.relu{i}") if i < len(rows) else y
    if stride != 1 or dims(x)[1] != out:
        x = _conv_bn(b, x, out, 1, stride, 0, f"{name}.downsample.0", f"{name}.downsample.1")
    return b.relu(b.add(x, y, name=f"{name}.add"), name=f"{name}.relu")


def _conv_bn(
    b: Builder, x: ir.Value, filters: int, kernel: int, stride: int, pads: int, conv: str, norm: str
) -> ir.Value:
    y = b.conv(x, filters, kernel, stride=stride, pads=pads, name=conv)
    return b.batch_norm(y, name=norm, epsilon=1e-5)
