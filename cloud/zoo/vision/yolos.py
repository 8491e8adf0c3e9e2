"""YOLOS, a detector that is a plain vision transformer."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from cloud.zoo.blocks import DEVIATION, need_heads, patches, placed, vision_block
from cloud.zoo.build import BATCH, Builder, dims

__all__ = ["yolos"]


def yolos(
    input_shape: tuple[int, int, int] = (3, 800, 1344), classes: int = 91, seed: int = 0, *, patch: int = 16,
    width: int = 192, layers: int = 12, heads: int = 3, hidden: int = 0, objects: int = 100, dropout: float = 0.0,
    stem: int = 0, spread: bool = False, dense: bool = False, deviation: float = DEVIATION,
) -> ir.Model:  # fmt: skip
    """YOLOS (Fang et al., "You Only Look at One Sequence", 2021), by default YOLOS-Ti: `x` [batch, C, H, W] -> `boxes`
    [batch, objects, 4] as x1, y1, x2, y2 in pixels, `logits` [batch, objects, classes + 1] with "none" last, and of
    these `scores` [batch, objects] and `classes` [batch, objects] int64, the most likely class other than none;
    6,498,336 parameters.

    The blocks are `vit`'s; the tokens behind the patches, one for each object that may be found, are read by two heads
    of three dense layers. Trained with one object per token, matched as in DETR (Carion et al., 2020).

    Departures for models that begin from nothing with little data. A `stem` of convolutions, the first with so many
    filters, makes the patches (Xiao et al., "Early Convolutions Help Transformers See Better", 2021). With `spread`
    each token has a learned place, to which its head adds, and the places begin as a grid over the image (Wang et al.,
    "Anchor DETR", 2022); positions begin as sines of where patches and places are. If `dense`, the classes of the
    patches' tokens are a further output `patch_logits` [batch, patches, classes + 1], which a loss can compare with
    what is there (as Jiang et al., "All Tokens Matter", 2021, do for classifiers). `deviation`: of the blocks' initial
    weights.

    Raises EngineError for a width that is not divisible by the heads, for images that patches do not fill, and for a
    stem with patches that are no power of two.
    """
    need_heads(width, heads)
    b = Builder("yolos", seed)
    y = patches(b, b.input("x", (BATCH, *input_shape)), patch, width, stem)
    token = b.normal("class.token", (1, 1, width), DEVIATION)
    wanted = b.normal("objects.tokens", (1, objects, width), DEVIATION)
    if spread:
        positions = b.weight(
            "positions.weight", _sines(input_shape[1] // patch, input_shape[2] // patch, objects, width)
        )
    else:
        positions = b.normal("positions.weight", (1, 1 + int(dims(y)[1]) + objects, width), DEVIATION)
    y = b.dropout(placed(b, y, token, wanted, positions), dropout, name="dropout")
    for i in range(layers):
        y = vision_block(b, y, heads, hidden or 4 * width, dropout=dropout, name=f"block{i}", deviation=deviation)
    y = b.layer_norm(y, name="norm", epsilon=1e-6)
    found = _part(b, y, 1, -objects, "objects")
    more: dict[str, ir.Value] = {}
    if dense:
        every = _head(b, _part(b, y, 1, 1, "tokens.kept"), classes + 1, "class_head")
        logits = _part(b, every, 1, -objects, "objects.logits")
        more["patch_logits"] = _part(b, every, 1, 0, "patches.classes", -objects)
    else:
        logits = _head(b, found, classes + 1, "class_head")
    scores, kinds = _chosen(b, logits, classes)
    boxes = _head(b, found, 4, "box_head")
    boxes = b.add(boxes, b.weight("objects.places", _grid(objects)), name="placed.boxes") if spread else boxes
    boxes = _corners(b, b.op("Sigmoid", boxes), input_shape)
    return b.model(boxes=boxes, logits=logits, scores=scores, classes=kinds, **more)


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


_LONGEST, _HIGH = 100.0, 0.5
"""The longest wave of positions in patches, over 2 pi, and how high all waves are."""


def _sines(down: int, across: int, objects: int, width: int) -> npt.NDArray[np.float32]:
    """Positions [1, 1 + patches + objects, width]: zeros for the class token; for patches, and for places on the grid
    of `_grid`, sines and cosines of where they are in both directions (Vaswani et al., 2017)."""
    rows, columns = np.divmod(np.arange(down * across), across)
    middles = 1 / (1 + np.exp(-_grid(objects)[0, :, :2]))
    places = np.concatenate([np.stack([columns, rows], 1), middles * [across, down] - 0.5])
    waves = _LONGEST ** -(np.arange(width // 4) / (width // 4))
    angles = (places[:, :, None] * waves).reshape(len(places), -1)
    found = np.zeros((1, 1 + len(places), width), np.float32)
    found[0, 1:, : 4 * len(waves)] = _HIGH * np.concatenate([np.sin(angles), np.cos(angles)], 1)
    return found


def _grid(count: int) -> npt.NDArray[np.float32]:
    """Boxes whose middles are a grid over the image, and whose sides are 0.4 of it, before the sigmoid: centres and
    sizes [1, count, 4]."""
    across = int(np.ceil(count**0.5))
    down = -(-count // across)
    rows, columns = np.divmod(np.arange(count), across)
    side = np.full(count, 0.4)
    found = np.stack([(columns + 0.5) / across, (rows + 0.5) / down, side, side], 1)
    return np.asarray(np.log(found / (1 - found))[None], np.float32)


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
