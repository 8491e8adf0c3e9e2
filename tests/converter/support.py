"""Small ONNX models for tests, and the comparison of what the converter makes of them with onnxruntime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper, numpy_helper

from converter.lowering import lower
from converter.pass_lists import PASSES, Pass, optimize, to_ir
from lite_runtime import reference
from lite_runtime.graph import Graph
from tests import oracles


class Builder:
    """Collects nodes and constants of one graph: `y = b("Relu", x)`."""

    def __init__(self, opset: int = 26, seed: int = 0) -> None:
        self.opset, self.rng = opset, np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self._names = 0

    def name(self, hint: str) -> str:
        self._names += 1
        return f"{hint}_{self._names}"

    def input(self, name: str, shape: Sequence[int | str | None], dtype: Any = np.float32) -> str:
        self.inputs.append(helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), shape))
        return name

    def const(self, values: Any, dtype: Any = None) -> str:
        name = self.name("c")
        self.constants.append(numpy_helper.from_array(np.asarray(values, dtype), name))
        return name

    def weight(self, *shape: int) -> str:
        return self.const(self.rng.standard_normal(shape).astype(np.float32) * 0.5)

    def __call__(self, op: str, *inputs: str, outputs: int = 1, domain: str = "", **attrs: Any) -> Any:
        names = [self.name(op) for _ in range(outputs)]
        self.nodes.append(helper.make_node(op, inputs, names, name=self.name(f"node_{op}"), domain=domain, **attrs))
        return names[0] if outputs == 1 else names

    def model(self, *outputs: str, ir_version: int = 8, ml: bool = False) -> onnx.ModelProto:
        infos = [onnx.ValueInfoProto(name=name) for name in outputs]
        graph = helper.make_graph(self.nodes, "g", self.inputs, infos, self.constants)
        opsets = [helper.make_opsetid("", self.opset)] + [helper.make_opsetid("ai.onnx.ml", 3)] * ml
        model = helper.make_model(graph, opset_imports=opsets, ir_version=min(ir_version, 10))
        known = all(not node.domain for node in self.nodes)
        inferred = onnx.shape_inference.infer_shapes(model) if known else model
        if all(o.type.WhichOneof("value") for o in inferred.graph.output):
            model.graph.output.clear()
            model.graph.output.extend(inferred.graph.output)
        else:
            for info in model.graph.output:
                info.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
        return model


def random_inputs(graph: Graph, seed: int = 1, symbolic: int = 2) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    shapes = {v.name: [d if isinstance(d, int) else symbolic for d in v.shape or ()] for v in graph.inputs}
    made = {}
    for value in graph.inputs:
        if value.dtype.startswith("float"):
            made[value.name] = rng.standard_normal(shapes[value.name]).astype(value.dtype)
        else:
            made[value.name] = rng.integers(0, 3, shapes[value.name]).astype(value.dtype)
    return made


def converted(model: onnx.ModelProto | ir.Model, passes: Sequence[Pass] = PASSES) -> Graph:
    found = to_ir(model)
    optimize(found, passes)
    return lower(found)


def with_onnxruntime(model: onnx.ModelProto, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    session = oracles.session(model, optimised=False)
    return dict(zip((o.name for o in session.get_outputs()), session.run(None, dict(inputs)), strict=True))


def assert_close(got: Mapping[str, np.ndarray], wanted: Mapping[str, np.ndarray], limit: float = 1e-4) -> None:
    assert set(got) == set(wanted)
    for name, w in wanted.items():
        g = got[name]
        assert g.shape == w.shape and g.dtype == w.dtype, (name, g.shape, w.shape, g.dtype, w.dtype)
        if w.size:
            span = float(np.ptp(w.astype(np.float64))) or 1.0
            error = float(np.abs(g.astype(np.float64) - w.astype(np.float64)).max()) / span
            assert error <= limit, (name, error)


def check(model: onnx.ModelProto, *, symbolic: int = 2, limit: float = 1e-4) -> Graph:
    """Convert, run by reference, compare with onnxruntime on the original; the lite graph."""
    graph = converted(model)
    inputs = random_inputs(graph, symbolic=symbolic)
    assert_close(reference.run(graph, inputs), with_onnxruntime(model, inputs), limit)
    return graph


def ops(graph: Graph) -> list[str]:
    return [node.op for node in graph.nodes]
