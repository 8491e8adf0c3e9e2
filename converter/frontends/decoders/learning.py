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

__all__ = ["Learning", "LearningGraph", "to_trained_ir"]

_MASKED = -1e30


def to_trained_ir(model: Decoder, tensors: Tensors, activations: Activations, adapters: Adapters) -> ir.Model:
    """The model's graph with these adapters. Raises ConvertError as `building.to_ir`."""
    return Learning(model, tensors, LearningGraph(model.architecture, activations)).whole(adapters)


class LearningGraph(Graph):
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
            return _rows(y if residual is None else self.op("Add", [residual, y], f"{name}.added"), matrix.shape[0])
        level = {} if self.activations == "float32" else {"accuracy_level": 4}
        inputs = trimmed([x, *self._blocks(matrix), None, None, added, residual])
        y = self.op("MatMulNBits", inputs, name, domain=build.DOMAIN, **block_format(matrix), **level)
        return _rows(y, matrix.shape[0])


class Learning(Building):
    """The graph that learns."""

    def __init__(self, model: Decoder, tensors: Tensors, graph: Graph) -> None:
        super().__init__(model, tensors, graph)
        self._turns: dict[Rope, list[ir.Value]] = {}
        self._masks: dict[int, ir.Value] = {}
        self._grids: dict[int, ir.Value] = {}

    def _tokens(self, adapters: Adapters | None) -> ir.Value:
        g = self.g
        if adapters is not None:
            g.adapt(adapters, [])
        ids = g.input("input_ids", ir.DataType.INT32, ["batch", "length"])
        self._sizes = g.op("Shape", [ids], "sizes")
        self._length = g.op("Shape", [ids], "sizes.length", start=1)
        return _shaped(g.op("Reshape", [ids, self._ints([-1])], "tokens"), ids.dtype, ["rows"])

    def _wanted(self, h: ir.Value) -> ir.Value:
        return h

    def _finished(self, y: ir.Value) -> ir.Model:
        whole = self.g.op("Reshape", [y, self._grid(self.model.vocabulary)], "logits.rows")
        return self.g.finish(whole, ["batch", "length", self.model.vocabulary])

    def _attended(self, i: int, parts: list[ir.Value]) -> ir.Value:
        g, model, rope, name = self.g, self.model, self.model.ropes[i], f"layer.{i}"
        roles = {"query": model.heads, "key": model.kv_heads, "value": model.kv_heads}
        q, k, v = (g.op("Reshape", [part, self._grid(heads * model.head_size)], f"{name}.{role}.rows")
                   for part, (role, heads) in zip(parts, roles.items(), strict=True))  # fmt: skip
        if rope is not None:
            q, k = (self._turned(x, rope, heads) for x, heads in ((q, model.heads), (k, model.kv_heads)))
        y = g.op(
            "Attention", [q, k, v, self._mask(model.windows[i])], f"{name}.attention", q_num_heads=model.heads,
            kv_num_heads=model.kv_heads, scale=model.scale, softcap=model.softcap,
        )  # fmt: skip
        width = model.heads * model.head_size
        y = g.op("Reshape", [y, self._ints([-1, width])], f"{name}.attention.rows")
        return _rows(y, width)

    def _active(self, gate: ir.Value, name: str) -> ir.Value:
        return _rows(super()._active(gate, name), self.model.hidden)

    def _turned(self, x: ir.Value, rope: Rope, heads: int) -> ir.Value:
        part = 0 if rope.features == self.model.head_size else rope.features
        return self.g.op(
            "RotaryEmbedding", [x, *self._rows_of_angles(rope)], f"{x.name}.turned", num_heads=heads,
            interleaved=int(self.model.interleaved), rotary_embedding_dim=part,
        )  # fmt: skip

    def _grid(self, width: int) -> ir.Value:
        """The shape [batch, length, width]."""
        if width not in self._grids:
            self._grids[width] = self.g.op("Concat", [self._sizes, self._ints([width])], f"sizes.{width}", axis=0)
        return self._grids[width]

    def _rows_of_angles(self, rope: Rope) -> list[ir.Value]:
        """Cosines and sines of every row of every text."""
        if rope not in self._turns:
            g, tables, shape = self.g, self._angles(rope), self._grid(rope.features // 2)
            first = [g.op("Slice", [t, self._ints([0]), self._length], f"{t.name}.first") for t in tables]
            self._turns[rope] = [g.op("Expand", [t, shape], f"{t.name}.rows") for t in first]
        return self._turns[rope]

    def _mask(self, window: int) -> ir.Value:
        """(length, length): 0 where a row's position sees a column's, itself or one before it, of the last `window` if
        that is not 0; a large negative number elsewhere."""
        if window not in self._masks:
            g, name, zero = self.g, f"mask.{window}", self._index(0)
            end = g.op("Reshape", [self._length, self._ints([])], f"{name}.length")
            places = g.op("Range", [zero, end, self._index(1)], f"{name}.places")
            rows, columns = (g.op("Unsqueeze", [places, self._ints([axis])], f"{name}.{axis}") for axis in (1, 0))
            distance = g.op("Sub", [rows, columns], f"{name}.distance")
            seen = g.op("GreaterOrEqual", [distance, zero], f"{name}.before")
            if window:
                near = g.op("Less", [distance, self._index(window)], f"{name}.near")
                seen = g.op("And", [seen, near], f"{name}.seen")
            choices = [self._number("mask.seen", 0.0), self._number("mask.hidden", _MASKED)]
            mask = g.op("Where", [seen, *choices], name)
            self._masks[window] = _shaped(mask, ir.DataType.FLOAT, ["length", "length"])
        return self._masks[window]

    def _index(self, number: int) -> ir.Value:
        return self.g.constant(f"index.{number}", np.asarray(number, np.int64))


def _rows(value: ir.Value, width: int) -> ir.Value:
    return _shaped(value, ir.DataType.FLOAT, ["rows", width])


def _shaped(value: ir.Value, dtype: ir.DataType | None, shape: list[int | str]) -> ir.Value:
    """Say which values have equal sizes, where inference does not see it; gradients then need not ask at run time."""
    assert dtype is not None
    value.type, value.shape = ir.TensorType(dtype), ir.Shape(shape)
    return value
