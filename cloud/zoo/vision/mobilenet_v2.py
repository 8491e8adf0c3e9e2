"""MobileNetV2."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from cloud.zoo.build import BATCH, Builder, dims

__all__ = ["divisible", "mobilenet_v2"]

V2 = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
"""Expansion, filters, repetitions, stride of the first: table 2 of the paper."""


def divisible(filters: float, by: int = 8) -> int:
    """The multiple of `by` that is closest to a number of filters, and at most 10 % below it."""
    found = max(by, int(filters + by / 2) // by * by)
    return found + by if found < 0.9 * filters else found


def mobilenet_v2(
    input_shape: tuple[int, int, int] = (3, 224, 224), classes: int = 1000, seed: int = 0, *, width: float = 1.0,
    rows: Sequence[Sequence[int]] = V2, stride: int = 2, last: int = 1280, dropout: float = 0.2,
) -> ir.Model:  # fmt: skip
    """MobileNetV2 (Sandler et al., 2018), inverted residuals with ReLU6 and linear bottlenecks: `x` [batch, C, H, W] ->
    `logits` [batch, classes]; 3,504,872 parameters.

    `width` multiplies the filters; `rows`: expansion, filters, repetitions and stride of each stage; `stride`: of the
    first convolution; `last`: filters before the pool. Weights are named as torchvision's.
    """
    b = Builder("mobilenet_v2", seed)
    y = _conv_bn(b, b.input("x", (BATCH, *input_shape)), divisible(32 * width), 3, "features.0", stride=stride)
    y, at = b.relu6(y), 1
    for expand, filters, count, step in rows:
        for i in range(count):
            y = _inverted(b, y, expand, divisible(filters * width), 1 if i else step, f"features.{at}.conv")
            at += 1
    y = b.relu6(_conv_bn(b, y, divisible(last * max(1.0, width)), 1, f"features.{at}"))
    y = b.dropout(b.global_average_pool(y), dropout, name="dropout")
    return b.model(logits=b.dense(y, classes, name="classifier.1"))


def _inverted(b: Builder, x: ir.Value, expand: int, filters: int, stride: int, name: str) -> ir.Value:
    y, inside, at = x, _channels(x) * expand, 0
    if expand != 1:
        y, at = b.relu6(_conv_bn(b, y, inside, 1, f"{name}.0")), 1
    y = b.relu6(_conv_bn(b, y, inside, 3, f"{name}.{at}", stride=stride, group=inside))
    y = _conv_bn(b, y, filters, 1, f"{name}.{at + 1}", f"{name}.{at + 2}")
    return b.add(x, y) if stride == 1 and _channels(x) == filters else y


def _channels(x: ir.Value) -> int:
    return int(dims(x)[1])


def _conv_bn(
    b: Builder, x: ir.Value, filters: int, kernel: int, name: str, norm: str = "", *, stride: int = 1, group: int = 1
) -> ir.Value:
    """A convolution and its batch norm, `name`.0 and `name`.1 unless the second has a name of its own."""
    conv, norm = (name, norm) if norm else (f"{name}.0", f"{name}.1")
    y = b.conv(x, filters, kernel, stride=stride, group=group, pads=kernel // 2, name=conv)
    return b.batch_norm(y, name=norm, epsilon=1e-5)
