"""A bundle's float graph as a JAX function.

Lite operators have ONNX's names and meaning, with three additions that the converter's passes fuse: activations, terms
that are added before them (bias, residual), and channels last. Each is undone around the engine's own lowering.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np

from cloud.engine import EngineFunction, TensorSpec
from cloud.engine.lowering import LOWERINGS, Program, Step
from cloud.engine.lowering.registry import Lowering
from cloud.errors import AuditError
from lite_runtime.graph import OPSET, Graph, Node, Value, numpy_dtype
from lite_runtime.operators import ONNX, OPERATORS, epilogues

__all__ = ["function_of_graph", "without_softmax"]

CHANNELS_LAST: Mapping[str, tuple[int, ...]] = {
    "Conv": (0, 3),
    "ConvTranspose": (0,),
    "AveragePool": (0,),
    "MaxPool": (0,),
    "LpPool": (0,),
    "GlobalAveragePool": (0,),
    "GlobalMaxPool": (0,),
    "GlobalLpPool": (0,),
}
"""Operators that may compute with channels last -> the operands that then have them last."""
PRODUCTS: Mapping[str, int] = {"Conv": 3, "MatMul": 2}
"""Operators with terms that are added after the product -> how many operands ONNX's operator has."""
_TURNED: tuple[str, ...] = ("transA", "transB")
_EXTRA = ("layout", "activation", "activation_alpha", "activation_beta", "activation_min", "activation_max")


def function_of_graph(graph: Graph, name: str) -> EngineFunction:
    """The graph as a function, its float constants as parameters. Raises AuditError, which lists every operator that
    the engine does not have."""
    if unknown := sorted({node.op for node in graph.nodes if not _known(node)}):
        raise AuditError(
            f"{name}: no gradient, because the engine does not have {', '.join(unknown)}; attack it as a black box by "
            "open_bundle, or its float twin by from_onnx"
        )
    steps = tuple(_step(node, index) for index, node in enumerate(graph.nodes))
    params = {n: np.asarray(array) for n, array in graph.constants.items() if array.dtype == np.float32 and array.ndim}
    others = {n: np.asarray(array) for n, array in graph.constants.items() if n not in params}
    program = Program(tuple(v.name for v in graph.inputs), tuple(v.name for v in graph.outputs), steps, others)
    return EngineFunction(
        inputs=tuple(map(_spec, graph.inputs)),
        outputs=tuple(map(_spec, graph.outputs)),
        params={n: jnp.asarray(array) for n, array in params.items()},
        state={},
        training=False,
        opset=OPSET,
        program=program,
    )


def without_softmax(program: Program) -> Program:
    """The program up to the operand of the Softmax or LogSoftmax that gives its first output; otherwise unchanged."""
    for step in program.steps:
        if step.op in ("Softmax", "LogSoftmax") and step.outputs[0] == program.outputs[0]:
            return replace(program, outputs=(step.inputs[0],))
    return replace(program, outputs=program.outputs[:1])


def _known(node: Node) -> bool:
    record = OPERATORS.get(node.op)
    graphs = any(isinstance(attr, Graph) for attr in node.attrs.values())
    fits = node.attrs.get("layout", "NCHW") == "NCHW" or node.op in CHANNELS_LAST or node.op not in _WITH_LAYOUT
    flat = record is not None and "quantised" in record.traits
    return node.op in LOWERINGS and record is not None and record.domain in ONNX and not graphs and fits and not flat


_WITH_LAYOUT = frozenset(name for name, record in OPERATORS.items() if "layout:s" in record.attrs)


def _step(node: Node, index: int) -> Step:
    row = LOWERINGS[node.op]
    attributes: dict[str, Any] = dict(node.attrs)
    if node.op in PRODUCTS or node.op in CHANNELS_LAST:
        fused = {key: attributes.pop(key) for key in _EXTRA if key in attributes}
        turned = {key: attributes.pop(key) for key in _TURNED if node.op == "MatMul" and key in attributes}
        row = Lowering(_unfused(node.op, row.function, fused, turned), wants_context=row.wants_context)
    return Step(node.op, row, node.inputs, node.outputs, attributes, node.where, index)


def _unfused(
    op: str, function: Callable[..., Any], fused: Mapping[str, Any], turned: Mapping[str, Any]
) -> Callable[..., Any]:
    last = CHANNELS_LAST.get(op, ()) if fused.get("layout") == "NHWC" else ()
    arity = PRODUCTS.get(op, 9)

    def compute(*values: Any, **more: Any) -> Any:
        given = [jnp.moveaxis(v, -1, 1) if i in last and v is not None else v for i, v in enumerate(values)]
        for i, key in enumerate(_TURNED):
            if turned.get(key):
                given[i] = jnp.swapaxes(given[i], -1, -2)
        found = function(*given[:arity], **more)
        y = found[0] if isinstance(found, tuple) else found
        for term in given[arity:]:
            y = y if term is None else y + term
        y = _activated(y, fused)
        return jnp.moveaxis(y, 1, -1) if last else y

    return compute


def _activated(y: Any, fused: Mapping[str, Any]) -> Any:
    name = fused.get("activation", "")
    if not name:
        return y
    what = epilogues()[name]
    if what.op == "Clip":
        return jnp.clip(y, fused.get("activation_min", -np.inf), fused.get("activation_max", np.inf))
    given = {own: fused.get(outer, default) for outer, own, default in what.parameters}
    return LOWERINGS[what.op].function(y, **given, **dict(what.form))


def _spec(value: Value) -> TensorSpec:
    shape = None if value.shape is None else tuple(value.shape)
    return TensorSpec(value.name, np.dtype(numpy_dtype(value.dtype)), shape)
