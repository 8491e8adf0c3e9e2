"""The graph of a decoder-only language model: rows of several sequences at once, caches in pages.

    inputs   input_ids int32 (rows): the new tokens of all sequences behind one another
             cumulative_sequence_length int32 (sequences + 1): where the rows of each sequence begin, and the end
             past_seqlens int32 (sequences): the tokens of each that the caches hold already
             block_table int32 (sequences, pages): which pages of the caches have a sequence's positions, 16 in each
             logits_rows int32 (wanted): the rows whose logits are computed
             key_cache.i (blocks, kv heads, head size, 16), value_cache.i (blocks, kv heads, 16, head size) float16 or
             float32, or int8 with 2 more than the head size, for each layer i: changed in place
    output   logits float32 (wanted, vocabulary)

and with adapters, two more inputs:

             adapters float32 (slots, size): the numbers of one adapter in each row (`adapters.Adapters`)
             adapter_rows int32 (rows): the row of `adapters` that each token uses, -1 for none
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
import onnx_ir as ir

from converter.frontends.decoders.adapters import Adapters
from converter.frontends.decoders.decoder import Decoder, Rope
from converter.frontends.decoders.graph import Activations, Cache, Graph
from converter.frontends.decoders.tensors import Tensors
from converter.frontends.decoders.weights import Matrix
from converter.ir import build
from lite_runtime.operators.language import PAGE, SCALE

__all__ = ["INPUTS", "Building", "embedding_to_ir", "head_to_ir", "layer_to_ir", "norm_to_ir", "to_ir"]

INPUTS: Mapping[str, str] = {
    "query": "attention_norm", "key": "attention_norm", "value": "attention_norm", "result": "attention",
    "gate": "ffn_norm", "up": "ffn_norm", "down": "gated",
}  # fmt: skip
"""Role of a product in a layer -> the value in the layer's graph that it reads, after "layer.i."."""

_CACHES: Mapping[Cache, ir.DataType] = {
    "float16": ir.DataType.FLOAT16, "float32": ir.DataType.FLOAT, "int8": ir.DataType.INT8,
}  # fmt: skip


def to_ir(
    model: Decoder,
    tensors: Tensors,
    activations: Activations = "int8",
    cache: Cache = "float16",
    adapters: Adapters | None = None,
) -> ir.Model:
    """The model's graph; `adapters`: with these. Raises ConvertError for tensors that are missing, left over, or of
    another shape."""
    return Building(model, tensors, Graph(model.architecture, activations), cache).whole(adapters)


def embedding_to_ir(model: Decoder, tensors: Tensors) -> ir.Model:
    """The first part alone: input_ids (rows) to h (rows, width)."""
    made = Building(model, tensors, Graph("embedding", "float32"))
    ids = made.g.input("input_ids", ir.DataType.INT32, ["rows"])
    return made.g.finish(made.embedded(ids), ["rows", model.width])


def layer_to_ir(
    model: Decoder,
    tensors: Tensors,
    i: int,
    activations: Activations = "int8",
    seen: Mapping[str, int] = MappingProxyType({}),
    cache: Cache = "float16",
) -> ir.Model:
    """A layer alone: h (rows, width), the inputs that say whose rows these are, and the layer's caches; the first
    output is h behind the layer. `seen`: further outputs, values of `INPUTS` with their widths."""
    return Building(model, tensors, Graph(f"layer.{i}", activations), cache).layer(i, seen)


def norm_to_ir(model: Decoder, tensors: Tensors) -> ir.Model:
    """h (rows, width) to what the product for logits reads."""
    made = Building(model, tensors, Graph("norm", "float32"))
    return made.g.finish(made.normed(made.rows()), ["rows", model.width])


def head_to_ir(model: Decoder, tensors: Tensors, activations: Activations = "int8") -> ir.Model:
    """The last part alone: h (rows, width) to logits (rows, vocabulary)."""
    made = Building(model, tensors, Graph("head", activations))
    return made.g.finish(made.logits(made.normed(made.rows())), ["rows", model.vocabulary])


class Building:
    """The graph that serves; `learning` overrides what differs in the one that learns."""

    def __init__(self, model: Decoder, tensors: Tensors, graph: Graph, cache: Cache = "float16") -> None:
        self.model, self.tensors, self.g, self.cache = model, tensors, graph, cache
        self.sequences: list[ir.Value] = []
        self.adapters: list[ir.Value] = []
        self.wanted: ir.Value | None = None
        self.tables: dict[Rope, list[ir.Value]] = {}

    def whole(self, adapters: Adapters | None) -> ir.Model:
        """From token numbers to logits."""
        h = self.embedded(self._tokens(adapters))
        for i in range(self.model.layers):
            h = self._attention(i, h)
            h = self._feed_forward(i, h)
        y = self.logits(self.normed(self._wanted(h)))
        self.tensors.check_all_used()
        if adapters is not None and self.adapters:
            self.adapters[0].shape = ir.Shape(["slots", adapters.size])
        return self._finished(y)

    def layer(self, i: int, seen: Mapping[str, int]) -> ir.Model:
        """One layer, of rows of h."""
        h = self.rows()
        self._take_sequences()
        y = self._feed_forward(i, self._attention(i, h))
        return self.g.finish(y, ["rows", self.model.width], {f"layer.{i}.{name}": n for name, n in seen.items()})

    def rows(self) -> ir.Value:
        """The input h (rows, width) of a part that does not begin with tokens."""
        return self.g.input("h", ir.DataType.FLOAT, ["rows", self.model.width])

    def embedded(self, ids: ir.Value) -> ir.Value:
        """The rows of the embedding with these numbers."""
        g, model = self.g, self.model
        h = g.rows_of(self._embedding(), ids, "embedding")
        if model.embedding_scale != 1:
            h = g.op("Mul", [h, self._number("embedding_scale", model.embedding_scale)], "embedding.scaled")
        return h

    def normed(self, h: ir.Value) -> ir.Value:
        """Rows of h as the product for logits reads them."""
        return self._norm("norm", 0, h, "norm")

    def logits(self, h: ir.Value) -> ir.Value:
        """Logits of normalised rows."""
        tied, model = not self.tensors.has("logits"), self.model
        matrix = self._embedding() if tied else self.tensors.matrix("logits", 0, model.vocabulary, model.width)
        return self._capped(h, matrix) if model.logit_softcap else self.g.product(h, matrix, "logits")

    def _embedding(self) -> Matrix:
        return self.tensors.matrix("embedding", 0, self.model.vocabulary, self.model.width)

    def _tokens(self, adapters: Adapters | None) -> ir.Value:
        """The graph's inputs; the new tokens among them."""
        g, int32 = self.g, ir.DataType.INT32
        ids = g.input("input_ids", int32, ["rows"])
        self._take_sequences()
        self.wanted = g.input("logits_rows", int32, ["wanted"])
        if adapters is not None:
            numbers = g.input("adapters", ir.DataType.FLOAT, ["slots", "size"])
            self.adapters = [numbers, g.input("adapter_rows", int32, ["rows"])]
            g.adapt(adapters, self.adapters)
        return ids

    def _take_sequences(self) -> None:
        """The inputs that say whose rows these are."""
        g, int32 = self.g, ir.DataType.INT32
        self.sequences = [
            g.input("cumulative_sequence_length", int32, ["ends"]),
            g.input("past_seqlens", int32, ["sequences"]),
            g.input("block_table", int32, ["sequences", "pages"]),
        ]

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
        kind, held = _CACHES[self.cache], size + (SCALE if self.cache == "int8" else 0)
        caches = [
            g.input(f"key_cache.{i}", kind, ["blocks", model.kv_heads, held, PAGE]),
            g.input(f"value_cache.{i}", kind, ["blocks", model.kv_heads, PAGE, held]),
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
