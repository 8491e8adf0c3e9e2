"""Transformers."""

from __future__ import annotations

import onnx_ir as ir

from cloud.zoo.blocks import DEVIATION, attention, feed_forward, need_heads
from cloud.zoo.build import BATCH, Builder

__all__ = ["transformer"]


def transformer(
    length: int = 128, vocabulary: int = 256, seed: int = 0, *, width: int = 128, layers: int = 4, heads: int = 4,
    hidden: int = 0, dropout: float = 0.0, tied: bool = True,
) -> ir.Model:  # fmt: skip
    """A language model like GPT-2 (Radford et al., 2019): `x` [batch, length] int32 -> `logits` [batch, length,
    vocabulary] of the next token at each position, from the tokens up to it; 842,496 parameters.

    Embeddings of tokens and of positions, `layers` blocks of layer norm, causal attention in `heads`, layer norm and
    GELU between two dense layers (`hidden` units; 0: four times `width`), a last layer norm. `tied`: logits are
    products with the token embedding instead of separate weights. Raises EngineError for a width that
    is not divisible by the heads.
    """
    need_heads(width, heads)
    b = Builder("transformer", seed)
    x = b.input("x", (BATCH, length), ir.DataType.INT32)
    tokens = b.normal("tokens.weight", (vocabulary, width), DEVIATION)
    positions = b.normal("positions.weight", (length, width), DEVIATION)
    y = b.op("Gather", tokens, x, name="tokens", shape=(BATCH, length, width))
    y = b.dropout(b.add(y, positions, name="positions"), dropout, name="dropout")
    into = DEVIATION / (2 * layers) ** 0.5  # for additions to the residual stream, so that its variance stays
    for i in range(layers):
        y = _attend(b, y, heads, dropout, into, name=f"block{i}.attention")
        y = _think(b, y, hidden or 4 * width, dropout, into, name=f"block{i}.mlp")
    y = b.layer_norm(y, name="norm")
    head = (
        b.op("Transpose", tokens, name="head.weight", shape=(width, vocabulary), perm=[1, 0])
        if tied
        else b.normal("head.weight", (width, vocabulary), DEVIATION)
    )
    return b.model(logits=b.op("MatMul", y, head, name="head", shape=(BATCH, length, vocabulary)))


def _attend(b: Builder, x: ir.Value, heads: int, dropout: float, into: float, *, name: str) -> ir.Value:
    y = attention(b, b.layer_norm(x, name=f"{name}.norm"), heads, name=name, into=into, is_causal=1)
    return b.add(x, b.dropout(y, dropout, name=f"{name}.dropout"), name=f"{name}.add")


def _think(b: Builder, x: ir.Value, hidden: int, dropout: float, into: float, *, name: str) -> ir.Value:
    y = feed_forward(b, b.layer_norm(x, name=f"{name}.norm"), hidden, name=name, into=into, approximate="tanh")
    return b.add(x, b.dropout(y, dropout, name=f"{name}.dropout"), name=f"{name}.add")
