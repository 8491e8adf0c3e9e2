"""Run one operator: natively with every buffer against a guard page, by 1 and 3 workers, and by reference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import lite_runtime
from lite_runtime import bundle, reference
from lite_runtime.graph import Array, Graph, Node, Spec, Value, dtype_name
from lite_runtime.planning.plan import Plan
from lite_runtime.running.executor import Executor, Settings
from lite_runtime.running.inputs import check_inputs
from lite_runtime.running.session import Model


class Alike(Executor):
    """The same graph with other settings and the same plans, which depend neither on workers nor on values."""

    def __init__(self, other: Executor, settings: Settings) -> None:
        super().__init__(other.graph, settings)
        self._other = other

    def plan(self, specs: Mapping[str, Spec]) -> Plan:
        return self._other._plans[tuple(sorted(specs.items()))].plan


def graph_of(
    op: str, inputs: Sequence[Array | None], attrs: Mapping[str, Any], outputs: int, constants: Sequence[int]
) -> tuple[Graph, dict[str, Array], list[Array]]:
    """A graph of one node, the inputs to feed it, and its reference's results. Output types come from the reference."""
    names = tuple("" if x is None else f"i{i}" for i, x in enumerate(inputs))
    node = Node(op, names, tuple(f"o{i}" for i in range(outputs)), dict(attrs), "it")
    wanted = reference.evaluate(node, list(inputs))[:outputs]
    fed = {names[i]: x for i, x in enumerate(inputs) if x is not None and i not in constants}
    held = {names[i]: x for i, x in enumerate(inputs) if x is not None and i in constants}
    typed_in = tuple(Value(k, dtype_name(v.dtype), v.shape) for k, v in fed.items())
    typed_out = tuple(Value(f"o{i}", dtype_name(w.dtype), w.shape) for i, w in enumerate(wanted))
    return Graph(typed_in, typed_out, (node,), held), fed, wanted


def run(graph: Graph, fed: Mapping[str, Array]) -> list[Array]:
    """The graph's outputs, computed natively against guard pages."""
    return list(lite_runtime.load(bundle.write(None, {"predict": graph}), backend="guard").run(fed).values())


def run_shape(op: str, x: Array, attrs: Mapping[str, Any], shape: tuple[int, ...]) -> Array:
    """One float32 operand, one float32 result of a known shape, computed natively; the reference is not asked."""
    node = Node(op, ("x",), ("y",), dict(attrs), "it")
    given, gives = Value("x", "float32", x.shape), Value("y", "float32", shape)
    return run(Graph((given,), (gives,), (node,), {}), {"x": x})[0]


def check(
    op: str,
    inputs: Sequence[Array | None],
    attrs: Mapping[str, Any] | None = None,
    *,
    outputs: int = 1,
    constants: Sequence[int] = (),
    rtol: float = 1e-5,
    atol: float = 1e-6,
    native: bool = True,
) -> list[Array]:
    """Native results equal the reference's within the tolerances and each other's bits; they are returned.

    native: whether a kernel must (True) or must not (False) have computed them.
    """
    graph, fed, wanted = graph_of(op, inputs, attrs or {}, outputs, constants)
    model = lite_runtime.load(bundle.write(None, {"predict": graph}))
    guarded = Model(model.bundle, Settings(guard=True))
    cost = guarded.cost(fed)  # a run: the next one finds in its memory what this one left there
    if any(w.size for w in wanted):
        assert bool(cost.native) == native, f"{op}: reference ran {cost.reference}"
    wide = Alike(guarded._executor("predict"), Settings(guard=True, threads=3))
    ran = (guarded.run(fed), model.run(fed), wide.run(check_inputs(graph, fed)))
    results = [list(outputs.values()) for outputs in ran]
    for i, want in enumerate(wanted):
        got = results[0][i]
        assert got.dtype == want.dtype and got.shape == want.shape, (got.dtype, got.shape, want.dtype, want.shape)
        for other in results[1:]:
            assert got.tobytes() == other[i].tobytes(), f"{op}: output {i} hangs on the number of workers"
        if want.dtype.kind in "iub":
            np.testing.assert_array_equal(got, want)
        else:
            np.testing.assert_allclose(got, want, rtol=rtol, atol=atol, equal_nan=True)
    return results[0]


def onnxruntime_results(
    op: str, inputs: Sequence[Array | None], attrs: Mapping[str, Any], outputs: int, domain: str = "", opset: int = 22
) -> list[Array]:
    """What onnxruntime computes for the one-node model."""
    import onnx

    from tests import oracles

    names = ["" if x is None else f"i{i}" for i, x in enumerate(inputs)]
    node = onnx.helper.make_node(op, names, [f"o{i}" for i in range(outputs)], domain=domain, **attrs)
    typed = [
        onnx.helper.make_tensor_value_info(name, onnx.helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
        for name, x in zip(names, inputs, strict=True)
        if x is not None
    ]
    gives = [onnx.ValueInfoProto(name=f"o{i}") for i in range(outputs)]
    graph = onnx.helper.make_graph([node], "g", typed, gives)
    ml = 5 if op == "TreeEnsemble" else 3
    imports = [onnx.helper.make_opsetid("", opset), onnx.helper.make_opsetid("ai.onnx.ml", ml)]
    model = onnx.helper.make_model(graph, opset_imports=imports, ir_version=10)
    return list(oracles.session(model).run(None, {n: x for n, x in zip(names, inputs, strict=True) if x is not None}))
