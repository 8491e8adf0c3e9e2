"""The graph of a decoder-only language model: rows of several sequences at once, caches in pages.

    inputs   input_ids int32 (rows): the new tokens of all sequences behind one another
             cumulative_sequence_length int32 (sequences + 1): where the rows of each sequence begin, and the end
             past_seqlens int32 (sequences): the tokens of each that the caches hold already
             block_table int32 (sequences, pages): which pages of the caches have a sequence's positions, 16 in each
             logits_rows int32 (wanted): the rows whose logits are computed
             key_cache.i (blocks, kv heads, head size, 16), value_cache.i (blocks, kv heads, 16, head size) float16,
             for each layer i: changed in place
    output   logits float32 (wanted, vocabulary)

and with adapters, two more inputs:

             adapters float32 (slots, size): the numbers of one adapter in each row (`adapters.Adapters`)
             adapter_rows int32 (rows): the row of `adapters` that each token uses, -1 for none
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from converter.frontends.decoders.adapters import Adapters
from converter.frontends.decoders.decoder import Decoder, Rope
from converter.frontends.decoders.graph import Activations, Graph
from converter.frontends.decoders.tensors import Tensors
from converter.frontends.decoders.weights import Matrix
from converter.ir import build
from lite_runtime.operators.language import PAGE

__all__ = ["Building", "to_ir"]


def to_ir(
    model: Decoder, tensors: Tensors, activations: Activations = "int8", adapters: Adapters | None = None
) -> ir.Model:
    """The model's graph; `adapters`: with these. Raises ConvertError for tensors that are missing, left over, or of
    another shape."""
    return Building(model, tensors, Graph(model.architecture, activations)).whole(adapters)


class Building:
    """The graph that serves; `learning` overrides what differs in the one that learns."""

    def __init__(self, model: Decoder, tensors: Tensors, graph: Graph) -> None:
        self.model, self.tensors, self.g = model, tensors, graph
        self.sequences: list[ir.Value] = []
        self.adapters: list[ir.Value] = []
        self.wanted: ir.Value | None = None
        self.tables: dict[Rope, list[ir.Value]] = {}

    def whole(self, adapters: Adapters | None) -> ir.Model:
        """From token numbers to logits."""
        g, model = self.g, self.model
        ids = self._tokens(adapters)
        embedding = self.tensors.matrix("embedding", 0, model.vocabulary, model.width)
        h = g.rows_of(embedding, ids, "embedding")
        if model.embedding_scale != 1:
            h = g.op("Mul", [h, self._number("embedding_scale", model.embedding_scale)], "embedding.scaled")
        for i in range(model.layers):
            h = self._attention(i, h)
            h = self._feed_forward(i, h)
        h = self._norm("norm", 0, self._wanted(h), "norm")
        tied = not self.tensors.has("logits")
        matrix = embedding if tied else self.tensors.matrix("logits", 0, model.vocabulary, model.width)
        y = self._capped(h, matrix) if model.logit_softcap else g.product(h, matrix, "logits")
        self.tensors.check_all_used()
        if adapters is not None and self.adapters:
            self.adapters[0].shape = ir.Shape(["slots", adapters.size])
        return self._finished(y)

    def _tokens(self, adapters: Adapters | None) -> ir.Value:
        """The graph's inputs; the new tokens among them."""
        g, int32 = self.g, ir.DataType.INT32
        ids = g.input("input_ids", int32, ["rows"])
        self.sequences = [
            g.input("cumulative_sequence_length", int32, ["ends"]),
            g.input("past_seqlens", int32, ["sequences"]),
            g.input("block_table", int32, ["sequences", "pages"]),
        ]
        self.wanted = g.input("logits_rows", int32, ["wanted"])
        if adapters is not None:
            numbers = g.input("adapters", ir.DataType.FLOAT, ["slots", "size"])
            self.adapters = [numbers, g.input("adapter_rows", int32, ["rows"])]
            g.adapt(adapters, self.adapters)
        return ids

    def _wanted(self, h: ir.Value) -> ir.Value:
        """The rows whose logits are computed."""
        assert self.wanted is not None
        return self.g.op("Gather", [h, self.wanted], "rows", axis=0)

    def _finished(self, y: ir.Value) -> ir.Model:
        return self.g.finish(y, ["wanted", self.model.vocabulary])

    def _capped(self, h: ir.Value, matrix: Matrix) -> ir.Value:
        """Logits within a bound, by tanh."""
        g, cap = self.g, self._number("logit_softcap", self.model.logit_softcap)
        y = g.op("Div", [g.product(h, matrix, "logits.unbounded"), cap], "logits.shares")
        return g.op("Mul", [g.op("Tanh", [y], "logits.bounded"), cap], "logits")

    def _attention(self, i: int, h: ir.Value) -> ir.Value:
        model = self.model
        x = self._norm("attention_norm", i, h, f"layer.{i}.attention_norm")
        parts = [self._heads(i, x, "query", model.heads), self._heads(i, x, "key", model.kv_heads),
                 self._heads(i, x, "value", model.kv_heads)]  # fmt: skip
        y = self._attended(i, parts)
        return self._added(i, y, "result", model.heads * model.head_size, "attention_post_norm", h)

    def _attended(self, i: int, parts: list[ir.Value]) -> ir.Value:
        """Values weighted by queries and keys, in the rows of `parts`."""
        g, model, size = self.g, self.model, self.model.head_size
        half = ir.DataType.FLOAT16
        caches = [
            g.input(f"key_cache.{i}", half, ["blocks", model.kv_heads, size, PAGE]),
            g.input(f"value_cache.{i}", half, ["blocks", model.kv_heads, PAGE, size]),
        ]
        rope = model.ropes[i]
        angles = [] if rope is None else self._angles(rope)
        return g.op(
            "PagedAttention", [*parts, *caches, *self.sequences, *angles], f"layer.{i}.attention", domain=build.DOMAIN,
            num_heads=model.heads, kv_num_heads=model.kv_heads, scale=model.scale, softcap=model.softcap,
            local_window_size=model.windows[i] or -1, rotary_interleaved=int(model.interleaved),
        )  # fmt: skip

    def _heads(self, i: int, x: ir.Value, role: str, heads: int) -> ir.Value:
        """Queries, keys or values of all heads, side by side."""
        g, model, size, name = self.g, self.model, self.model.head_size, f"layer.{i}.{role}"
        matrix = self.tensors.matrix(role, i, heads * size, model.width)
        y = g.product(x, matrix, name, self.tensors.bias(role, i, heads * size))
        if not model.head_norms or role == "value":
            return y
        apart = g.op("Reshape", [y, self._ints([-1, heads, size])], f"{name}.apart")
        normed = self._norm(f"{role}_norm", i, apart, f"{name}_norm", size)
        return g.op("Reshape", [normed, self._ints([-1, heads * size])], f"{name}.normed")

    def _feed_forward(self, i: int, h: ir.Value) -> ir.Value:
        g, model, name = self.g, self.model, f"layer.{i}"
        x = self._norm("ffn_norm", i, h, f"{name}.ffn_norm")
        gate, up = (
            g.product(x, self.tensors.matrix(role, i, model.hidden, model.width), f"{name}.{role}",
                      self.tensors.bias(role, i, model.hidden))
            for role in ("gate", "up")
        )  # fmt: skip
        y = g.op("Mul", [self._active(gate, f"{name}.active"), up], f"{name}.gated")
        return self._added(i, y, "down", model.hidden, "ffn_post_norm", h)

    def _active(self, gate: ir.Value, name: str) -> ir.Value:
        silu = self.model.activation == "Silu"
        domain, attrs = (build.DOMAIN, {}) if silu else ("", {"approximate": "tanh"})
        return self.g.op(self.model.activation, [gate], name, domain=domain, **attrs)

    def _added(self, i: int, y: ir.Value, role: str, columns: int, norm: str, h: ir.Value) -> ir.Value:
        """h plus a product of y, which some families normalise first."""
        g, model, name = self.g, self.model, f"layer.{i}"
        matrix, bias = self.tensors.matrix(role, i, model.width, columns), self.tensors.bias(role, i, model.width)
        if not model.post_norms:
            return g.product(y, matrix, f"{name}.{role}", bias, residual=h)
        normed = self._norm(norm, i, g.product(y, matrix, f"{name}.{role}", bias), f"{name}.{norm}")
        return g.op("Add", [h, normed], f"{name}.{role}.added")

    def _norm(self, role: str, i: int, x: ir.Value, name: str, size: int = 0) -> ir.Value:
        weights = self.tensors.vector(role, i, size or self.model.width) + np.float32(self.model.norm_offset)
        return self.g.norm(x, weights, self.model.epsilon, name)

    def _angles(self, rope: Rope) -> list[ir.Value]:
        """Cosines and sines of all positions: one table for all layers with the same rotation."""
        if rope not in self.tables:
            names = [f"rope.{len(self.tables)}.{part}" for part in ("cos", "sin")]
            self.tables[rope] = list(map(self.g.constant, names, rope.angles(self.model.context)))
        return self.tables[rope]

    def _number(self, name: str, number: float) -> ir.Value:
        return self.g.constant(name, np.asarray(number, np.float32))

    def _ints(self, numbers: list[int]) -> ir.Value:
        return self.g.constant("shape." + "x".join(map(str, numbers)), np.array(numbers, np.int64))
