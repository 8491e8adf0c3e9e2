"""EfficientNet-Lite."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

import onnx_ir as ir

from cloud.zoo.build import BATCH, Builder, dims
from cloud.zoo.vision.mobilenet_v2 import divisible

__all__ = ["efficientnet_lite"]

ROWS = (
    (3, 1, 16, 1, 1), (3, 6, 24, 2, 2), (5, 6, 40, 2, 2), (3, 6, 80, 3, 2), (5, 6, 112, 3, 1), (5, 6, 192, 4, 2),
    (3, 6, 320, 1, 1),
)  # fmt: skip
"""Kernel, expansion, filters, repetitions, stride of the first."""


def efficientnet_lite(
    input_shape: tuple[int, int, int] = (3, 224, 224), classes: int = 1000, seed: int = 0, *, width: float = 1.0,
    depth: float = 1.0, rows: Sequence[Sequence[int]] = ROWS, stride: int = 2, stem: int = 32, last: int = 1280,
    dropout: float = 0.2,
) -> ir.Model:  # fmt: skip
    """EfficientNet-Lite (Tan & Le, "EfficientNet", 2019, without squeeze and excite and with ReLU6, as Google's code of
    2020 has it for integer hardware): `x` [batch, C, H, W] -> `logits` [batch, classes].

    The defaults are Lite0, 4,652,008 parameters. `width` multiplies filters and `depth` repetitions, except those of
    the first and the last stage; Lite1 to Lite4 are (1.0, 1.1), (1.1, 1.2), (1.2, 1.4), (1.4, 1.8) at 240, 260, 280 and
    300 pixels. `rows`: kernel, expansion, filters, repetitions and stride of each stage; `stride`: of the first
    convolution, which has `stem` filters; `last`: filters before the pool.
    """
    b = Builder("efficientnet_lite", seed)
    y = b.relu6(_conv_bn(b, b.input("x", (BATCH, *input_shape)), stem, 3, "stem", stride=stride))
    for stage, (kernel, expand, filters, count, step) in enumerate(rows):
        count = count if stage in (0, len(rows) - 1) else ceil(count * depth)
        for i in range(count):
            row = (kernel, expand, divisible(filters * width), 1 if i else step)
            y = _block(b, y, row, f"blocks.{stage}.{i}")
    y = b.relu6(_conv_bn(b, y, last, 1, "last"))
    return b.model(logits=b.dense(b.dropout(b.global_average_pool(y), dropout, name="dropout"), classes, name="head"))


def _block(b: Builder, x: ir.Value, row: tuple[int, int, int, int], name: str) -> ir.Value:
    (kernel, expand, filters, stride), inside = row, int(dims(x)[1]) * row[1]
    y = b.relu6(_conv_bn(b, x, inside, 1, f"{name}.expand")) if expand != 1 else x
    y = b.relu6(_conv_bn(b, y, inside, kernel, f"{name}.depthwise", stride=stride, group=inside))
    y = _conv_bn(b, y, filters, 1, f"{name}.project")
    return b.add(x, y) if stride == 1 and dims(x)[1] == filters else y


def _conv_bn(
    b: Builder, x: ir.Value, filters: int, kernel: int, name: str, *, stride: int = 1, group: int = 1
) -> ir.Value:
    y = b.conv(x, filters, kernel, stride=stride, group=group, name=f"{name}.conv")
    return b.batch_norm(y, name=f"{name}.bn")
