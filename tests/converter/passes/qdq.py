"""Quantised models for the tests of the integer passes, and their comparison with onnxruntime."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnxruntime.quantization import CalibrationDataReader, quantize_dynamic, quantize_static

from converter.ir import shapes, spec
from converter.lowering import lower
from converter.pass_lists import optimize, to_ir
from converter.passes import qlinear_to_qdq
from lite_runtime import reference
from lite_runtime.graph import Graph
from tests.converter.support import Builder, with_onnxruntime

OPSET = 21


class Q(Builder):
    """A Builder that quantises: `q` and `dq` remember each integer tensor's steps."""

    def __init__(self, opset: int = OPSET, seed: int = 0) -> None:
        super().__init__(opset, seed)
        self.steps: dict[str, tuple[str, str, int | None]] = {}

    def q(self, x: str, scale: Any = 0.03, zero: int = 0, dtype: Any = np.int8, axis: int | None = None) -> str:
        """QuantizeLinear"""
        names = self._params(scale, zero, dtype)
        y = self("QuantizeLinear", x, *names, **({} if axis is None else {"axis": axis}))
        self.steps[y] = (*names, axis)
        return str(y)

    def dq(self, x: str) -> str:
        """DequantizeLinear by the steps `x` was made with."""
        scale, zero, axis = self.steps[x]
        return str(self("DequantizeLinear", x, scale, zero, **({} if axis is None else {"axis": axis})))

    def integers(
        self, name: str, shape: Sequence[Any], scale: float = 0.02, zero: int = 3, dtype: Any = np.int8
    ) -> str:
        """A quantised graph input."""
        self.input(name, shape, dtype)
        self.steps[name] = (*self._params(scale, zero, dtype), None)
        return name

    def stored(self, *shape: int, axis: int | None = None, zero: int = 0, dtype: Any = np.int8) -> str:
        """The float value of random quantised weights, with scales along `axis`."""
        info = np.iinfo(dtype)
        scale = np.float32(0.01) if axis is None else self.rng.uniform(0.005, 0.02, shape[axis]).astype(np.float32)
        name = self.const(self.rng.integers(info.min + 1, info.max + 1, shape), dtype)
        self.steps[name] = (*self._params(scale, zero, dtype), axis)
        return self.dq(name)

    def whole_bias(self, x: str, weights: str, size: int) -> str:
        """The float value of an int32 bias in units of both scales' product."""
        made = {t.name: onnx.numpy_helper.to_array(t) for t in self.constants}
        node = next(n for n in self.nodes if n.output[0] == weights)
        scale = made[self.steps[x][0]] * made[node.input[1]]
        q = self.const(self.rng.integers(-2000, 2000, size), np.int32)
        return str(self("DequantizeLinear", q, self.const(scale.astype(np.float32)), axis=0))

    def _params(self, scale: Any, zero: int, dtype: Any) -> tuple[str, str]:
        scale = np.asarray(scale, np.float32)
        return self.const(scale), self.const(np.full(scale.shape, zero), dtype)


def to_integers(model: onnx.ModelProto) -> ir.Model:
    """Through the front door, the rewrite on entry, and every pass."""
    found = to_ir(model)
    qlinear_to_qdq.run(found)
    shapes.infer(found)
    spec.check(found, "after the rewrite on entry")
    optimize(found)
    return found


def inputs_for(graph: Graph, seed: int = 7, symbolic: int = 2) -> dict[str, np.ndarray]:
    """Random inputs; integers over the whole range of their type."""
    rng, made = np.random.default_rng(seed), {}
    for value in graph.inputs:
        shape = [d if isinstance(d, int) else symbolic for d in value.shape or ()]
        if value.dtype.startswith(("int8", "uint8", "int16", "uint16")):
            info = np.iinfo(value.dtype)
            made[value.name] = rng.integers(info.min, info.max + 1, shape).astype(value.dtype)
        elif value.dtype == "bool":
            made[value.name] = rng.integers(0, 2, shape).astype(bool)
        else:
            made[value.name] = rng.standard_normal(shape).astype(value.dtype)
    return made


def check(
    model: onnx.ModelProto, *, steps: float = 1, rarely: float = 0.01, step: float = 1, symbolic: int = 2
) -> Graph:
    """Convert and compare with onnxruntime: nowhere further than `steps` times `step`, and only `rarely` that far."""
    graph = lower(to_integers(model))
    inputs = inputs_for(graph, symbolic=symbolic)
    got, wanted = reference.run(graph, inputs), with_onnxruntime(model, inputs)
    for name, w in wanted.items():
        g = got[name]
        assert g.shape == w.shape and g.dtype == w.dtype, (g.shape, w.shape, g.dtype, w.dtype)
        off = np.abs(g.astype(np.float64) - w.astype(np.float64)) / step
        assert off.max(initial=0) <= steps * (1 + 1e-5), off.max()
        assert (off > 0.01).mean() <= rarely or off.size < 2, (off > 0.01).mean()
    return graph


def body(graph: Graph) -> list[str]:
    """Operators, without those that only move."""
    return [n.op for n in graph.nodes if n.op not in ("Transpose", "Reshape", "Flatten")]


class _Reader(CalibrationDataReader):  # type: ignore[misc]  # onnxruntime is not typed
    def __init__(self, feeds: Sequence[dict[str, np.ndarray]]) -> None:
        self._feeds = iter(feeds)

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self._feeds, None)


def quantized_by_onnxruntime(model: onnx.ModelProto, how: Any, **options: Any) -> onnx.ModelProto:
    """`how`: a QuantFormat for static quantisation, calibrated on random inputs, or "dynamic"."""
    with tempfile.TemporaryDirectory() as folder:
        source, made = Path(folder, "float.onnx"), Path(folder, "quantized.onnx")
        onnx.save(model, source)
        if how == "dynamic":
            quantize_dynamic(source, made, **options)
        else:
            rng = np.random.default_rng(5)
            sizes = {i.name: [d.dim_value or 2 for d in i.type.tensor_type.shape.dim] for i in model.graph.input}
            feeds = [{n: rng.standard_normal(s).astype(np.float32) for n, s in sizes.items()} for _ in range(4)]
            quantize_static(source, made, _Reader(feeds), quant_format=how, **options)
        return onnx.load(made)
