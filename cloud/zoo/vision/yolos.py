"""YOLOS, a detector that is a plain vision transformer."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from cloud.zoo.blocks import DEVIATION, need_heads, patches, placed, vision_block
from cloud.zoo.build import BATCH, Builder, dims

__all__ = ["yolos"]


def yolos(
    input_shape: tuple[int, int, int] = (3, 800, 1344), classes: int = 91, seed: int = 0, *, patch: int = 16,
    width: int = 192, layers: int = 12, heads: int = 3, hidden: int = 0, objects: int = 100, dropout: float = 0.0,
) -> ir.Model:  # fmt: skip
    """YOLOS (Fang et al., "You Only Look at One Sequence", 2021), by default YOLOS-Ti: `x` [batch, C, H, W] -> `boxes`
    [batch, objects, 4] as x1, y1, x2, y2 in pixels, `logits` [batch, objects, classes + 1] with "none" last, and of
    these `scores` [batch, objects] and `classes` [batch, objects] int64, the most likely class other than none;
    6,498,336 parameters.

    The blocks are `vit`'s; the tokens behind the patches, one for each object that may be found, are read by two heads
    of three dense layers. Trained with one object per token, matched as in DETR (Carion et al., 2020). Raises
    EngineError for a width that is not divisible by the heads, and for images that patches do not fill.
    """
    need_heads(width, heads)
    b = Builder("yolos", seed)
    y = patches(b, b.input("x", (BATCH, *input_shape)), patch, width)
    token = b.normal("class.token", (1, 1, width), DEVIATION)
    wanted = b.normal("objects.tokens", (1, objects, width), DEVIATION)
    positions = b.normal("positions.weight", (1, 1 + int(dims(y)[1]) + objects, width), DEVIATION)
    y = b.dropout(placed(b, y, token, wanted, positions), dropout, name="dropout")
    for i in range(layers):
        y = vision_block(b, y, heads, hidden or 4 * width, dropout=dropout, name=f"block{i}")
    y = b.layer_norm(y, name="norm", epsilon=1e-6)
    y = _part(b, y, 1, -objects, "objects")
    logits = _head(b, y, classes + 1, "class_head")
    scores, kinds = _chosen(b, logits, classes)
    boxes = _corners(b, b.op("Sigmoid", _head(b, y, 4, "box_head")), input_shape)
    return b.model(boxes=boxes, logits=logits, scores=scores, classes=kinds)


def _part(b: Builder, x: ir.Value, axis: int, start: int, name: str, stop: int = np.iinfo(np.int64).max) -> ir.Value:
    """A part of known size along an axis."""
    shape = dims(x)
    shape[axis] = len(range(int(shape[axis]))[start:stop])
    ends = (b.constant(f"{name}.{key}", [v]) for key, v in (("start", start), ("stop", stop), ("axis", axis)))
    return b.op("Slice", x, *ends, name=name, shape=shape)


def _head(b: Builder, x: ir.Value, units: int, name: str) -> ir.Value:
    width = int(dims(x)[-1])
    deviation = (2 / width) ** 0.5
    for i in range(2):
        x = b.relu(b.linear(x, width, name=f"{name}.{i}", deviation=deviation))
    return b.linear(x, units, name=f"{name}.2", deviation=width**-0.5)


def _chosen(b: Builder, logits: ir.Value, classes: int) -> tuple[ir.Value, ir.Value]:
    likely = _part(b, b.op("Softmax", logits, axis=-1), 2, 0, "objects.likely", classes)
    shape = dims(logits)[:2]
    kinds = b.op("ArgMax", likely, axis=2, keepdims=0, name="kinds", shape=shape, dtype=ir.DataType.INT64)
    return b.op("ReduceMax", likely, b.constant("kinds.axes", [2]), keepdims=0, name="certain", shape=shape), kinds


def _corners(b: Builder, x: ir.Value, input_shape: tuple[int, int, int]) -> ir.Value:
    """Centres and sizes from 0 to 1 to corners in pixels: a product with a matrix."""
    _, height, width = input_shape
    matrix = np.array([[1, 0, 1, 0], [0, 1, 0, 1], [-0.5, 0, 0.5, 0], [0, -0.5, 0, 0.5]], np.float32)
    scaled = matrix * np.array([width, height, width, height], np.float32)
    return b.op("MatMul", x, b.fixed("corners", scaled), name="in.pixels", shape=dims(x))
