"""MobileNetV3."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from cloud.zoo.build import BATCH, Builder, dims
from cloud.zoo.vision.mobilenet_v2 import divisible

__all__ = ["mobilenet_v3_large", "mobilenet_v3_small"]

V3Row = tuple[int, int, int, bool, str, int]
LARGE: tuple[V3Row, ...] = (
    (3, 16, 16, False, "Relu", 1), (3, 64, 24, False, "Relu", 2), (3, 72, 24, False, "Relu", 1),
    (5, 72, 40, True, "Relu", 2), (5, 120, 40, True, "Relu", 1), (5, 120, 40, True, "Relu", 1),
    (3, 240, 80, False, "HardSwish", 2), (3, 200, 80, False, "HardSwish", 1), (3, 184, 80, False, "HardSwish", 1),
    (3, 184, 80, False, "HardSwish", 1), (3, 480, 112, True, "HardSwish", 1), (3, 672, 112, True, "HardSwish", 1),
    (5, 672, 160, True, "HardSwish", 2), (5, 960, 160, True, "HardSwish", 1), (5, 960, 160, True, "HardSwish", 1),
)  # fmt: skip
"""Kernel, expanded filters, filters, squeeze and excite, activation, stride: table 1 of the paper."""

SMALL: tuple[V3Row, ...] = (
    (3, 16, 16, True, "Relu", 2), (3, 72, 24, False, "Relu", 2), (3, 88, 24, False, "Relu", 1),
    (5, 96, 40, True, "HardSwish", 2), (5, 240, 40, True, "HardSwish", 1), (5, 240, 40, True, "HardSwish", 1),
    (5, 120, 48, True, "HardSwish", 1), (5, 144, 48, True, "HardSwish", 1), (5, 288, 96, True, "HardSwish", 2),
    (5, 576, 96, True, "HardSwish", 1), (5, 576, 96, True, "HardSwish", 1),
)  # fmt: skip
"""Table 2 of the paper."""


def mobilenet_v3_large(
    input_shape: tuple[int, int, int] = (3, 224, 224), classes: int = 1000, seed: int = 0, *, width: float = 1.0,
    rows: Sequence[V3Row] = LARGE, stride: int = 2, hidden: int = 1280, dropout: float = 0.2,
) -> ir.Model:  # fmt: skip
    """MobileNetV3-Large (Howard et al., "Searching for MobileNetV3", 2019): `x` [batch, C, H, W] -> `logits` [batch,
    classes]; 5,483,032 parameters.

    Inverted residuals, some with squeeze and excite and with HardSwish. `width` multiplies the filters; `rows`: kernel,
    expanded filters, filters, squeeze and excite, activation and stride of each block; `stride`: of the first
    convolution; `hidden`: units of the dense layer before the last. Weights are named as torchvision's.
    """
    return _v3("mobilenet_v3_large", input_shape, classes, seed, width, rows, stride, hidden, dropout)


def mobilenet_v3_small(
    input_shape: tuple[int, int, int] = (3, 224, 224), classes: int = 1000, seed: int = 0, *, width: float = 1.0,
    rows: Sequence[V3Row] = SMALL, stride: int = 2, hidden: int = 1024, dropout: float = 0.2,
) -> ir.Model:  # fmt: skip
    """MobileNetV3-Small, as `mobilenet_v3_large`; 2,542,856 parameters."""
    return _v3("mobilenet_v3_small", input_shape, classes, seed, width, rows, stride, hidden, dropout)


def _v3(
    name: str, input_shape: tuple[int, int, int], classes: int, seed: int, width: float, rows: Sequence[V3Row],
    stride: int, hidden: int, dropout: float,
) -> ir.Model:  # fmt: skip
    b = Builder(name, seed)
    y = _conv_bn(b, b.input("x", (BATCH, *input_shape)), divisible(16 * width), 3, "features.0", stride=stride)
    y = b.op("HardSwish", y)
    for i, row in enumerate(rows, 1):
        y = _v3_block(b, y, row, width, f"features.{i}.block")
    y = b.op("HardSwish", _conv_bn(b, y, 6 * _channels(y), 1, f"features.{len(rows) + 1}"))
    y = b.op("HardSwish", b.dense(b.global_average_pool(y), hidden, name="classifier.0"))
    return b.model(logits=b.dense(b.dropout(y, dropout, name="dropout"), classes, name="classifier.3"))


def _v3_block(b: Builder, x: ir.Value, row: V3Row, width: float, name: str) -> ir.Value:
    kernel, expanded, filters, excite, activation, stride = row
    inside, out, y, at = divisible(expanded * width), divisible(filters * width), x, 0
    if inside != _channels(x):
        y, at = b.op(activation, _conv_bn(b, y, inside, 1, f"{name}.0")), 1
    y = b.op(activation, _conv_bn(b, y, inside, kernel, f"{name}.{at}", stride=stride, group=inside))
    if excite:
        y, at = _excite(b, y, f"{name}.{at + 1}"), at + 1
    y = _conv_bn(b, y, out, 1, f"{name}.{at + 1}")
    return b.add(x, y) if stride == 1 and _channels(x) == out else y


def _excite(b: Builder, x: ir.Value, name: str) -> ir.Value:
    """The channels times numbers between 0 and 1 that depend on their means."""
    batch, channels, *_ = dims(x)
    y = b.op("GlobalAveragePool", x, shape=(batch, channels, 1, 1))
    y = b.relu(b.conv(y, divisible(int(channels) / 4), 1, bias=True, name=f"{name}.fc1"))
    y = b.conv(y, int(channels), 1, bias=True, name=f"{name}.fc2")
    return b.op("Mul", x, b.op("HardSigmoid", y, alpha=1 / 6, beta=0.5), shape=dims(x))


def _channels(x: ir.Value) -> int:
    return int(dims(x)[1])


def _conv_bn(
    b: Builder, x: ir.Value, filters: int, kernel: int, name: str, *, stride: int = 1, group: int = 1
) -> ir.Value:
    y = b.conv(x, filters, kernel, stride=stride, group=group, pads=kernel // 2, name=f"{name}.0")
    return b.batch_norm(y, name=f"{name}.1")
