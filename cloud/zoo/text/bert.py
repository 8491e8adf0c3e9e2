"""BERT."""

from __future__ import annotations

import onnx_ir as ir

from cloud.errors import EngineError
from cloud.zoo.blocks import DEVIATION, attention, feed_forward, need_heads, present
from cloud.zoo.build import BATCH, Builder

__all__ = ["bert"]


def bert(
    length: int = 128, classes: int = 2, seed: int = 0, *, vocabulary: int = 30522, positions: int = 512,
    width: int = 128, layers: int = 2, heads: int = 2, hidden: int = 0, dropout: float = 0.1,
) -> ir.Model:  # fmt: skip
    """BERT (Devlin et al., 2019), by default BERT-tiny (Turc et al., "Well-Read Students Learn Better", 2019), with a
    classifier: `x` [batch, length] int32 -> `logits` [batch, classes]; 4,385,920 parameters
    and 258 of the classifier.

    Embeddings of tokens, of `positions` and of the first of two segments; `layers` blocks of attention in `heads` and
    two dense layers with GELU (`hidden` units; 0: four times `width`), each with layer norm after the sum; a dense
    layer with tanh on the first token, the classifier. Nothing attends to id 0, which is padding. Raises EngineError
    for a width that is not divisible by the heads and for more tokens than positions.
    """
    need_heads(width, heads)
    if length > positions:
        raise EngineError(f"expected at most {positions} tokens, one per position, got a length of {length}")
    b = Builder("bert", seed)
    x = b.input("x", (BATCH, length), ir.DataType.INT32)
    y = b.op("Gather", b.normal("tokens.weight", (vocabulary, width), DEVIATION), x, name="tokens",
             shape=(BATCH, length, width))  # fmt: skip
    places = b.normal("positions.weight", (positions, width), DEVIATION)
    kept = [b.constant(f"positions.{key}", [v]) for key, v in (("start", 0), ("stop", length), ("axis", 0))]
    y = b.add(y, b.op("Slice", places, *kept, shape=(length, width)), name="placed")
    segments = b.normal("segments.weight", (2, width), DEVIATION)
    first = b.constant("first", 0)
    y = b.add(y, b.op("Gather", segments, first, axis=0, name="segment", shape=(width,)), name="embedded")
    y = b.dropout(b.layer_norm(y, name="norm", epsilon=1e-12), dropout, name="dropout")
    mask = present(b, x)
    for i in range(layers):
        z = attention(b, y, heads, name=f"block{i}.attention", mask=mask)
        y = _joined(b, y, z, dropout, f"block{i}.attention")
        y = _joined(b, y, feed_forward(b, y, hidden or 4 * width, name=f"block{i}.mlp"), dropout, f"block{i}.mlp")
    y = b.op("Gather", y, first, axis=1, name="first.token", shape=(BATCH, width))
    y = b.dropout(b.op("Tanh", b.dense(y, width, name="pooler")), dropout, name="head.dropout")
    return b.model(logits=b.dense(y, classes, name="head"))


def _joined(b: Builder, x: ir.Value, y: ir.Value, dropout: float, name: str) -> ir.Value:
    y = b.add(x, b.dropout(y, dropout, name=f"{name}.dropout"), name=f"{name}.add")
    return b.layer_norm(y, name=f"{name}.norm", epsilon=1e-12)
