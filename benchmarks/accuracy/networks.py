"""Small float networks of the families that people quantise, untrained, built with `cloud.zoo`'s builder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from cloud.zoo.build import BATCH, Builder

__all__ = [
    "convnext",
    "densenet",
    "efficientnet",
    "mixer",
    "mobilenet_v2",
    "mobilenet_v3",
    "recurrent",
    "separable",
    "unet",
]

Shape = tuple[int, int, int]
"""Channels, height, width."""


def separable(shape: Shape, classes: int, *, filters: Sequence[int] = (32, 48, 64, 64), kernel: int = 9) -> ir.Model:
    """Depthwise-separable convolutions along the last axis with ReLU, as for sensors and keywords."""
    b = Builder("separable")
    y = b.conv_bn_relu(b.input("x", (BATCH, *shape)), filters[0], (1, kernel), stride=(1, 2), name="stem")
    for i, width in enumerate(filters[1:]):
        inside = _channels(y)
        y = b.conv_bn_relu(y, inside, (1, kernel), stride=(1, 1 + i % 2), group=inside, name=f"block{i}.depthwise")
        y = b.conv_bn_relu(y, width, 1, name=f"block{i}.pointwise")
    return b.model(logits=b.dense(b.global_average_pool(y), classes, name="head"))


def mobilenet_v2(shape: Shape, classes: int, *, width: int = 16) -> ir.Model:
    """Inverted residuals with ReLU6 and linear bottlenecks (Sandler et al., 2018)."""
    b = Builder("mobilenet_v2")
    y = _relu6(b, _conv_bn(b, b.input("x", (BATCH, *shape)), width, 3, "stem", stride=2))
    for i, (expand, out, stride) in enumerate(((1, 1, 1), (4, 2, 2), (4, 2, 1), (4, 3, 2), (4, 3, 1), (4, 4, 1))):
        x, name, inside = y, f"block{i}", _channels(y) * expand
        if expand > 1:
            y = _relu6(b, _conv_bn(b, y, inside, 1, f"{name}.expand"))
        y = _relu6(b, _conv_bn(b, y, inside, 3, f"{name}.depthwise", stride=stride, group=inside))
        y = _conv_bn(b, y, out * width, 1, f"{name}.project")
        y = b.add(x, y) if stride == 1 and _channels(x) == out * width else y
    y = _relu6(b, _conv_bn(b, y, 8 * width, 1, "last"))
    return b.model(logits=b.dense(b.global_average_pool(y), classes, name="head"))


def mobilenet_v3(shape: Shape, classes: int, *, width: int = 16) -> ir.Model:
    """Inverted residuals with HardSwish, and squeeze-and-excite that ends in a HardSigmoid (Howard et al., 2019)."""
    b = Builder("mobilenet_v3")
    y = b.op("HardSwish", _conv_bn(b, b.input("x", (BATCH, *shape)), width, 3, "stem", stride=2))
    for i, (kernel, out, stride) in enumerate(((3, 1, 1), (5, 2, 2), (5, 2, 1), (5, 3, 2), (5, 3, 1))):
        x, name, inside = y, f"block{i}", _channels(y) * 3
        y = b.op("HardSwish", _conv_bn(b, y, inside, 1, f"{name}.expand"))
        y = b.op("HardSwish", _conv_bn(b, y, inside, kernel, f"{name}.depthwise", stride=stride, group=inside))
        y = _conv_bn(b, _excite(b, y, "Relu", "HardSigmoid", f"{name}.excite"), out * width, 1, f"{name}.project")
        y = b.add(x, y) if stride == 1 and _channels(x) == out * width else y
    y = b.op("HardSwish", _conv_bn(b, y, 6 * width, 1, "last"))
    y = b.op("HardSwish", b.dense(b.global_average_pool(y), 96, name="dense"))
    return b.model(logits=b.dense(y, classes, name="head"))


def efficientnet(shape: Shape, classes: int, *, width: int = 16) -> ir.Model:
    """Inverted residuals with Swish, and squeeze-and-excite that ends in a Sigmoid (Tan & Le, 2019)."""
    b = Builder("efficientnet")
    y = _swish(b, _conv_bn(b, b.input("x", (BATCH, *shape)), width, 3, "stem", stride=2))
    for i, (kernel, out, stride) in enumerate(((3, 1, 1), (3, 2, 2), (3, 2, 1), (5, 3, 2), (5, 3, 1), (3, 4, 2))):
        x, name, inside = y, f"block{i}", _channels(y) * 4
        y = _swish(b, _conv_bn(b, y, inside, 1, f"{name}.expand"))
        y = _swish(b, _conv_bn(b, y, inside, kernel, f"{name}.depthwise", stride=stride, group=inside))
        y = _conv_bn(b, _excite(b, y, "Swish", "Sigmoid", f"{name}.excite"), out * width, 1, f"{name}.project")
        y = b.add(x, y) if stride == 1 and _channels(x) == out * width else y
    y = _swish(b, _conv_bn(b, y, 8 * width, 1, "last"))
    return b.model(logits=b.dense(b.dropout(b.global_average_pool(y), 0.2, name="dropout"), classes, name="head"))


def convnext(shape: Shape, classes: int, *, width: int = 32, blocks: Sequence[int] = (2, 2)) -> ir.Model:
    """Depthwise 7x7, layer norm over channels, two dense layers with GELU, a residual sum (Liu et al., 2022)."""
    b = Builder("convnext")
    y = b.conv(b.input("x", (BATCH, *shape)), width, 4, stride=4, bias=True, name="stem")
    for stage, count in enumerate(blocks):
        if stage:
            y = b.conv(_channel_norm(b, y, f"down{stage}.norm"), 2 * _channels(y), 2, stride=2, bias=True,
                       name=f"down{stage}")  # fmt: skip
        for i in range(count):
            y = _next(b, y, f"stage{stage}.block{i}")
    pooled = b.global_average_pool(y)
    return b.model(logits=b.dense(b.layer_norm(pooled, name="norm"), classes, name="head"))


def _next(b: Builder, x: ir.Value, name: str) -> ir.Value:
    batch, _, height, width = _dims(x)
    channels = _channels(x)
    y = b.conv(x, channels, 7, group=channels, bias=True, name=f"{name}.depthwise")
    y = b.op("Transpose", y, perm=[0, 2, 3, 1], shape=(batch, height, width, channels))
    y = b.layer_norm(y, name=f"{name}.norm")
    y = b.op("Gelu", b.linear(y, 4 * channels, name=f"{name}.up", deviation=0.1))
    y = b.linear(y, channels, name=f"{name}.down", deviation=0.1)
    y = b.op("Mul", y, b.weight(f"{name}.scale", np.full(channels, 0.1, np.float32)))
    return b.add(x, b.op("Transpose", y, perm=[0, 3, 1, 2], shape=(batch, channels, height, width)))


def _channel_norm(b: Builder, x: ir.Value, name: str) -> ir.Value:
    batch, channels, height, width = _dims(x)
    y = b.op("Transpose", x, perm=[0, 2, 3, 1], shape=(batch, height, width, channels))
    y = b.layer_norm(y, name=name)
    return b.op("Transpose", y, perm=[0, 3, 1, 2], shape=(batch, channels, height, width))


def mixer(shape: Shape, classes: int, *, width: int = 64, blocks: int = 3, step: int = 8) -> ir.Model:
    """Dense layers over patches along the last axis and over channels, in turns (Tolstikhin et al., 2021)."""
    b = Builder("mixer")
    y = b.conv(b.input("x", (BATCH, *shape)), width, (shape[1], step), stride=(shape[1], step), bias=True, name="stem")
    count = shape[2] // step
    shaped = b.weight("shape", np.array([0, width, count], np.int64))
    y = b.op("Reshape", y, shaped, shape=(BATCH, width, count))
    y = _turned(b, y)
    for i in range(blocks):
        mixed = _turned(b, b.layer_norm(y, name=f"block{i}.tokens.norm"))
        y = b.add(y, _turned(b, _think(b, mixed, 2 * count, f"block{i}.tokens")))
        y = b.add(y, _think(b, b.layer_norm(y, name=f"block{i}.channels.norm"), 2 * width, f"block{i}.channels"))
    y = b.op("ReduceMean", b.layer_norm(y, name="norm"), b.weight("axes", np.array([1])), keepdims=0,
             shape=(BATCH, width))  # fmt: skip
    return b.model(logits=b.dense(y, classes, name="head"))


def _turned(b: Builder, x: ir.Value) -> ir.Value:
    batch, one, other = _dims(x)
    return b.op("Transpose", x, perm=[0, 2, 1], shape=(batch, other, one))


def _think(b: Builder, x: ir.Value, hidden: int, name: str) -> ir.Value:
    width = _dims(x)[-1]
    y = b.op("Gelu", b.linear(x, hidden, name=f"{name}.up", deviation=0.1))
    return b.linear(y, int(width), name=f"{name}.down", deviation=0.1)


def densenet(shape: Shape, classes: int, *, growth: int = 12, blocks: Sequence[int] = (4, 4, 4)) -> ir.Model:
    """Layers that read the concatenation of all before them; batch norm and ReLU come before convolutions (Huang et
    al., 2017)."""
    b = Builder("densenet")
    y = b.conv(b.input("x", (BATCH, *shape)), 2 * growth, 3, stride=2, name="stem")
    for stage, count in enumerate(blocks):
        for i in range(count):
            name = f"stage{stage}.layer{i}"
            z = b.conv(_bn_relu(b, y, f"{name}.bn1"), 4 * growth, 1, name=f"{name}.conv1")
            z = b.conv(_bn_relu(b, z, f"{name}.bn2"), growth, 3, name=f"{name}.conv2")
            batch, channels, *size = _dims(y)
            y = b.op("Concat", y, z, axis=1, shape=(batch, int(channels) + growth, *size))
        if stage + 1 < len(blocks):
            y = b.conv(_bn_relu(b, y, f"down{stage}.bn"), _channels(y) // 2, 1, name=f"down{stage}")
            batch, channels, height, width = _dims(y)
            y = b.op("AveragePool", y, kernel_shape=[2, 2], strides=[2, 2],
                     shape=(batch, channels, int(height) // 2, int(width) // 2))  # fmt: skip
    return b.model(logits=b.dense(b.global_average_pool(_bn_relu(b, y, "norm")), classes, name="head"))


def recurrent(shape: Shape, classes: int, *, kind: str = "GRU", hidden: int = 64) -> ir.Model:
    """A convolution along time, a recurrent layer (GRU or LSTM), and a dense layer on its last state."""
    b, gates = Builder("recurrent"), {"GRU": 3, "LSTM": 4}[kind]
    y = b.input("x", (BATCH, *shape))
    y = b.relu(b.conv(y, 32, (1, 5), stride=(1, 2), bias=True, name="conv"))
    batch, channels, _, steps = _dims(y)
    y = b.op("Squeeze", y, b.weight("axis", np.array([2])), shape=(batch, channels, steps))
    y = b.op("Transpose", y, perm=[2, 0, 1], shape=(steps, batch, channels))
    weights = [
        b.normal("input.weight", (1, gates * hidden, 32), 0.15),
        b.normal("state.weight", (1, gates * hidden, hidden), 0.1),
        b.weight("recurrent.bias", np.zeros((1, 2 * gates * hidden), np.float32)),
    ]
    more: dict[str, Any] = {"linear_before_reset": 1} if kind == "GRU" else {}
    y = b.op(kind, y, *weights, hidden_size=hidden, shape=(steps, 1, batch, hidden), **more)
    last = b.op("Gather", y, b.weight("last", np.array(-1)), axis=0, shape=(1, batch, hidden))
    last = b.op("Squeeze", last, b.weight("direction", np.array([0])), shape=(batch, hidden))
    return b.model(logits=b.dense(last, classes, name="head"))


def unet(shape: Shape, outputs: int = 1, *, width: int = 12) -> ir.Model:
    """An encoder and a decoder with transposed convolutions, joined by concatenations (Ronneberger et al., 2015):
    `logits` [batch, outputs, height, width]."""
    b = Builder("unet")
    first = _twice(b, b.input("x", (BATCH, *shape)), width, "in")
    second = _twice(b, _halved(b, first), 2 * width, "down1")
    y = _twice(b, _halved(b, second), 4 * width, "down2")
    y = _twice(b, _joined(b, _doubled(b, y, 2 * width, "up1"), second), 2 * width, "up1")
    y = _twice(b, _joined(b, _doubled(b, y, width, "up2"), first), width, "up2")
    return b.model(logits=b.conv(y, outputs, 1, bias=True, name="head"))


def _twice(b: Builder, x: ir.Value, filters: int, name: str) -> ir.Value:
    return b.conv_bn_relu(b.conv_bn_relu(x, filters, 3, name=f"{name}.a"), filters, 3, name=f"{name}.b")


def _halved(b: Builder, x: ir.Value) -> ir.Value:
    batch, channels, height, width = _dims(x)
    size = (batch, channels, int(height) // 2, int(width) // 2)
    return b.op("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2], shape=size)


def _doubled(b: Builder, x: ir.Value, filters: int, name: str) -> ir.Value:
    batch, channels, height, width = _dims(x)
    weight = b.normal(f"{name}.up.weight", (int(channels), filters, 2, 2), (2 / int(channels)) ** 0.5)
    bias = b.weight(f"{name}.up.bias", np.zeros(filters, np.float32))
    return b.op("ConvTranspose", x, weight, bias, kernel_shape=[2, 2], strides=[2, 2],
                shape=(batch, filters, 2 * int(height), 2 * int(width)))  # fmt: skip


def _joined(b: Builder, x: ir.Value, y: ir.Value) -> ir.Value:
    batch, channels, *size = _dims(x)
    return b.op("Concat", x, y, axis=1, shape=(batch, int(channels) + _channels(y), *size))


def _dims(x: ir.Value) -> list[int | str]:
    assert x.shape is not None
    return [d if isinstance(d, int) else str(d.value) for d in x.shape]


def _channels(x: ir.Value) -> int:
    return int(_dims(x)[1])


def _conv_bn(
    b: Builder, x: ir.Value, filters: int, kernel: int, name: str, *, stride: int = 1, group: int = 1
) -> ir.Value:
    y = b.conv(x, filters, kernel, stride=stride, group=group, name=f"{name}.conv")
    return b.batch_norm(y, name=f"{name}.bn")


def _bn_relu(b: Builder, x: ir.Value, name: str) -> ir.Value:
    return b.relu(b.batch_norm(x, name=name))


def _relu6(b: Builder, x: ir.Value) -> ir.Value:
    return b.op("Clip", x, *(b.weight(f"{x.name}.{n}", np.array(n, np.float32)) for n in (0.0, 6.0)))


def _swish(b: Builder, x: ir.Value) -> ir.Value:
    return b.op("Mul", x, b.op("Sigmoid", x))


def _excite(b: Builder, x: ir.Value, inner: str, gate: str, name: str) -> ir.Value:
    """The channels of `x` times numbers between 0 and 1 that depend on their means."""
    batch, channels, *_ = _dims(x)
    y = b.op("GlobalAveragePool", x, shape=(batch, channels, 1, 1))
    y = b.conv(y, max(4, int(channels) // 4), 1, bias=True, name=f"{name}.down")
    y = _swish(b, y) if inner == "Swish" else b.op(inner, y)
    y = b.op(gate, b.conv(y, int(channels), 1, bias=True, name=f"{name}.up"))
    return b.op("Mul", x, y)
