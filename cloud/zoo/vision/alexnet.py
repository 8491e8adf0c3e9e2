"""AlexNet."""

from __future__ import annotations

import onnx_ir as ir

from cloud.zoo.build import BATCH, Builder

__all__ = ["alexnet"]


def alexnet(
    input_shape: tuple[int, int, int] = (3, 224, 224), classes: int = 1000, seed: int = 0, *,
    stem: tuple[int, int, int] = (11, 4, 2), width: float = 1.0, hidden: int = 4096, dropout: float = 0.5,
) -> ir.Model:  # fmt: skip
    """AlexNet in one column (Krizhevsky, "One weird trick for parallelizing convolutional neural networks", 2014): `x`
    [batch, C, H, W] -> `logits` [batch, classes]; 61,100,840 parameters.

    Five convolutions with ReLU and three max pools, then dense layers with dropout. `stem`: kernel, stride and padding
    of the first convolution, (3, 1, 1) for images of 32x32; `width` multiplies the filters. Weights are named as
    torchvision's.
    """
    b = Builder("alexnet", seed)
    y = b.input("x", (BATCH, *input_shape))
    # Index in torchvision's Sequential, filters, (kernel, stride, padding), whether a pool follows.
    rows = ((0, 64, stem, True), (3, 192, (5, 1, 2), True), (6, 384, (3, 1, 1), False), (8, 256, (3, 1, 1), False),
            (10, 256, (3, 1, 1), True))  # fmt: skip
    for index, filters, (kernel, stride, pads), pooled in rows:
        count = max(8, round(filters * width))
        y = b.relu(b.conv(y, count, kernel, stride=stride, pads=pads, bias=True, name=f"features.{index}"))
        y = b.pool(y, 3, stride=2, name=f"features.{index}.pool") if pooled else y
    y = b.flatten(y)
    for i in (0, 1):
        y = b.dropout(y, dropout, name=f"dropout{i}")
        y = b.relu(b.dense(y, hidden, name=f"classifier.{1 + 3 * i}"))
    return b.model(logits=b.dense(y, classes, name="classifier.6"))
