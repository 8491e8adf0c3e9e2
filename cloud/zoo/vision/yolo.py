"""A small one-stage detector without anchors."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from cloud.zoo.build import BATCH, Builder, dims

__all__ = ["yolo"]


def yolo(
    input_shape: tuple[int, int, int] = (3, 416, 416), classes: int = 80, seed: int = 0, *, width: int = 32,
    depth: int = 2,
) -> ir.Model:  # fmt: skip
    """A detector in the manner of YOLO (Redmon et al., "You Only Look Once", 2016) with separate heads and no anchors
    as YOLOX has them (Ge et al., 2021): `x` [batch, C, H, W] -> `boxes` [batch, cells, 4] as x1, y1, x2, y2 in pixels,
    `logits` [batch, cells, classes], `scores` [batch, cells] and `classes` [batch, cells] int64.

    Convolutions to 1/32 of the size, with `depth` residual blocks at each resolution and `width` filters in
    the first; the coarse values are added to the finer ones above them, down to cells of 8 x 8 pixels (H and W are
    multiples of 32). A cell predicts the distances from its middle to the box's four sides. It keeps its score only if
    no cell beside it has a higher one (Zhou et al., "Objects as Points", 2019), so no suppression of boxes follows. A
    network of its own, of 2,693,748 parameters.
    """
    b = Builder("yolo", seed)
    y = _conv(b, b.input("x", (BATCH, *input_shape)), width, 3, "stem", stride=2)
    kept = []
    for level in range(1, 5):
        y = _conv(b, y, width << min(level, 3), 3, f"down{level}", stride=2)
        for i in range(depth):
            inner = _conv(b, y, _channels(y) // 2, 1, f"level{level}.{i}.narrow")
            y = b.add(y, _conv(b, inner, _channels(y), 3, f"level{level}.{i}.wide"))
        kept.append(y)
    y = _conv(b, kept[3], 2 * width, 1, "neck3")
    for level in (2, 1):
        y = b.add(_doubled(b, y, f"neck{level}.up"), _conv(b, kept[level], 2 * width, 1, f"neck{level}"))
        y = _conv(b, y, 2 * width, 3, f"neck{level}.mixed")
    found = _head(b, _conv(b, y, 2 * width, 3, "kinds"), classes, "kinds.head", -4.6)
    sides = _head(b, _conv(b, y, 2 * width, 3, "sides"), 4, "sides.head", 1.0)
    scores, kinds = _best(b, found, classes)
    return b.model(boxes=_boxes(b, sides), logits=_rows(b, found, classes, "rows"), scores=scores, classes=kinds)


STRIDE = 8
"""Pixels of a cell's side."""


def _boxes(b: Builder, sides: ir.Value) -> ir.Value:
    """Distances in cells to corners in pixels."""
    _, _, height, width = dims(sides)
    across, down = (np.arange(int(n), dtype=np.float32) + 0.5 for n in (width, height))
    middle = np.stack([np.tile(across, len(down)), np.repeat(down, len(across))], 1) * STRIDE
    away = b.op("Softplus", _rows(b, sides, 4, "sides.rows"))
    away = b.op("Mul", away, b.fixed("signs", [-STRIDE, -STRIDE, STRIDE, STRIDE]))
    return b.op("Add", away, b.fixed("middles", np.tile(middle, 2)[None]), name="corners")


def _best(b: Builder, found: ir.Value, classes: int) -> tuple[ir.Value, ir.Value]:
    """Of every cell the score of its class, 0 beside a cell with a higher one, and the class."""
    batch, _, height, width = dims(found)
    shape, cells = (batch, 1, height, width), int(height) * int(width)
    chance = b.op("Sigmoid", found)
    best = b.op("ReduceMax", chance, b.constant("kinds.axes", [1]), keepdims=1, name="best", shape=shape)
    around = b.pool(best, 3, stride=1, pads=1, name="around")
    top = b.op("Equal", best, around, name="peaks", dtype=ir.DataType.BOOL)
    kept = b.op("Mul", best, b.op("Cast", top, to=int(ir.DataType.FLOAT), shape=shape), name="kept")
    kinds = b.op(
        "ArgMax", _rows(b, chance, classes, "kinds.rows"), axis=2, keepdims=0, name="likeliest", shape=(batch, cells),
        dtype=ir.DataType.INT64,
    )  # fmt: skip
    return b.reshape(kept, (cells,), name="certain"), kinds


def _rows(b: Builder, x: ir.Value, count: int, name: str) -> ir.Value:
    """[batch, count, H, W] -> [batch, H * W, count]"""
    cells = int(np.prod([int(n) for n in dims(x)[2:]]))
    return b.transpose(b.reshape(x, (count, cells)), (0, 2, 1), name=name)


def _doubled(b: Builder, x: ir.Value, name: str) -> ir.Value:
    """Every value four times."""
    batch, channels, height, width = dims(x)
    scales = b.fixed(f"{name}.scales", [1, 1, 2, 2])
    return b.op("Resize", x, None, scales, name=name, mode="nearest", coordinate_transformation_mode="asymmetric",
                nearest_mode="floor", shape=(batch, channels, 2 * int(height), 2 * int(width)))  # fmt: skip


def _head(b: Builder, x: ir.Value, filters: int, name: str, bias: float) -> ir.Value:
    """A 1x1 convolution with small weights, whose results begin near `bias`."""
    batch, channels, *size = dims(x)
    weight = b.normal(f"{name}.weight", (filters, int(channels), 1, 1), 0.01)
    start = b.weight(f"{name}.bias", np.full(filters, bias, np.float32))
    return b.op("Conv", x, weight, start, name=name, kernel_shape=[1, 1], shape=(batch, filters, *size))


def _channels(x: ir.Value) -> int:
    return int(dims(x)[1])


def _conv(b: Builder, x: ir.Value, filters: int, kernel: int, name: str, *, stride: int = 1) -> ir.Value:
    y = b.batch_norm(b.conv(x, filters, kernel, stride=stride, name=f"{name}.conv"), name=f"{name}.bn")
    return b.op("Mul", y, b.op("Sigmoid", y))
