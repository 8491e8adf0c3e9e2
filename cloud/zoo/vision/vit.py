"""Vision transformers."""

from __future__ import annotations

import onnx_ir as ir

from cloud.zoo.blocks import DEVIATION, need_heads, patches, placed, vision_block
from cloud.zoo.build import BATCH, Builder, dims

__all__ = ["vit"]


def vit(
    input_shape: tuple[int, int, int] = (3, 224, 224), classes: int = 1000, seed: int = 0, *, patch: int = 16,
    width: int = 192, layers: int = 12, heads: int = 3, hidden: int = 0, dropout: float = 0.0,
    deviation: float = DEVIATION,
) -> ir.Model:  # fmt: skip
    """ViT (Dosovitskiy et al., "An Image is Worth 16x16 Words", 2021), by default the tiny one of DeiT (Touvron et al.,
    2021): `x` [batch, C, H, W] -> `logits` [batch, classes]; 5,717,416 parameters.

    A vector for every square of `patch` pixels, a class token before them, learned positions, `layers` blocks of
    attention in `heads` and two dense layers (`hidden` units; 0: four times `width`), layer norm, a dense layer on the
    class token. `deviation`: of the blocks' initial weights; the default suits widths of some hundred; with it
    the blocks of a small model change their tokens little at first.

    Raises EngineError for a width that is not divisible by the heads, and for images that patches do not fill.
    """
    need_heads(width, heads)
    b = Builder("vit", seed)
    y = patches(b, b.input("x", (BATCH, *input_shape)), patch, width)
    token = b.normal("class.token", (1, 1, width), DEVIATION)
    positions = b.normal("positions.weight", (1, 1 + int(dims(y)[1]), width), DEVIATION)
    y = b.dropout(placed(b, y, token, None, positions), dropout, name="dropout")
    for i in range(layers):
        y = vision_block(b, y, heads, hidden or 4 * width, dropout=dropout, name=f"block{i}", deviation=deviation)
    first = b.op("Gather", y, b.constant("first", 0), axis=1, name="class", shape=(BATCH, width))
    first = b.layer_norm(first, name="norm", epsilon=1e-6)
    return b.model(logits=b.dense(first, classes, name="head"))
