"""A bundle's float graph as a JAX function.

Lite operators have ONNX's names and meaning, with three additions that the converter's passes fuse: activations, terms
that are added before them (bias, residual), and channels last. Each is undone as a step of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
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
    "BatchNormalization": (0,),
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
    steps = tuple(step for index, node in enumerate(graph.nodes) for step in _steps(node, index))
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


def _steps(node: Node, index: int) -> Iterator[Step]:
    """The node as steps: what is fused into it becomes steps of its own, with names after that of the result."""
    attributes: dict[str, Any] = dict(node.attrs)
    if node.op not in PRODUCTS and node.op not in CHANNELS_LAST:
        yield Step(node.op, LOWERINGS[node.op], node.inputs, node.outputs, attributes, node.where, index)
        return
    fused = {key: attributes.pop(key) for key in _EXTRA if key in attributes}
    turned = {key: attributes.pop(key) for key in _TURNED if node.op == "MatMul" and key in attributes}
    last = CHANNELS_LAST.get(node.op, ()) if fused.get("layout") == "NHWC" else ()
    made = _Expansion(node, index)
    operands = list(node.inputs)
    for i, name in enumerate(operands):
        if i in last and name:
            operands[i] = made.step("Transpose", lambda v: jnp.moveaxis(v, -1, 1), name)
        elif i < len(_TURNED) and turned.get(_TURNED[i]):
            operands[i] = made.step("Transpose", lambda v: jnp.swapaxes(v, -1, -2), name)
    arity = PRODUCTS.get(node.op, len(operands))
    y = made.whole(operands[:arity], attributes)
    for term in filter(None, operands[arity:]):
        y = made.step("Add", jnp.add, y, term)
    if name := fused.get("activation", ""):
        y = made.step(epilogues()[name].op, lambda v: _activated(v, fused), y)
    if last:
        y = made.step("Transpose", lambda v: jnp.moveaxis(v, 1, -1), y)
    yield from made.named(y)


class _Expansion:
    """The steps of one node."""

    def __init__(self, node: Node, index: int) -> None:
        self._node, self._index, self._steps = node, index, list[Step]()

    def step(self, op: str, function: Callable[..., Any], *operands: str) -> str:
        """One more step; the name of its result."""
        return self._add(
            Step(op, Lowering(function, False), operands, (self._fresh(),), {}, self._node.where, self._index)
        )

    def whole(self, operands: Sequence[str], attributes: Mapping[str, Any]) -> str:
        """The node's own operator."""
        results = (self._fresh(), *self._node.outputs[1:])
        row = LOWERINGS[self._node.op]
        return self._add(Step(self._node.op, row, tuple(operands), results, attributes, self._node.where, self._index))

    def named(self, last: str) -> Iterator[Step]:
        """The steps, the last result with the node's name."""
        for step in self._steps:
            yield replace(step, outputs=tuple(self._node.outputs[0] if name == last else name for name in step.outputs))

    def _fresh(self) -> str:
        return f"{self._node.outputs[0]}#{len(self._steps)}"

    def _add(self, step: Step) -> str:
        self._steps.append(step)
        return step.outputs[0]


def _activated(y: Any, fused: Mapping[str, Any]) -> Any:
    what = epilogues()[fused["activation"]]
    if what.op == "Clip":
        return jnp.clip(y, fused.get("activation_min", -np.inf), fused.get("activation_max", np.inf))
    given = {own: fused.get(outer, default) for outer, own, default in what.parameters}
    return LOWERINGS[what.op].function(y, **given, **dict(what.form))


def _spec(value: Value) -> TensorSpec:
    shape = None if value.shape is None else tuple(value.shape)
    return TensorSpec(value.name, np.dtype(numpy_dtype(value.dtype)), shape)
