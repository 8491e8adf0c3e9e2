"""T5."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from cloud.zoo.blocks import attention, feed_forward, present
from cloud.zoo.build import BATCH, Builder, dims

__all__ = ["t5"]

BUCKETS, FARTHEST = 32, 128
"""Distances share a bias in this many groups; all distances from the farthest on are one group."""


def t5(
    length: int = 512, target_length: int = 512, seed: int = 0, *, vocabulary: int = 32128, width: int = 512,
    layers: int = 6, heads: int = 8, head_width: int = 64, hidden: int = 2048, dropout: float = 0.1,
    aligned: bool = False,
) -> ir.Model:  # fmt: skip
    """T5 (Raffel et al., "Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer", 2020), by
    default T5-small: `x` [batch, length] int32, the source, and `target` [batch, target_length] int32, what was written
    so far behind a start token -> `logits` [batch, target_length, vocabulary] of the next token at each position;
    60,506,624 parameters.

    An encoder and a decoder of `layers` blocks, RMS norm before every part, attention without scaling in `heads` of
    `head_width`, with learned biases by distance in place of positions, dense layers with ReLU, no other biases. One
    embedding for both sides and the logits. Nothing attends to id 0 of the source, which is padding. A departure from
    the paper: if `aligned`, attention to the source has biases by distance too, so that a place of the target finds the
    same place of the source, where copying is to be learned from few texts.
    """
    b = Builder("t5", seed)
    source = b.input("x", (BATCH, length), ir.DataType.INT32)
    target = b.input("target", (BATCH, target_length), ir.DataType.INT32)
    table = b.normal("tokens.weight", (vocabulary, width), 1.0)
    net = _Net(b, width, heads, head_width, hidden, dropout)
    memory, empty = net.embedded(table, source, "encoder"), _penalty(b, source)
    shape = (BATCH, heads, length, length)
    bias = b.op("Add", net.bias(length, length, "encoder", both=True), empty, name="encoder.scores", shape=shape)
    for i in range(layers):
        memory = net.block(memory, f"encoder.block{i}", mask=bias)
    memory = net.normed(memory, "encoder.norm", ends=True)
    y, bias = net.embedded(table, target, "decoder"), net.bias(target_length, target_length, "decoder", both=False)
    if aligned:
        shape = (BATCH, heads, target_length, length)
        empty = b.op(
            "Add", net.bias(target_length, length, "cross", both=True), empty, name="cross.scores", shape=shape
        )
    for i in range(layers):
        y = net.block(y, f"decoder.block{i}", mask=bias, memory=memory, seen=empty)
    y = b.op("Mul", net.normed(y, "decoder.norm", ends=True), b.fixed("head.scale", [width**-0.5]))
    head = b.transpose(table, (1, 0), name="head.weight")
    return b.model(logits=b.op("MatMul", y, head, name="head", shape=(BATCH, target_length, vocabulary)))


class _Net:
    """The parts, with the sizes that all share."""

    def __init__(self, b: Builder, width: int, heads: int, head_width: int, hidden: int, dropout: float) -> None:
        self._b, self._heads, self._dropout = b, heads, dropout
        self._inner, self._hidden = heads * head_width, hidden
        self._key, self._out = width**-0.5, self._inner**-0.5
        self._query = (width * head_width) ** -0.5  # in place of a scale of the scores

    def embedded(self, table: ir.Value, ids: ir.Value, name: str) -> ir.Value:
        shape = (*dims(ids), dims(table)[1])
        return self._dropped(self._b.op("Gather", table, ids, name=f"{name}.tokens", shape=shape), f"{name}.tokens")

    def bias(self, queries: int, keys: int, name: str, *, both: bool) -> ir.Value:
        """[1, heads, queries, keys] for the scores of attention."""
        table = self._b.normal(f"{name}.bias.weight", (BUCKETS, self._heads), self._key)
        rows = self._b.constant(f"{name}.bias.buckets", _buckets(queries, keys, both))
        found = self._b.op("Gather", table, rows, name=f"{name}.bias.rows", shape=(queries, keys, self._heads))
        found = self._b.transpose(found, (2, 0, 1), name=f"{name}.bias.heads")
        axis = self._b.constant(f"{name}.bias.axis", [0])
        return self._b.op("Unsqueeze", found, axis, name=f"{name}.bias", shape=(1, self._heads, queries, keys))

    def block(
        self, x: ir.Value, name: str, *, mask: ir.Value, memory: ir.Value | None = None, seen: ir.Value | None = None
    ) -> ir.Value:
        """Attention, that to `memory` where there is one (the decoder's, which is causal), and dense layers."""
        causal = {} if memory is None else {"is_causal": 1}
        x = self._attend(x, None, mask, f"{name}.attention", **causal)
        x = x if memory is None else self._attend(x, memory, seen, f"{name}.cross")
        y = feed_forward(
            self._b, self.normed(x, f"{name}.mlp.norm"), self._hidden, name=f"{name}.mlp", activation="Relu",
            bias=False, deviation=self._key, into=self._hidden**-0.5,
        )  # fmt: skip
        return self._b.add(x, self._dropped(y, f"{name}.mlp"), name=f"{name}.mlp.add")

    def _attend(
        self, x: ir.Value, memory: ir.Value | None, mask: ir.Value | None, name: str, **more: int
    ) -> ir.Value:  # fmt: skip
        y = attention(
            self._b, self.normed(x, f"{name}.norm"), self._heads, name=name, memory=memory, mask=mask,
            inner=self._inner, bias=False, deviation=self._key, asking=self._query, into=self._out, scale=1.0, **more,
        )  # fmt: skip
        return self._b.add(x, self._dropped(y, name), name=f"{name}.add")

    def normed(self, x: ir.Value, name: str, *, ends: bool = False) -> ir.Value:
        scale = self._b.weight(f"{name}.weight", np.ones(int(dims(x)[-1]), np.float32))
        y = self._b.op("RMSNormalization", x, scale, name=name, axis=-1, epsilon=1e-6)
        return self._dropped(y, name) if ends else y

    def _dropped(self, x: ir.Value, name: str) -> ir.Value:
        return self._b.dropout(x, self._dropout, name=f"{name}.dropout")


def _penalty(b: Builder, ids: ir.Value) -> ir.Value:
    """[batch, 1, 1, length]: 0 for tokens, -10,000 for padding, which is added to scores."""
    seen = present(b, ids)
    here = b.op("Cast", seen, name="seen", to=int(ir.DataType.FLOAT), shape=dims(seen))
    return b.op("Mul", b.op("Sub", here, b.fixed("one", [1])), b.fixed("penalty", [1e4]))


def _buckets(queries: int, keys: int, both: bool) -> npt.NDArray[np.int64]:
    """The group of each key's distance from each query, [queries, keys]: near ones alone, far ones in groups whose size
    grows. `both`: keys behind the query have groups of their own; otherwise they share that of distance 0."""
    ahead = np.arange(keys)[None] - np.arange(queries)[:, None]
    count = BUCKETS // 2 if both else BUCKETS
    start = np.where(ahead > 0, count, 0) if both else np.zeros_like(ahead)
    far, near = np.abs(ahead) if both else np.maximum(-ahead, 0), count // 2
    grown = near + np.log(np.maximum(far, 1) / near) / np.log(FARTHEST / near) * (count - near)
    return np.asarray(start + np.where(far < near, far, np.minimum(grown.astype(np.int64), count - 1)), np.int64)
