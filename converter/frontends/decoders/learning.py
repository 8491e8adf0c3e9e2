"""The graph of a decoder-only language model that learns: whole texts in rows of equal length, without caches.

    inputs   input_ids int32 (batch, length)
    output   logits float32 (batch, length, vocabulary)

Its weights are those of the graph that serves (`building`), in the same form, so that a bundle holds them once. The
adapters are initialisers, `layer.3.query.lora_a` (inputs, rank) and `layer.3.query.lora_b` (rank, outputs).
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from converter.frontends.decoders.adapters import Adapters
from converter.frontends.decoders.building import Building
from converter.frontends.decoders.decoder import Decoder, Rope
from converter.frontends.decoders.graph import Activations, Graph, block_format, trimmed
from converter.frontends.decoders.tensors import Tensors
from converter.frontends.decoders.weights import Dense, Matrix
from converter.ir import build

__all__ = ["to_trained_ir"]

_MASKED = -1e30


def to_trained_ir(model: Decoder, tensors: Tensors, activations: Activations, adapters: Adapters) -> ir.Model:
    """The model's graph with these adapters. Raises ConvertError as `building.to_ir`."""
    return _Learning(model, tensors, _Graph(model.architecture, activations)).whole(adapters)


class _Graph(Graph):
    """Products as operators that can be differentiated; adapters as products of their own."""

    def adapt(self, adapters: Adapters, inputs: list[ir.Value]) -> None:
        """From now on, chosen products of layers have adapters."""
        super().adapt(adapters, inputs)
        self._random = np.random.default_rng(adapters.lora.seed)

    def _with_adapter(self, x: ir.Value, base: ir.Value, name: str, sizes: dict[str, int]) -> ir.Value:
        """base + factor * x A B. A is normal with variance 1 / inputs, B begins as zeros."""
        assert self._adapters is not None
        k, n, rank, factor = sizes["K"], sizes["N"], sizes["rank"], self._adapters.lora.factor
        down = (self._random.standard_normal((k, rank)) / np.sqrt(k)).astype(np.float32)
        a, b = self.constant(f"{name}.lora_a", down), self.constant(f"{name}.lora_b", np.zeros((rank, n), np.float32))
        y = self.op("MatMul", [self.op("MatMul", [x, a], f"{name}.narrow"), b], f"{name}.low")
        if factor != 1:
            y = self.op("Mul", [y, self.constant("lora.factor", np.asarray(factor, np.float32))], f"{name}.scaled")
        return self.op("Add", [base, y], name)

    def _base(
        self, x: ir.Value, matrix: Matrix, name: str, added: ir.Value | None, residual: ir.Value | None
    ) -> ir.Value:
        if isinstance(matrix, Dense):
            y = self.op("Gemm", trimmed([x, self._dense(matrix), added]), name, transB=1)
            return y if residual is None else self.op("Add", [residual, y], f"{name}.added")
        level = {} if self.activations == "float32" else {"accuracy_level": 4}
        inputs = trimmed([x, *self._blocks(matrix), None, None, added, residual])
        return self.op("MatMulNBits", inputs, name, domain=build.DOMAIN, **block_format(matrix), **level)


class _Learning(Building):
    def __init__(self, model: Decoder, tensors: Tensors, graph: Graph) -> None:
        super().__init__(model, tensors, graph)
        self._turns: dict[Rope, list[ir.Value]] = {}
        self._masks: dict[int, ir.Value] = {}

    def _tokens(self, adapters: Adapters | None) -> ir.Value:
        g = self.g
        if adapters is not None:
            g.adapt(adapters, [])
        ids = g.input("input_ids", ir.DataType.INT32, ["batch", "length"])
        self._sizes = g.op("Shape", [ids], "sizes")
        self._length = g.op("Shape", [ids], "sizes.length", start=1)
        self._grid = g.op("Concat", [self._sizes, self._ints([-1])], "sizes.rows", axis=0)
        return g.op("Reshape", [ids, self._ints([-1])], "tokens")

    def _wanted(self, h: ir.Value) -> ir.Value:
        return h

    def _finished(self, y: ir.Value) -> ir.Model:
        whole = self.g.op("Reshape", [y, self._grid], "logits.rows")
        return self.g.finish(whole, ["batch", "length", self.model.vocabulary])

    def _attended(self, i: int, parts: list[ir.Value]) -> ir.Value:
        g, model, rope, name = self.g, self.model, self.model.ropes[i], f"layer.{i}"
        roles = ("query", "key", "value")
        q, k, v = (g.op("Reshape", [part, self._grid], f"{name}.{role}.rows")
                   for part, role in zip(parts, roles, strict=True))  # fmt: skip
        if rope is not None:
            q, k = (self._turned(x, rope, heads) for x, heads in ((q, model.heads), (k, model.kv_heads)))
        mask = [self._mask(model.windows[i])] if model.windows[i] else []
        y = g.op(
            "Attention", [q, k, v, *mask], f"{name}.attention", q_num_heads=model.heads,
            kv_num_heads=model.kv_heads, scale=model.scale, softcap=model.softcap, is_causal=1,
        )  # fmt: skip
        return g.op("Reshape", [y, self._ints([-1, model.heads * model.head_size])], f"{name}.attention.rows")

    def _turned(self, x: ir.Value, rope: Rope, heads: int) -> ir.Value:
        part = 0 if rope.features == self.model.head_size else rope.features
        return self.g.op(
            "RotaryEmbedding", [x, *self._rows_of_angles(rope)], f"{x.name}.turned", num_heads=heads,
            interleaved=int(self.model.interleaved), rotary_embedding_dim=part,
        )  # fmt: skip

    def _rows_of_angles(self, rope: Rope) -> list[ir.Value]:
        """Cosines and sines of every row of every text."""
        if rope not in self._turns:
            g = self.g
            tables = self._angles(rope)
            ends = [self._sizes, self._ints([rope.features // 2])]
            shape = g.op("Concat", ends, f"{tables[0].name}.shape", axis=0)
            first = [g.op("Slice", [t, self._ints([0]), self._length], f"{t.name}.first") for t in tables]
            self._turns[rope] = [g.op("Expand", [t, shape], f"{t.name}.rows") for t in first]
        return self._turns[rope]

    def _mask(self, window: int) -> ir.Value:
        """0 for the last `window` positions before each, a large negative number for earlier ones; (length, length)."""
        if window not in self._masks:
            g, name, none = self.g, f"window.{window}", self._ints([])
            end = g.op("Reshape", [self._length, none], f"{name}.length")
            zero, one = (g.constant(f"index.{i}", np.asarray(i, np.int64)) for i in (0, 1))
            places = g.op("Range", [zero, end, one], f"{name}.places")
            rows, columns = (g.op("Unsqueeze", [places, self._ints([axis])], f"{name}.{axis}") for axis in (1, 0))
            distance = g.op("Sub", [rows, columns], f"{name}.distance")
            near = g.op("Less", [distance, g.constant(f"{name}.size", np.asarray(window, np.int64))], f"{name}.near")
            self._masks[window] = g.op(
                "Where", [near, self._number("nothing", 0.0), self._number("masked", _MASKED)], f"{name}.mask"
            )
        return self._masks[window]
